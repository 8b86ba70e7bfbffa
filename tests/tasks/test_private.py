"""Stages that pay: what goes into which experiment."""

import contextlib

import numpy as np
import pytest
import torch

from artifacts import serialization
from artifacts.references import PublicImages, PublicModel, TunedModel, WatchedSteps
from sfumato import sources
from sfumato.config import Machine, Pretraining
from sfumato.errors import BadInput
from sfumato.methods.plan import Facts, Members
from sfumato.networks.build import build
from sfumato.privacy.door import PrivateSet
from sfumato.privacy.engine.diagnostics import Seen
from sfumato.privacy.mechanisms import Watched
from sfumato.privacy.shards import dealt
from sfumato.settings import resolve
from tasks.checks import check_private
from tasks.inputs import Inputs, PublicParts
from tasks.private import keep_watched, train_member
from tasks.runtime import artifact
from tasks.terms import Order, Terms
from tests.examples import picture_set
from tests.tasks.runtime.test_artifact import CONTEXT, place, reported  # noqa: F401 (fixtures)


@pytest.fixture
def watched(place):  # noqa: F811
    row = Seen(step=1, records=9, not_finite=1, clipped=4, median_norm=0.5, loss=2.0)
    with place.ledger() as ledger:
        look = ledger.look("scans", "d1gest", "losses", stage="a stage", run="run-1", code_version="1")
    empty = Seen(step=2, records=0, not_finite=0, clipped=0, median_norm=None, loss=None)
    return Watched([row, empty], {look.hash: "INTERNAL"})


def test_what_steps_saw_is_internal_whatever_the_model_is(place, reported, watched, capsys):  # noqa: F811
    store = place.store()
    with store.writing() as folder:
        serialization.save(folder, {}, {"a": "model"})
        model = store.keep(TunedModel, folder, parents=[], entries={"3": "DP"})
    keep_watched(watched, model, "DP fine-tuning", CONTEXT)
    (call,) = reported
    assert call["label"] == "INTERNAL" and call["parent"] == "hidden" and model.label == "DP"
    assert call["series"]["loss"] == [2.0, 0.0] and call["series"]["not_finite"] == [1, 0]
    retained = WatchedSteps(digest=call["tags"]["artifact"], label="INTERNAL")
    assert serialization.load(store.folder(retained))[1]["steps"][0]["median_norm"] == 0.5
    assert "2.0" not in capsys.readouterr().err, "the screen says where they are, not what they are"


@pytest.mark.parametrize("copied", [True, False])
def test_private_images_among_the_public_ones_end_the_run_in_a_look(place, reported, copied):  # noqa: F811
    digits, store = sources.load("digits", sources.Reading(part="test")), place.store()
    with store.writing() as folder:
        serialization.save_images(folder, digits if copied else picture_set(count=30))
        public = store.keep(PublicImages, folder, parents=[])
    secret, terms = PrivateSet(name="digits", source="digits"), Terms(relation="add_remove", delta=1e-5)
    refused = pytest.raises(BadInput, match="the public images hold copies of private images of 'digits'")
    with refused if copied else contextlib.nullcontext():
        check_private(Order(private=secret, terms=terms, machine=Machine()), CONTEXT, public)
    with place.ledger() as ledger:
        (entry,) = ledger.entries()
    assert entry.kind == "look" and "none is among the public ones" in entry.body["reason"]
    assert entry.body["parents"] == [public.digest]


PUBLIC_SEED = 5
"""Begins the public network otherwise than one from scratch."""


@pytest.mark.parametrize("scratch", [False, True], ids=["public", "scratch"])
def test_progress_does_not_tell_whether_a_member_had_records(place, reported, tmp_path, monkeypatch, scratch):  # noqa: F811
    """What screen, Prefect's UI and its log show of a shard is in no certificate, and one record may fill it."""
    few = sources.load("digits", sources.Reading(part="train")).subset(slice(12))
    np.savez(path := tmp_path / "few.npz", images=few.pixels[:, 0], labels=few.labels, classes=np.array(few.classes))
    settings, store = resolve("dp-ensemble", changes=["network.width=16"]), place.store()
    with store.writing() as folder:
        serialization.save_denoiser(
            folder, build(settings.network, (1, 8, 8), 3, seed=PUBLIC_SEED), settings.network, (1, 8, 8), 3
        )
        model = store.keep(PublicModel, folder)
    facts = Facts(records=12, classes=few.classes, public_classes=3, shape=(1, 8, 8))
    inputs = Inputs(settings=settings, facts=facts, public=PublicParts(model=model))
    members = Members(count=30, key="two", training=Pretraining(steps=3, batch=4), scratch=scratch)
    private = PrivateSet(name="few", source=str(path), held_out=1e-6)
    order = Order(private=private, terms=Terms(relation="add_remove", delta=1e-5), machine=Machine())
    held = dealt(few, members.count, members.key).tolist()
    ends, weights = [], []
    known = build(settings.network, (1, 8, 8), 3, seed=PUBLIC_SEED).input.weight
    for shard in (min({*range(members.count)} - {*held}), held[0]):
        shown = []
        bar = contextlib.nullcontext(lambda done, total, shown=shown: shown.append((done, total)))
        monkeypatch.setattr(artifact, "progress", lambda title, images, bar=bar: bar)
        trained = train_member.fn(CONTEXT, order, members, shard, inputs)
        weights.append(serialization.load_denoiser(store.folder(trained), torch.device("cpu")).input.weight)
        ends.append(shown[-1:])
    assert ends == [[(3, 3)]] * 2 and {call["steps"] for call in reported} == {3}
    assert torch.equal(weights[0], known), "the member of an empty shard is the public model"
    assert torch.allclose(weights[1], known, atol=0.02) != scratch
