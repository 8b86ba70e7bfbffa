"""The main job with every method on a tiny setting, without servers: what each pays, what leaves and what stays, and its audit."""

import functools
import json
from pathlib import Path

import pytest
from PIL import Image

import sfumato
from artifacts.certify import spends_of
from artifacts.labels import Label
from flows.audit import audit_run
from flows.synthesize import synthesize
from sfumato.errors import BadInput, Refused
from sfumato.evaluation.membership import COMBINED
from tasks.release import publish_run
from tasks.runtime.environment import where
from tests.examples import UNCHOSEN, UNREHEARSED, write_classes
from tests.tiny import TINY, shared

pytestmark = pytest.mark.usefixtures("quick_judges")
NOT_PRIVATE = [
    *(
        "privacy.epsilon=1e6",
        "privacy.reason=a test",
        "privacy.delta=1e-5",
        "data.share=0.0648",
        "evaluation.baseline=false",
    ),
    *UNREHEARSED,
    *("pretraining.steps=400", "fine_tuning.trainable=[rows,film,attention,time,rest]", "fine_tuning.ema_decay=0.9"),
    *(
        "fine_tuning.clip=1",
        "fine_tuning.rate_other=3e-3",
        "fine_tuning.rate_rows=3e-3",
        "fine_tuning.sample_rate=0.25",
    ),
    *("fine_tuning.draws=4", "fine_tuning.steps=600", "generation.images=100", "evaluation.images=100"),
]
"""Hardly any noise, all parameters, few records: what a private run must not be."""


def test_a_corrupt_private_image_is_named_before_any_work(no_servers, tmp_path):
    folder = write_classes(tmp_path / "scans", {"a": 12, "b": 12})
    bad = folder / "b" / "003.png"
    bad.write_bytes(bad.read_bytes()[:40])
    with pytest.raises(BadInput, match="scans' holds an image that is corrupt") as reported:
        synthesize.fn(
            method="rapid", preset="auto", changes=[*TINY, *UNCHOSEN, f"data.private={folder}", "data.share=1"]
        )
    assert str(bad) in reported.value.internal and str(bad) not in str(reported.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [["method.votes=true"], ["method.neighbour=random"], ["method.times=[0.8,0.5]"]], ids=str
)
def test_every_way_to_find_a_trajectory_is_released_with_a_model_that_draws(no_servers, tmp_path, changes):
    record = synthesize.fn(method="rapid", preset="digits", changes=[*TINY, "evaluation.baseline=false", *changes])
    assert record.label == Label.DP and record.retrieval["query_time"] in (500, 0)
    assert [one.time for one in record.rehearsal.by_time] == (
        [] if "random" in changes[0] else [800, 500] if "times" in changes[0] else [500]
    )
    publish_run(record, tmp_path / "out")
    images, labels = sfumato.load(tmp_path / "out").draw(10, seed=3)
    assert images.shape == (10, 1, 8, 8) and sorted(labels) == list(range(10))
    assert (tmp_path / "out" / "model" / "extractor").exists() == ("random" not in changes[0])


@pytest.mark.slow
def test_plain_dp_sgd_with_votes_releases_no_public_images(no_servers, tmp_path):
    changes = [c for c in TINY if not c.startswith("method.")]
    record = synthesize.fn(method="dp-sgd", preset="digits", changes=[*changes, "method.votes=true"])
    assert record.label == Label.DP and len(record.plan.spends) == 2
    publish_run(record, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out" / "model").iterdir()} == {
        "README.md",
        "model.json",
        "public",
        "tuned",
        "votes",
    }


@pytest.mark.slow
def test_plain_dp_sgd_is_a_method_like_any_other(no_servers):
    changes = [c for c in TINY if not c.startswith("method.")]
    record = synthesize.fn(method="dp-sgd", preset="digits", changes=changes)
    assert record.label == Label.DP and record.certificate.epsilon <= 10 and "plain DP-SGD" not in record.metrics


PROMISE = [c for c in TINY if not c.startswith("method.")] + ["evaluation.baseline=false", "method.training.steps=4"]
"""dp-promise on the tiny setting."""


@pytest.mark.slow
def test_a_phase_on_noised_copies_is_published_under_an_exchange(no_servers, tmp_path):
    once = ["method.phase_one=noised_once", "privacy.relation=replace_one"]
    record = synthesize.fn(method="dp-promise", preset="digits", changes=[*PROMISE, *once], publish_to=".")
    assert record.label == Label.DP and 9.9 < record.certificate.epsilon <= 10
    assert "exchanging one record" in (Path(record.published) / "README.md").read_text()
    kinds = {m["kind"]: m["label"] for _, m in where().store().ancestry(record.samples_artifact)}
    assert kinds["NoisedImages"] == kinds["PhaseOneModel"] == kinds["TunedModel"] == Label.DP
    again = synthesize.fn(method="dp-promise", preset="digits", changes=[*PROMISE, *once, "fine_tuning.steps=5"])
    made = [stage.name for stage in again.stages if not stage.cached]
    assert "fine-tune" in made and "noise-once" not in made and "train-phase-one" not in made
    with where().ledger() as ledger:
        assert ledger.total("digits").spends == 3, "one copy serves both runs"
        assert ledger.verify() == [] and ledger.replay() == []
    result = audit_run.fn(record.run, canaries=40).audit
    assert result.certificate == pytest.approx(record.certificate.epsilon), "no coin hides how many copies there are"
    assert result.bound.canaries == 40 and not result.refuted


@pytest.mark.slow
def test_images_that_are_paid_one_by_one_are_published_with_their_number(no_servers, tmp_path):
    requested = [*(c for c in PROMISE if "method." not in c), "generation.images=40"]
    record = synthesize.fn(method="empirical-denoiser", preset="digits", changes=requested, publish_to=".")
    assert record.label == Label.DP and 9.9 < record.certificate.epsilon <= 10
    assert "covering 40 images" in (Path(record.published) / "README.md").read_text()
    with where().ledger() as ledger:
        ((entry, events),) = ledger.spends("digits")
        assert entry.body["images"] == 40 and events == tuple(spend.event for spend in record.plan.spends)
        assert ledger.verify() == [] and ledger.replay() == []
    again = synthesize.fn(method="empirical-denoiser", preset="digits", changes=requested)
    assert "generate-privately" in [stage.name for stage in again.stages if stage.cached]
    more = synthesize.fn(method="empirical-denoiser", preset="digits", changes=[*requested, "generation.images=41"])
    assert more.certificate.epsilon <= 10, "its own spends"
    with where().ledger() as ledger:
        assert ledger.total("digits").spends == 2 and ledger.total("digits").epsilon > 12, "more images add up"


def test_phase_one_as_published_runs_and_stays_inside_unless_someone_answers_for_it(no_prefect, tmp_path):
    record = synthesize.fn(method="dp-promise", preset="digits", changes=[*PROMISE, "method.phase_one=paper"])
    assert record.label == Label.INTERNAL and record.certificate is None
    assert "one step can show whether an image was trained on" in Path(record.report).read_text()
    with pytest.raises(Refused, match=r"INTERNAL, because of PhaseOneModel [0-9a-f]{12}: .* \(entry \d+: the loss"):
        publish_run(record, tmp_path / "out")
    given = publish_run(record, tmp_path / "out", accept_claim="a test of mine")
    reported = shared()[record.tracking["DP"]]
    assert reported.data.tags["label"] == "PUBLIC" and "epsilon" not in reported.data.metrics, "its public half alone"
    assert not where().tracker().client().search_registered_models()
    card = json.loads((Path(given.published) / "card.json").read_text())
    assert card["certificate"] is None and "one step can show" in card["statement"]


SCORE = [c for c in TINY if not c.startswith("method.")] + [
    "evaluation.baseline=false", "method.training.steps=3", "method.network.kind=refinenet", "method.network.width=4",
    "generation.hamiltonian.iterations=4",
]  # fmt: skip
"""DPPM on the tiny setting."""


@pytest.mark.slow
def test_images_that_bring_their_own_labels_leave_on_a_claim_alone(no_servers, tmp_path):
    record = synthesize.fn(method="dppm", preset="digits", changes=SCORE)
    assert record.label == Label.INTERNAL and record.certificate is None and record.claim.epsilon == 10
    assert "without looking at the data" in Path(record.report).read_text()
    other = [*SCORE, "generation.hamiltonian.momentum=uniform"]
    again = synthesize.fn(method="dppm", preset="digits", changes=other)
    made = [stage.name for stage in again.stages if not stage.cached]
    assert "generate" in made and "train-plainly" not in made and "pretrain" not in made
    with where().ledger() as ledger:
        assert ledger.total("digits").spends == 1, "another sampler asks nothing of the private images"
        assert ledger.verify() == [] and ledger.replay() == []
    with pytest.raises(Refused, match=r"INTERNAL, because of TunedModel"):
        publish_run(record, tmp_path / "out")
    given = publish_run(record, tmp_path / "out", accept_claim="a test of mine")
    card = json.loads((Path(given.published) / "card.json").read_text())
    reported = [card["statement"], (tmp_path / "out" / "README.md").read_text(), Path(given.report).read_text()]
    assert card["certificate"] is None and all("No protection of the training data is known." in t for t in reported)
    lines = (tmp_path / "out" / "labels.csv").read_text().splitlines()[1:]
    labels = [int(line.split(",")[1]) for line in lines]
    assert len(labels) == 60 and labels != sorted(labels), "as they were drawn, not as they were asked for"


@pytest.mark.slow
def test_a_network_of_the_methods_own_is_certified_published_and_audited(no_servers, tmp_path):
    """Begun with public images, and codes that private records voted for."""
    sound = [
        "method.mechanism=dp_sgd", "method.start=voted", "method.labels=given", "method.label_rows=4", "method.pretraining.steps=20",
        "fine_tuning.trainable=[film,rest]", "fine_tuning.rank=2",
    ]  # fmt: skip
    record = synthesize.fn(method="dppm", preset="digits", changes=[*SCORE, *sound], publish_to=".")
    assert record.label == Label.DP and 9.9 < record.certificate.epsilon <= 10
    assert "PLD" in (Path(record.published) / "README.md").read_text()
    made = {stage.name: stage for stage in record.stages}
    assert made["train-start"].cached is False and "take-votes" in made
    images, labels = sfumato.load(record.published).draw(20)
    assert images.shape == (20, 1, 8, 8) and sorted(labels.tolist()) == sorted(list(range(10)) * 2)
    result = audit_run.fn(record.run, canaries=40).audit
    assert result.bound.canaries == 40 and not result.refuted


ENSEMBLE = [c for c in TINY if not c.startswith("method.")] + [
    *("evaluation.baseline=false", "method.members=2", "method.key=two", "method.training.steps=3"),
]
"""The ensemble on the tiny setting."""


@pytest.mark.slow
def test_members_stay_inside_and_every_image_that_they_drew_is_paid_for(no_servers, tmp_path):
    run = functools.partial(synthesize.fn, method="dp-ensemble", preset="digits")
    record = run(changes=ENSEMBLE, publish_to=".")
    assert record.label == Label.DP and record.certificate.images == 60 and record.certificate.epsilon <= 10
    folder, store = Path(record.published), where().store()
    assert "covering 60 images" in (folder / "README.md").read_text()
    retained = {path.name: store.manifest(path.name) for path in (store.root / "objects").iterdir()}
    members = {digest: m["label"] for digest, m in retained.items() if m["kind"] == "MemberModel"}
    assert set(members.values()) == {Label.INTERNAL} and len(members) == 2
    assert set(retained[record.samples_artifact]["behind"]) == set(members)
    assert {m["kind"] for _, m in store.ancestry(record.samples_artifact)} == {
        "PublicImages",
        "PublicModel",
        "Samples",
    }
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {
        ".png",
        ".csv",
        ".json",
        ".md",
        ".html",
        ".py",
        ".yaml",
    }
    more = run(changes=[*ENSEMBLE, "generation.images=30"])
    assert [s.name for s in more.stages if not s.cached and s.name.startswith(("pre", "train", "gen"))] == [
        "generate-privately",
        "generate (public model alone)",
    ]
    with where().ledger() as ledger:
        reserved = [entry.body["images"] for entry in ledger.entries() if entry.kind == "reserve"]
        assert reserved == [60, 30], "other images are another reservation"
        both = ledger.total("digits").epsilon
        assert both == pytest.approx(more.spent_total["epsilon"]) and both > record.spent_total["epsilon"]
        assert ledger.verify() == [] and ledger.replay() == []


@pytest.mark.slow
def test_prototypes_are_paid_for_once_and_any_number_is_drawn_from_them(no_servers, tmp_path):
    run = functools.partial(synthesize.fn, method="dp-ensemble", preset="digits")
    once = run(changes=[*ENSEMBLE, "method.prototypes=1"], publish_to=".")
    again = run(changes=[*ENSEMBLE, "method.prototypes=1", "generation.images=90", "generation.redraw=0.3"])
    assert "any number of images" in (Path(once.published) / "README.md").read_text()
    assert once.label == again.label == Label.DP and once.entries == again.entries
    assert once.spent_total == again.spent_total and again.certificate == once.certificate
    made = [stage.name for stage in again.stages if not stage.cached]
    assert "generate" in made and "generate-privately (prototypes)" not in made
    with where().ledger() as ledger:
        (entry,) = (entry for entry in ledger.entries() if entry.kind == "reserve")
        assert entry.body["images"] == "any" and entry.body["events"][0]["count"] == 10


@pytest.mark.slow
def test_heads_stay_inside_and_what_learnt_from_their_images_leaves(no_servers, tmp_path):
    """Another training on the paid images, and other numbers of images, ask nothing of the members; the model that leaves holds one denoiser."""
    run = functools.partial(synthesize.fn, method="dp-ensemble", preset="digits")
    paid = ["method.adapters=4", "method.abstain=true", "method.directions=6", "method.prototypes=2"]
    tiny = [*ENSEMBLE, *paid, "method.distillation.steps=5", "generation.guidance=1"]
    once = run(changes=tiny, publish_to=str(tmp_path / "out"))
    again = run(changes=[*tiny, "generation.images=90", "method.distillation.steps=6"])
    assert once.label == again.label == Label.DP and once.entries == again.entries
    assert once.spent_total == again.spent_total and again.certificate == once.certificate
    made = {stage.name for stage in again.stages if not stage.cached}
    assert {"distil", "generate"} <= made and not made & {"train-heads", "generate-privately (prototypes)"}
    store = where().store()
    kinds = {m["kind"] for _, m in store.ancestry(once.samples_artifact)}
    assert "TunedModel" in kinds and "MemberHeads" not in kinds
    retained = [store.manifest(path.name) for path in (store.root / "objects").iterdir()]
    assert {m["label"] for m in retained if m["kind"] == "MemberHeads"} == {Label.INTERNAL}
    assert {path.name for path in (Path(once.published) / "model").iterdir()} == {
        "README.md",
        "model.json",
        "public",
        "tuned",
    }
    pixels, labels = sfumato.load(once.published).draw(20, seed=1)
    assert len(pixels) == 20 and sorted(set(labels)) == list(range(10))
    with where().ledger() as ledger:
        assert ledger.total("digits").spends == 1 and ledger.verify() == [] and ledger.replay() == []
    result = audit_run.fn(once.run, canaries=20).audit
    assert not result.refuted and [fit.what for fit in result.fits] == ["drawing"] and not result.fits[0].faults


@pytest.mark.slow
def test_trajectories_are_paid_for_once_and_any_number_branches_from_their_points(no_servers, tmp_path):
    """A second run draws more images, from farther back, and opens no door but to look; the model that leaves holds points and no private thing."""
    run = functools.partial(synthesize.fn, method="empirical-denoiser", preset="digits")
    small = [change for change in TINY if not change.startswith("method.")]
    tiny = [*small, "evaluation.baseline=false", "method.pay=class", "method.trajectories=2"]
    once = run(changes=tiny, publish_to=str(tmp_path / "out"))
    again = run(changes=[*tiny, "generation.images=90", "method.branch=60"])
    assert once.label == again.label == Label.DP and once.entries == again.entries
    assert once.spent_total == again.spent_total and again.certificate == once.certificate
    made = [stage.name for stage in again.stages if not stage.cached]
    assert "generate" in made and "generate-privately (prototypes)" not in made
    with where().ledger() as ledger:
        (entry,) = (entry for entry in ledger.entries() if entry.kind == "reserve")
        assert entry.body["images"] == "any" and {event["count"] for event in entry.body["events"]} == {2}
        assert ledger.verify() == [] and ledger.replay() == []
    model = sfumato.load(tmp_path / "out")
    assert model.certificate.images == "any" and model.parts.prototypes.shape == (20, 1, 8, 8)
    assert model.draw(30)[0].shape == (30, 1, 8, 8) and model.parts.images is None
    result = audit_run.fn(once.run, canaries=20).audit
    assert not result.refuted and [fit.what for fit in result.fits] == ["drawing"] and not result.fits[0].faults


@pytest.mark.slow
def test_the_audit_is_not_blind(no_servers):
    """A run that hardly adds noise: canaries and training records are recognised."""
    record = synthesize.fn(method="dp-sgd", preset="digits", changes=NOT_PRIVATE)
    result = audit_run.fn(record.run, canaries=100).audit
    combined = next(one for one in result.memberships if one.name == COMBINED)
    assert result.bound.epsilon > 1.5 and combined.auc > 0.8, (result.bound, combined.auc)
    assert result.promised > 1e5 and not result.refuted  # what it promises is next to nothing, and is kept
    lied = result.model_copy(update={"certificate": 1.0})
    finding = where().store().ancestry(record.samples_artifact)[-1][0]  # any artifact
    with where().ledger() as ledger:
        spends = spends_of(where().store(), ledger, record.samples_artifact)
        reported = {"artifact": record.samples_artifact, "finding": finding, "spends": spends, "run": record.run}
        ledger.check("digits", what="audit", passed=not lied.refuted, code_version="1", **reported)
    with pytest.raises(Refused, match="refutes its promise"):
        publish_run(record, where().home / "never")


@pytest.mark.slow
def test_a_set_that_changed_is_refused_until_a_person_declares_a_version(no_servers, tmp_path):
    folder = write_classes(tmp_path / "scans", {"a": 40, "b": 40})
    changes = [c for c in TINY if not c.startswith(("method.", "data.share"))] + [f"data.private={folder}"]
    run = functools.partial(synthesize.fn, method="dp-sgd", preset="auto", changes=[*changes, *UNCHOSEN])
    first = run()
    (folder / "a" / "000.png").unlink()
    with pytest.raises(BadInput, match="'scans' changed since its last entry"):
        run()
    second = run(new_version=True)
    assert [stage.cached for stage in second.stages if stage.name == "fine-tune"] == [False]
    assert not set(second.entries) & set(first.entries)
    with where().ledger() as ledger:
        # The versions share 79 images, which have paid for both.
        assert ledger.version("scans") == 2 and ledger.total("scans").spends == 2
        assert ledger.total("scans").epsilon == ledger.total("scans", all_versions=True).epsilon
    assert all(stage.cached for stage in run().stages)


@pytest.mark.slow
def test_latents_are_one_setting_from_the_public_stage_to_the_audit(no_servers, tmp_path):
    latents = ["latent.kind=kl", "latent.width=8", "latent.steps=30", "evaluation.baseline=false"]
    record = synthesize.fn(method="rapid", preset="digits", changes=[*TINY, *latents])
    store = where().store()
    manifests = dict(store.ancestry(record.samples_artifact))
    (coder,) = (digest for digest, m in manifests.items() if m["kind"] == "PublicAutoencoder")
    kinds = {m["kind"]: m for m in manifests.values()}
    assert kinds["PublicAutoencoder"]["label"] == Label.PUBLIC and record.label == Label.DP
    stands_on_it = {kind for kind, m in kinds.items() if coder in m["parents"]}
    assert stands_on_it == set(kinds) - {"PublicImages", "PublicAutoencoder"}
    assert Image.open(store.root / "objects" / coder / "reconstructions.png").width > 100
    assert 0 < record.latents["reconstruction_error"] < 1 and "Latents." in Path(record.report).read_text()
    again = synthesize.fn(method="rapid", preset="digits", changes=[*TINY, *latents])
    assert all(stage.cached for stage in again.stages) and again.samples_artifact == record.samples_artifact
    audited = audit_run.fn(record.run, canaries=40)
    assert not audited.audit.refuted and audited.audit.bound.canaries == 40


@pytest.mark.slow
def test_mnist_with_omniglot_runs_by_settings_alone(no_servers, data):
    changes = [
        *(f"data.{side}={data / name}" for side, name in (("private", "mnist"), ("public", "omniglot"))),
        *(
            "data.share=0.005",
            "network.width=8",
            "pretraining.steps=3",
            "pretraining.batch=16",
            "method.extractor.steps=2",
        ),
        *UNREHEARSED,
        *UNCHOSEN,
        *("network.kind=unet", "network.multipliers=[1,2]", "network.attention=[7]", "network.blocks=1"),
        *("fine_tuning.steps=2", "fine_tuning.batch=20", "fine_tuning.draws=2", "generation.images=20"),
        *("generation.steps=5", "evaluation.baseline=false", "evaluation.images=20", "machine.physical_batch=8"),
    ]
    record = synthesize.fn(method="rapid", preset="auto", changes=changes)
    assert record.plan.facts.shape == (1, 28, 28) and record.plan.facts.records == 300
    assert record.certificate.epsilon <= 10 and Image.open(record.samples).height > 280
