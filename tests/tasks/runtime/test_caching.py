"""The cache key: what must change it does, what must not does not."""

import hashlib
import json
import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Annotated

import pytest
from prefect import flow
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings

from artifacts.references import (
    ClassCounts,
    ClassVotes,
    FeatureExtractor,
    PublicAutoencoder,
    PublicImages,
    PublicModel,
    Samples,
)
from artifacts.tracking import Tracker
from flows.public_half import load_images
from sfumato.config import NOT_HASHED, Latent, Machine, Network, Pretraining, Schedule
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.preflight import plan_for, preflight, private_set
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.door import Payment
from sfumato.privacy.mechanisms import Paid
from sfumato.settings import resolve
from tasks import audit, evaluation, generation, private, public
from tasks.inputs import PrivateParts, PublicParts, TrainingSet
from tasks.runtime import caching, source_digest
from tasks.runtime.artifact import RunContext, draft_of
from tasks.runtime.caching import Stage, cache_key, run_stage
from tasks.runtime.environment import configure, where
from tasks.runtime.run import Journal
from tests.examples import home_at, keep_samples, make_plan, reserve

CONTEXT = RunContext(run="run-1", parents={"DP": "aaa"})
MODEL = PublicModel(digest="m" * 64, label="PUBLIC")

# The inputs


def stage_one(context: RunContext, settings, images, machine: Annotated[Machine, NOT_HASHED]):
    """A stage."""
    return settings, images


def stage_two(context: RunContext, settings, images, machine: Annotated[Machine, NOT_HASHED]):
    """A stage."""
    return settings, images


def inputs(**changes):
    return {"settings": resolve("rapid"), "machine": Machine(), "images": 5, **changes}


def test_two_stages_with_the_same_code_and_inputs_have_two_keys():
    assert cache_key(stage_one, inputs()) != cache_key(stage_two, inputs())


def test_the_order_of_inputs_is_nothing():
    there = inputs()
    assert cache_key(stage_one, there) == cache_key(stage_one, dict(reversed(there.items())))


@pytest.mark.parametrize(
    "change",
    [
        {"machine": Machine(device="cuda:1", threads=3, physical_batch=9)},
        {"settings": resolve("rapid", changes=["machine.threads=7", "machine.physical_batch=3"])},
        {"settings": resolve("rapid", changes=["data.folder=/elsewhere"])},
    ],
    ids=["machine", "machine-in-settings", "folder"],
)
def test_how_fast_where_and_for_whom_is_not_in_the_key(change):
    assert cache_key(stage_one, inputs()) == cache_key(stage_one, inputs(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"images": 6},
        {"images": "5"},
        {"settings": resolve("rapid", changes=["seed=1"])},
        {"settings": resolve("rapid", changes=["method.k=0.6"])},
        {"settings": resolve("dp-sgd")},
        {"event": make_plan().spends[0].event},
    ],
    ids=["number", "text", "seed", "method-setting", "method", "more"],
)
def test_what_is_in_the_key(change):
    assert cache_key(stage_one, inputs()) != cache_key(stage_one, inputs(**change))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"sfumato.methods.rapid"}),
        ({"settings": resolve("dp-sgd")}, {"sfumato.methods.dp_sgd"}),
        ({"settings": 3}, set()),
    ],
    ids=["default", "other", "none"],
)
def test_the_method_in_the_settings_decides_whose_code_is_in_the_key(monkeypatch, given, expected):
    requested = []
    monkeypatch.setattr(caching, "code_digest", lambda function, extra: requested.append(extra) or "digest")
    cache_key(stage_one, inputs(**given))
    assert requested == [expected]


BEFORE = {
    **{"rapid": "7203d27210ba1bef", "dp-sgd": "ab39bb74f7a416fa", "dp-promise": "ea0bb935c01b9ffa"},
    **{"dp-ensemble": "3b3b3ed81aeb07e8", "empirical-denoiser": "11bb3067000af0f4", "dppm": "ca8796b2939e2135"},
    **{
        "moments": "b988e1a0bd77fc88",
        "private-evolution": "e7bf6021bf3f96a6",
        "dp-merf": "dd86cc25844f1079",
        "dp-mepf": "844f58ca7ad69816",
    },
}
"""What keys are made of since the home has its second format: digests of the default settings as they enter a key."""


def hashed(value):
    return hashlib.sha256(json.dumps(caching.canonical(value), sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("method", METHODS)
def test_what_came_later_does_not_change_the_keys_of_runs_that_do_not_use_it(method):
    assert hashed(resolve(method)) == BEFORE[method]
    changed = ["generation.classes=queried", "generation.count_noise=3", "generation.largest_share=0.5"]
    keys = {hashed(resolve(method, changes=changed[:n])) for n in range(len(changed) + 1)}
    assert len(keys) == len(changed) + 1, "and those that use it have keys of their own"


def test_counts_are_in_the_key_of_what_stands_on_them():
    assert (
        hashed(PrivateParts())
        == hashed(PrivateParts(counts=None))
        != hashed(PrivateParts(counts=ClassCounts(digest="c" * 64, label="DP")))
    )
    assert hashed(PrivateParts(votes=ClassVotes(digest="v" * 64, label="DP"))) == "ab9e7a9e0aa88636"


def again(ref):
    """The same content, made at another time and described by another MLflow run."""
    return ref.model_copy(update={"seconds": 123.0, "tracked": "another-run"})


EXTRACTOR = FeatureExtractor(digest="e" * 64, label="PUBLIC")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda ref: ref,
        lambda ref: {"synthetic": ref},
        lambda ref: [ref],
        lambda ref: PublicParts(model=ref, extractor=EXTRACTOR),
    ],
    ids=["itself", "in-dict", "in-list", "in-model"],
)
def test_a_reference_counts_by_its_content_alone(wrap):
    key = cache_key(stage_one, {"images": wrap(MODEL)})
    assert key == cache_key(stage_one, {"images": wrap(again(MODEL))})
    assert key != cache_key(stage_one, {"images": wrap(MODEL.model_copy(update={"digest": "n" * 64}))})


def test_what_is_not_given_counts_as_its_default_as_it_does_for_prefect():
    requested = (PublicImages(digest="i" * 64, label="PUBLIC"), Latent(kind="kl"), 0, Machine())
    given = public.train_autoencoder.given
    assert given(*requested).key == given(*requested, backbone=None).key
    everything = {"context": CONTEXT, **given(*requested).arguments}
    assert caching._key(public.train_autoencoder.fn, None, everything) == given(*requested).key, (
        "as Prefect works it out"
    )


def test_another_autoencoder_is_another_key_all_the_way_down():
    """Its settings and its public images are in its own key; its content is in the key of all that stands on it."""
    images, latent = PublicImages(digest="i" * 64, label="PUBLIC"), Latent(kind="kl")
    common = {"seed": 0, "machine": Machine()}

    def coder_key(images, latent):
        return public.train_autoencoder.given(images, latent, **common).key

    others = [latent.model_copy(update=change) for change in ({"width": 8}, {"kl_weight": 0.1}, {"bound": 2.0})]
    elsewhere = images.model_copy(update={"digest": "j" * 64})
    assert len({coder_key(images, one) for one in (latent, *others)} | {coder_key(elsewhere, latent)}) == 5
    assert coder_key(again(images), latent) == coder_key(images, latent)

    coders = [PublicAutoencoder(digest=letter * 64, label="PUBLIC") for letter in "ab"]

    def pretrain_key(coder):
        shown = TrainingSet(images=images, autoencoder=coder, **common)
        return public.pretrain.given(shown, Schedule(), Network(), Pretraining(), reference=0.0).key

    assert len({pretrain_key(coder) for coder in (None, *coders)}) == 3
    parts = [PublicParts(model=MODEL, autoencoder=coder) for coder in (None, *coders)]
    assert len({cache_key(stage_one, inputs(public=part)) for part in parts}) == 3


def test_a_library_of_another_version_gives_another_key(monkeypatch):
    assert {"torch", "numpy", "dp-accounting"} <= set(caching.library_versions())
    key = cache_key(stage_one, inputs())
    monkeypatch.setattr(caching, "library_versions", lambda: {"torch": "0.0"})
    assert cache_key(stage_one, inputs()) != key


# A hit


@dataclass
class FakeTask:
    """A Prefect task that is always found in the cache unless told to refresh."""

    ref: Samples
    calls: list[bool] = field(default_factory=list)
    refresh: bool = False

    def with_options(self, refresh_cache):
        return FakeTask(self.ref, self.calls, refresh_cache)

    def __call__(self, *_, return_state=False, **__):
        self.calls.append(self.refresh)
        return SimpleNamespace(result=lambda: self.ref, name="Cached") if return_state else self.ref


def stand_in(context: RunContext, number: int) -> Samples:
    """What the key is made of."""


def call_of(fake):
    """A call of a stage whose task is the stand-in."""
    stage = Stage(stand_in)
    stage.__dict__["task"] = fake
    return stage.given(1)


def test_a_call_reaches_another_process_by_name():
    call = private.count_classes.given(None, None, ("ill", "well"))
    there = pickle.loads(pickle.dumps(call))
    assert there.stage is private.count_classes and there.arguments == call.arguments
    with pytest.raises(TypeError, match="'classes'"):
        private.count_classes.given(None, None)


@pytest.mark.parametrize(("intact", "expected"), [(True, [False]), (False, [False, True])])
def test_a_hit_whose_artifact_is_damaged_is_made_again(monkeypatch, intact, expected, tmp_path):
    store = SimpleNamespace(intact=lambda ref: intact, entries=lambda ref: [])
    monkeypatch.setattr(caching, "where", lambda: SimpleNamespace(store=lambda: store, home=tmp_path, shared_store=""))
    monkeypatch.setattr(caching, "is_here", lambda stage, key: True)
    fake = FakeTask(Samples(digest="s" * 64, label="PUBLIC"))
    assert run_stage(call_of(fake), CONTEXT) == (fake.ref, intact)
    assert fake.calls == expected


def test_a_hit_that_this_ledger_does_not_name_is_made_again_and_the_line_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(caching, "is_here", lambda stage, key: True)
    with home_at(tmp_path / "home"):
        fake = FakeTask(keep_samples(where().store(), entries={"0" * 64: "DP"}))
        assert run_stage(call_of(fake), CONTEXT) == (fake.ref, False) and fake.calls == [False, True]
    assert "stand-in: made again: its ledger entries are not in this ledger" in capsys.readouterr().err


class Once(FakeTask):
    """A Prefect task that was never stored: it does the work each time."""

    def __call__(self, context, *_, **__):
        ref = pay(context)
        return SimpleNamespace(result=lambda: ref, name="Completed")


def pay(context: RunContext) -> Samples:
    """Reserve a spend, and store a result that stands on it."""
    with draft_of(Samples, "a stage", context) as draft:
        (draft.folder / "facts.json").write_text("content")
        with where().ledger() as ledger:
            ticket = reserve(ledger, [Gaussian(noise_multiplier=1.0)])
        draft.stands_on(Paid(None, {ticket.hash: "DP"}, Payment(ticket, (Gaussian(noise_multiplier=1.0),))))
    return draft.ref


@pytest.mark.parametrize(
    ("killed_in", "reserves"), [("artifacts.tracking.Tracker.log", 1), (f"{Payment.__module__}.Payment.commit", 2)]
)
def test_what_was_paid_for_is_found_after_a_kill_from_its_commit_on(tmp_path, monkeypatch, killed_in, reserves):
    def killed(*_, **__):
        raise KeyboardInterrupt

    with home_at(tmp_path / "home"):
        configure()
        monkeypatch.setattr(caching, "is_here", lambda stage, key: False)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(killed_in, killed)
            run_stage(call_of(Once(None)), CONTEXT)
        monkeypatch.setattr(Tracker, "log", lambda *_, **__: "")
        ref, cached = run_stage(call_of(Once(None)), CONTEXT)
        with where().ledger() as ledger:
            assert sum(entry.kind == "reserve" for entry in ledger.entries()) == reserves
        assert cached == (reserves == 1) and not caching.lacking(where(), ref)


def test_a_stage_is_cached_and_never_tried_twice():
    for stage in (public.load_public, public.pretrain, private.take_votes, private.fine_tune, evaluation.evaluate):
        assert stage.task.retries == 0 and stage.task.persist_result and stage.task.cache_policy is not None
        assert stage.task.result_serializer == "json"


@pytest.mark.parametrize(
    "paid",
    [
        *(private.take_votes, private.noise_once, private.train_phase_one, private.fine_tune, private.train_plainly),
        *(private.train_member, generation.generate, generation.generate_privately),
    ],
    ids=lambda paid: paid.name,
)
def test_what_is_paid_for_does_not_depend_on_how_it_is_judged(paid):
    """Another judge must not make private data be paid for twice."""
    judges = (evaluation.evaluate, audit.attack, audit.check_copies)
    names = ("copies", "extractors", "fidelity", "membership", "scores", "utility")
    judging = {
        "sfumato.privacy.auditing.audit",
        "sfumato.privacy.auditing.looks",
        *(f"sfumato.evaluation.{name}" for name in names),
    }
    assert judging <= set().union(*(source_digest.code_behind(judge.fn)[1] for judge in judges))
    assert not judging & source_digest.code_behind(paid.fn)[1]


# Another machine


@flow
def read_public():
    """One stage, as a run calls it; its reference and whether it was found."""
    settings, facts, _ = preflight(resolve("dp-sgd", changes=["data.glyphs_per_class=2", "fine_tuning.steps=1"]))
    book = Journal.begin(settings, private_set(settings))
    return load_images(settings, plan_for(settings, facts), book), book.stages[0].cached


@pytest.mark.slow
def test_another_machine_finds_what_this_one_made_if_both_write_into_one_ledger(prefect_server, tmp_path, monkeypatch):
    """A machine is a home of its own; what it made lies in the shared store too."""
    monkeypatch.setenv("SFUMATO_STORE", f"file://{tmp_path}/share")
    actual = {}
    for name, ledger in (("one", "books"), ("two", "books"), ("three", "others")):
        with home_at(tmp_path / name), monkeypatch.context() as patch:
            patch.setenv("SFUMATO_LEDGER", f"sqlite:///{tmp_path}/{ledger}.db")
            patch.setenv("PREFECT_LOCAL_STORAGE_PATH", str(tmp_path / name / "results"))
            with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: tmp_path / name / "results"}):
                configure()
                actual[name] = (*read_public(), where().store().root)
    assert [cached for _, cached, _ in actual.values()] == [False, True, False]
    assert len({ref.digest for ref, *_ in actual.values()}) == 1
    ref, _, root = actual["two"]
    assert (root / "objects" / ref.digest / "manifest.json").is_file()


def test_a_result_that_cannot_be_sent_is_said_and_kept(monkeypatch, capsys):
    def remember(*_):
        raise BadInput("the store at s3://bucket cannot be used")

    place = SimpleNamespace(store=lambda: SimpleNamespace(remember=remember), books="books")
    caching.share(place, "key", Samples(digest="s" * 64, label="DP"))
    assert "is on this machine only" in " ".join(capsys.readouterr().err.split())
