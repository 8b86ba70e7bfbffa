"""A model leaves whole or not at all: never with a part that is INTERNAL, never where each image was paid for."""

import json

import pytest
import torch

from artifacts import model, serialization
from artifacts.model import PARTS, lacking, parts_of, write_model
from artifacts.packaging import Packaging
from artifacts.publish import publish
from artifacts.references import (
    ClassVotes,
    PaidJudge,
    PublicBackbone,
    PublicModel,
    PublicMoments,
    Samples,
    Trajectories,
    TunedModel,
)
from artifacts.store import Store
from sfumato.config import Judge, Release
from sfumato.errors import Refused
from sfumato.stored_parts import PartFolders
from tests.examples import keep_samples, make_certificate, make_record


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    """A store of parts that are made up, and so no pipeline: that is tested with real ones (`for_diffusers/test_write.py`)."""
    monkeypatch.setattr(model, "write_for_diffusers", lambda folder, record: "none: its parts are made up")
    return Store.open(tmp_path / "store")


def retained(store, kind, *, label="", **facts):
    """An artifact of a kind; a `label` other than PUBLIC has a ledger entry."""
    with store.writing() as folder:
        serialization.save(folder, {"x": torch.zeros(3)}, {"of": kind.__name__, **facts})
        (folder / "curve.json").write_text("[1.0]")
        return store.keep(kind, folder, entries={"1": label} if label else {})


def record_of(tmp_path, samples, judge=None, **changes):
    record = make_record(tmp_path, samples_artifact=samples.digest, **changes)
    return record.model_copy(update={"plan": record.plan.model_copy(update={"judge": judge})})


@pytest.fixture
def parts(store):
    """What a run with votes has drawn with, and beside it what drawing does not need."""
    kinds = {PublicModel: "", PublicMoments: "", ClassVotes: "DP", TunedModel: "DP"}
    return [retained(store, kind, label=label) for kind, label in kinds.items()]


def test_every_part_that_a_method_reads_can_leave_but_what_is_internal():
    apart = {
        "members",
        "heads",
        "started",
        "warm",
        "own",
    }  # models of shards, and those that only training goes on from
    assert set(PartFolders.__dataclass_fields__) - apart <= set(PARTS) and not apart & set(PARTS)


def test_what_the_samples_were_drawn_with_is_copied_and_nothing_beside(store, parts, tmp_path):
    record = record_of(tmp_path, keep_samples(store, parents=parts, entries={"2": "DP"}))
    reported = write_model(tmp_path / "out", store, record)
    place = tmp_path / "out" / "model"
    files = {path.relative_to(place).as_posix() for path in place.rglob("*.*")}
    names = ("public", "votes", "tuned")
    both = (serialization.TENSORS, serialization.FACTS)
    assert files == {"model.json", *(f"{name}/{file}" for name in names for file in both)}, "no curve, no moments"
    assert json.loads((place / "tuned" / serialization.FACTS).read_text()) == {"of": "TunedModel"}
    assert {name: (one["label"], one["kind"]) for name, one in reported["parts"].items()} == {
        "public": ("PUBLIC", "PublicModel"),
        "votes": ("DP", "ClassVotes"),
        "tuned": ("DP", "TunedModel"),
    }
    assert reported["parts"]["tuned"]["artifact"] == parts[-1].digest
    assert reported["bytes"] == sum((place / name / file).stat().st_size for name in names for file in both)


@pytest.mark.parametrize("licence", ["", "CC-BY-4.0"])
def test_parts_with_public_images_leave_where_their_licence_is_named_alone(store, parts, tmp_path, licence):
    parts.append(retained(store, Trajectories))
    record = record_of(tmp_path, keep_samples(store, parents=parts, entries={"2": "DP"}))
    terms = Release(licence="MIT", **({"public_licence": licence} if licence else {}))
    folder = publish(store, record, tmp_path / "out", packaging=Packaging(terms))
    card = json.loads((folder / "card.json").read_text())
    described = json.loads((folder / "model" / "model.json").read_text())["parts"]
    assert (
        ("base" in described)
        == ("base" in card["model"]["parts"])
        == (folder / "model" / "base").is_dir()
        == bool(licence)
    )
    text = (folder / "README.md").read_text()
    if licence:
        assert card["model"]["public_images"] == {"parts": ["base"], "licence": licence} and licence in text
    else:
        assert set(card["model"]["without"]) == {"base"} and "cannot draw: its part 'base' is left out" in text
        assert card["model"]["diffusers"].startswith("none") and {"public", "tuned", "votes"} == set(described)


@pytest.mark.parametrize("use", ["relabel", "guide"])
def test_a_judge_goes_along_whether_it_labels_or_guides(store, parts, tmp_path, use):
    judging = [retained(store, PublicBackbone), retained(store, PaidJudge, label="DP")]
    parents = [*parts, *(judging if use == "guide" else [])]
    samples = keep_samples(store, parents=parents, entries={"2": "DP"})
    drawn = samples
    if use != "guide":
        samples = keep_samples(store, parents=[drawn, *judging])
    result = parts_of(store, record_of(tmp_path, samples, Judge(use=use)))
    assert set(result) == {"public", "votes", "tuned", "judge", "backbone"}


def test_prototypes_are_a_part_and_what_a_judge_labelled_is_not(store, tmp_path):
    public, paid, backbone = (
        retained(store, PublicModel),
        retained(store, PaidJudge, label="DP"),
        retained(store, PublicBackbone),
    )
    prototypes = retained(store, Samples, label="DP")
    drawn = keep_samples(store, parents=[public, prototypes])
    assert parts_of(store, record_of(tmp_path, drawn))["prototypes"] == prototypes.digest
    labelled = keep_samples(store, parents=[drawn, backbone, paid])
    result = parts_of(store, record_of(tmp_path, labelled, Judge(use="weigh")))
    assert set(result) == {"public", "prototypes", "judge", "backbone"} and result["prototypes"] == prototypes.digest


def test_an_internal_part_is_refused_whatever_the_record_says(store, parts, tmp_path):
    tainted = retained(store, TunedModel, label="INTERNAL", shard=0)
    record = record_of(tmp_path, keep_samples(store, parents=[parts[0], tainted]))
    assert record.label == "DP" and not lacking(record)
    with pytest.raises(Refused, match="the part 'tuned' of the model .* is INTERNAL"):
        write_model(tmp_path / "out", store, record)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"certificate": make_certificate(images=300)}, "covers 300 images, each of which was paid for"),
        ({"certificate": None}, "no certificate"),
        ({"label": "INTERNAL"}, "no certificate"),
    ],
)
def test_the_card_says_why_there_is_no_model(store, parts, tmp_path, changes, why):
    record = record_of(tmp_path, keep_samples(store, parents=parts, entries={"2": "DP"}), **changes)
    reported = write_model(tmp_path / "out", store, record)
    assert why in reported["left_out"] and not (tmp_path / "out").exists()


def test_a_person_may_leave_the_model_out(store, parts, tmp_path):
    record = record_of(tmp_path, keep_samples(store, parents=parts, entries={"2": "DP"}))
    folder = publish(store, record, tmp_path / "set", packaging=Packaging(model=False))
    assert not (folder / "model").exists() and "left it out" in (folder / "README.md").read_text()
    whole = publish(store, record, tmp_path / "whole")
    assert (whole / "model" / "tuned").is_dir() and "sfumato.load" in (whole / "README.md").read_text()
    assert "model/model.json" in json.loads((whole / "card.json").read_text())["files"]
