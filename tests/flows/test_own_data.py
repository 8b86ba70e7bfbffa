"""Own data from beginning to end in small: persons in an NPZ file, classes that are asked for or declared, an audit.

The whole flow with real store, ledger and images; Prefect and MLflow alone are left out (`tests.in_process`), so that no server is needed.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import sfumato
from artifacts import serialization
from artifacts.labels import Label
from flows import audit as audit_flow
from flows import synthesize as flow
from flows.cli.generate import generate
from sfumato.config import Machine
from sfumato.errors import BadInput
from sfumato.privacy.accounting.events import DiscreteHistogram
from sfumato.privacy.auditing.looks import REAL
from sfumato.privacy.door import PrivateSet
from tasks import checks
from tasks.planning import Wishes
from tasks.reporting import report_for_prefect
from tasks.runtime.artifact import RunContext
from tasks.runtime.environment import where
from tasks.server import embedded
from tasks.terms import Order, Terms
from tests.examples import UNCHOSEN, UNREHEARSED

pytestmark = pytest.mark.usefixtures("quick_judges")
TINY = [
    *(
        "data.glyphs_per_class=10",
        "network.width=16",
        "network.blocks=1",
        "pretraining.steps=20",
        "fine_tuning.steps=3",
    ),
    *("generation.images=60", "generation.steps=20", "evaluation.images=60", "evaluation.baseline=false"),
    *("evaluation.resamples=20", "schedule.timesteps=100"),
    *UNREHEARSED,
]
PERSONS = 120


@pytest.fixture
def scans(tmp_path) -> Path:
    """Real digits 0, 1 and 2 of very different number, given to persons of one to nine pictures."""
    result = load_digits()
    rng = np.random.default_rng(0)
    wanted = {0: 170, 1: 100, 2: 30}
    chosen = np.concatenate([np.flatnonzero(result.target == digit)[:count] for digit, count in wanted.items()])
    persons = np.sort(np.concatenate([np.arange(PERSONS), rng.integers(0, PERSONS, len(chosen) - PERSONS)]))
    rng.shuffle(chosen)
    pixels = (result.images[chosen] * 255 / 16).astype(np.uint8)
    np.savez(tmp_path / "scans.npz", images=pixels, labels=result.target[chosen], groups=persons)
    return tmp_path / "scans.npz"


def run(method, changes, to=""):
    return flow.run_changed(method, "auto", [*UNCHOSEN, *changes], Wishes(publish_to=to))


def redrawn(folder: Path, samples: str, count: int) -> bool:
    """Whether the model in a published folder draws the samples of its run, with their labels."""
    there = serialization.load_images(where().store().folder(samples))
    images, labels = sfumato.load(folder).draw(count, seed=0)
    return np.array_equal(images, there.pixels) and np.array_equal(labels, there.labels)


def test_a_run_that_is_to_be_published_without_a_licence_does_not_begin(no_servers, tmp_path, scans):
    with pytest.raises(BadInput, match="^no licence"):
        run("dp-sgd", [f"data.private={scans}", *TINY, "release.licence="], str(tmp_path / "out"))
    with where().ledger() as ledger:
        assert not ledger.entries()
    assert not list(where().runs.iterdir()) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("another", [False, True])
def test_a_run_that_cannot_be_published_where_it_should_ends_before_any_work(no_servers, tmp_path, scans, another):
    """The terminal asks first; a schedule did not, and found out after the work."""
    taken, file = tmp_path / "out", tmp_path / "file"
    taken.mkdir()
    for path in (taken / "there.txt", file):
        path.write_text("x")
    private = as_class_folders(tmp_path / "private", range(60))
    places = {file: "file", private / "released": "private"} | (
        {} if another else {taken: "exists and is not an empty"}
    )
    for to, why in places.items():
        with pytest.raises(BadInput, match=why):
            flow.run_changed(
                "dp-sgd", "auto", [*UNCHOSEN, f"data.private={private}", *TINY], Wishes(str(to), another=another)
            )
        assert not list(where().runs.iterdir()), "ended, with its empty folder"
    with where().ledger() as ledger:
        assert not ledger.entries()


def as_class_folders(to: Path, positions) -> Path:
    result = load_digits()
    for at in positions:
        (to / str(result.target[at])).mkdir(parents=True, exist_ok=True)
        Image.fromarray((result.images[at] * 255 / 16).astype(np.uint8)).save(to / str(result.target[at]) / f"{at}.png")
    return to


def test_pictures_of_several_shapes_grey_and_in_colour_are_brought_to_one(no_servers, tmp_path):
    digits = load_digits()
    for at, (values, label) in enumerate(zip(digits.images[:200], digits.target[:200] % 3, strict=True)):
        (tmp_path / "scans" / f"kind {label}").mkdir(parents=True, exist_ok=True)
        drawn = Image.fromarray((values * 255 / 16).astype(np.uint8)).resize((8 + at % 3, 9 + at % 2))
        drawn.convert(("L", "RGB", "CMYK")[at % 3]).save(
            tmp_path / "scans" / f"kind {label}" / f"{at}.{('png', 'JPG', 'tiff')[at % 3]}"
        )
    record = run("dp-sgd", [f"data.private={tmp_path / 'scans'}", "data.size=8", "data.channels=1", *TINY])
    assert record.plan.facts.records == 160 and record.plan.facts.shape == (1, 8, 8) and record.label == Label.DP


def test_a_copy_of_the_set_behind_the_public_side_is_refused_once_its_records_are_read(no_servers, tmp_path, released):
    """Under another name the ledger learns of the copy when it reads it, after the plan."""
    ward, scans = as_class_folders(tmp_path / "ward", range(300)), as_class_folders(tmp_path / "scans", range(295))
    release = shutil.copytree(released, tmp_path / "release")
    card = json.loads((release / "card.json").read_text())
    (release / "card.json").write_text(json.dumps(card | {"name": "ward-synthetic", "in_all": {"sets": ["ward"]}}))
    order = Order(
        private=PrivateSet(name="ward", source=str(ward)),
        terms=Terms(relation="add_remove", delta=1e-4),
        machine=Machine(),
    )
    checks.check_private(order, RunContext(run="earlier", parents={}))
    with pytest.raises(BadInput, match="^data.public=.*was drawn from the private set 'ward' itself"):
        run("dp-sgd", [f"data.private={scans}", f"data.public={release}", *TINY])
    with where().ledger() as ledger:
        assert ledger.joined("scans") == ("ward",) and not [e for e in ledger.entries() if e.kind == "reserve"]


def published_labels(folder: Path) -> list[str]:
    return [line.split(",")[2] for line in (folder / "labels.csv").read_text().splitlines()[1:]]


@pytest.mark.slow
def test_persons_whose_classes_are_asked_for_are_published_audited_and_paid_for_once(no_servers, tmp_path, scans):
    votes = ["method.votes=true", "method.extractor.steps=5"]
    requested = [f"data.private={scans}", "generation.classes=queried", "generation.count_noise=2", *votes, *TINY]
    record = run("rapid", requested, f"file://{tmp_path}/out")
    folder, certificate = tmp_path / "out", record.certificate
    assert record.label == Label.DP and 9.8 < certificate.epsilon <= 10 and record.published == f"file://{folder}"
    assert "one person with all images and labels" in certificate.sentence()
    with where().ledger() as ledger:
        entries = ledger.entries()
        reserved = [entry for entry in entries if entry.kind == "reserve"]
        assert [entry.body["stage"] for entry in reserved] == ["class_counts", "votes", "fine_tuning"]
        assert {entry.body["unit"] for entry in reserved} == {"person"}
        assert certificate.entries == tuple(entry.seq for entry in reserved)
        assert ledger.spends("scans.npz")[0][1] == (DiscreteHistogram(noise_multiplier=2.0),)
        assert certificate.epsilon == pytest.approx(ledger.total("scans.npz").epsilon, rel=1e-6)
        assert ledger.verify() == [] and ledger.replay() == []

    # What leaves: the shares and where they come from, and images by them.
    card = json.loads((folder / "card.json").read_text())
    shares, counts = (card["class_shares"][name] for name in ("shares", "counts"))
    labels = published_labels(folder)
    assert len(labels) == 60 and all(abs(labels.count(name) - 60 * shares[name]) < 1 for name in "012")
    assert labels.count("0") > labels.count("1") > labels.count("2"), "persons of about 54, 32 and 10"
    assert sum(counts.values()) == pytest.approx(record.plan.facts.records, abs=20), "each person counts once"
    assert "counted with discrete Gaussian noise" in (folder / "README.md").read_text()
    assert "counted with discrete Gaussian noise" in (folder / "report.html").read_text()
    assert redrawn(folder, record.samples_artifact, 60)

    # Another method asks under the same key, and so finds the counts again.
    other = [change for change in requested if not change.startswith("method.")]
    again = run("dp-sgd", [*other, "privacy.epsilon=5", "fine_tuning.steps=2", "seed=3"])
    assert {stage.name: stage.cached for stage in again.stages}["count-classes"]

    audit = audit_flow.audit_run.fn(record.run, 40).audit
    assert audit.bound.canaries == 40 and not audit.refuted and audit.canary.startswith("one person with 3 made-up")
    kinds = {m["kind"]: m["label"] for _, m in where().store().ancestry(record.samples_artifact)}
    assert kinds["ClassCounts"] == kinds["TunedModel"] == Label.DP


@pytest.mark.slow
def test_central_images_of_persons_are_published_audited_and_paid_for_once(no_servers, tmp_path, scans):
    requested = [f"data.private={scans}", "central.images=2", "central.steps=5", *TINY]
    record = run("dp-sgd", requested, f"file://{tmp_path}/out")
    assert record.label == Label.DP and 9.8 < record.certificate.epsilon <= 10
    with where().ledger() as ledger:
        reserved = [entry for entry in ledger.entries() if entry.kind == "reserve"]
        assert [entry.body["stage"] for entry in reserved] == ["central", "fine_tuning"]
        assert {entry.body["unit"] for entry in reserved} == {"person"}
        assert record.certificate.entries == tuple(entry.seq for entry in reserved)
        assert record.certificate.epsilon == pytest.approx(ledger.total("scans.npz").epsilon, rel=1e-6)
        assert ledger.verify() == [] and ledger.replay() == []
    assert redrawn(tmp_path / "out", record.samples_artifact, 60), "the warm model is part of the released one"
    kinds = {m["kind"]: m["label"] for _, m in where().store().ancestry(record.samples_artifact)}
    assert kinds["CentralSums"] == kinds["WarmModel"] == kinds["TunedModel"] == Label.DP

    result = audited(record)
    assert "central images" in [fit.what for fit in result.fits] and not result.refuted
    again = run("dp-sgd", [*requested, "central.steps=6", "central.learning_rate=2e-3"])
    assert {stage.name: stage.cached for stage in again.stages}["sum-up"], "another warm-up takes the same sums"


@pytest.mark.slow
def test_images_that_match_mean_embeddings_are_published_audited_and_paid_for_once(no_servers, tmp_path, scans):
    requested = [f"data.private={scans}", "matching.share=0.3", "matching.frequencies=20", "matching.steps=3", *TINY]
    record = run("dp-sgd", requested, f"file://{tmp_path}/out")
    assert record.label == Label.DP and 9.8 < record.certificate.epsilon <= 10
    with where().ledger() as ledger:
        reserved = [entry for entry in ledger.entries() if entry.kind == "reserve"]
        assert [entry.body["stage"] for entry in reserved] == ["matching", "fine_tuning"]
        assert {entry.body["unit"] for entry in reserved} == {"person"}
        assert record.certificate.entries == tuple(entry.seq for entry in reserved)
        assert record.certificate.epsilon == pytest.approx(ledger.total("scans.npz").epsilon, rel=1e-6)
        assert ledger.verify() == [] and ledger.replay() == []
    assert redrawn(tmp_path / "out", record.samples_artifact, 60), "a released model moves what it draws, too"
    assert "before matching" in record.metrics
    kinds = {m["kind"]: m["label"] for _, m in where().store().ancestry(record.samples_artifact)}
    assert kinds["EmbeddingSums"] == kinds["TunedModel"] == Label.DP
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert "matching" in card["model"]["parts"] and "diffusers moves no images" in card["model"]["diffusers"]

    audit = audited(record)
    assert "mean embeddings" in [fit.what for fit in audit.fits] and not audit.refuted
    again = run("dp-sgd", [*requested, "matching.steps=4", "generation.edition=1"])
    cached = {stage.name: stage.cached for stage in again.stages}
    assert cached["sum-features"] and cached["fine-tune"], "other moves take the same sums"
    with where().ledger() as ledger:
        assert len([entry for entry in ledger.entries() if entry.kind == "reserve"]) == len(reserved)


@pytest.mark.slow
def test_more_images_of_a_run_cost_nothing_and_of_paid_images_only_what_is_said(
    no_servers, tmp_path, scans, capsys, monkeypatch
):
    record = run("dp-sgd", [f"data.private={scans}", *TINY], f"file://{tmp_path}/out")
    with where().ledger() as ledger:
        spends = len(ledger.spends("scans.npz"))
    generate(record.run, 6, seed=0, to=str(tmp_path / "own"))
    generate(str(tmp_path / "out"), 6, seed=0, to=str(tmp_path / "bundle"))
    generate(record.run, 4, ["2,0"], to=str(tmp_path / "some"))
    own, bundle = (sorted((tmp_path / name).glob("data/train/*/*.png")) for name in ("own", "bundle"))
    assert len(own) == len(bundle) == 6 and [one.read_bytes() for one in own] == [one.read_bytes() for one in bundle]
    assert {path.name for path in (tmp_path / "some" / "data" / "train").iterdir()} == {"0", "2"}
    for wrong in ({"classes": ["9"]}, {"seed": -1}, {"seed": 2**70}):
        with pytest.raises(BadInput, match="'9'|a seed from 0"):
            generate(record.run, 4, **wrong, to=str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    with where().ledger() as ledger:
        assert len(ledger.spends("scans.npz")) == spends and ledger.verify() == []
        reused = [entry.body["stage"] for entry in ledger.entries() if entry.kind == "reuse"]
        assert reused.count("more images") == 2, "none of what was refused"

    paid = run(
        "empirical-denoiser",
        [f"data.private={scans}", "data.group=none", "data.name=each", *TINY, "generation.images=8"],
    )
    with pytest.raises(BadInput, match="nobody is there to ask, and nothing was spent: --yes"):
        generate(paid.run, 7, to=str(tmp_path / "seven"))
    assert "7 more cost epsilon" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(BadInput, match="leave --classes, --seed and --continuations out"):
        generate(paid.run, 7, seed=1, to=str(tmp_path / "seven"))
    with pytest.raises(BadInput, match="leaves 5 to judge: ask for 6 or more"):
        generate(paid.run, 5, to=str(tmp_path / "five"), yes=True)
    monkeypatch.setattr(embedded, "begin_server", lambda: SimpleNamespace(wait=lambda: None))
    monkeypatch.setattr(flow, "synthesize_planned", flow.run_plan)
    generate(paid.run, 7, to=str(tmp_path / "seven"), yes=True)
    assert len(list((tmp_path / "seven").glob("data/train/*/*.png"))) == 7
    with where().ledger() as ledger:
        assert len(ledger.spends("each")) == 3, "the images of two runs, and the other run with the same records"


@pytest.mark.slow
def test_public_classes_that_persons_vote_for_are_all_that_the_public_denoiser_learns_from(no_servers, tmp_path, scans):
    small = ["backbone.width=8", "backbone.steps=20", "method.extractor.steps=5", "selection.share=0.3"]
    requested = [f"data.private={scans}", "selection.classes=6", *small, *TINY]
    record = run("rapid", requested, f"file://{tmp_path}/out")
    assert record.label == Label.DP and 9.8 < record.certificate.epsilon <= 10
    with where().ledger() as ledger:
        reserved = [entry for entry in ledger.entries() if entry.kind == "reserve"]
        stages = [entry.body["stage"] for entry in reserved]
        assert stages[0] == "selection" and stages[-1] == "fine_tuning" and ledger.verify() == ledger.replay() == []
        assert record.certificate.entries == tuple(entry.seq for entry in reserved)
        assert record.certificate.epsilon == pytest.approx(ledger.total("scans.npz").epsilon, rel=1e-6)
    ancestry = [m for _, m in where().store().ancestry(record.samples_artifact)]
    labels = {m["kind"]: m["label"] for m in ancestry}
    assert labels["ChosenImages"] == labels["PublicModel"] == labels["Trajectories"] == Label.DP
    assert labels["PublicImages"] == labels["PublicBackbone"] == Label.PUBLIC
    assert redrawn(tmp_path / "out", record.samples_artifact, 60)
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert record.plan.facts.selected == 6 and len(card["public_data"]) == 1

    result = audited(record)
    assert [fit.what for fit in result.fits].count("class votes") == 1 and not result.refuted
    again = run(
        "rapid", [change for change in requested if "selection.classes" not in change] + ["selection.classes=8"]
    )
    assert {stage.name: stage.cached for stage in again.stages}["vote"], (
        "another number of classes takes the same votes"
    )


@pytest.mark.slow
def test_digits_of_no_name_vote_for_letters_and_what_is_drawn_shows_it(no_servers, tmp_path, scans, capsys):
    small = ["backbone.width=16", "backbone.steps=300", "selection.sources=1", "data.shapes_per_class=60", *TINY]
    record = run("moments", [f"data.private={scans}", "data.public=glyphs+shapes", *small], f"file://{tmp_path}/out")
    assert "public source with the most votes: glyphs" in capsys.readouterr().err
    store = where().store()
    (chosen,) = [digest for digest, m in store.ancestry(record.samples_artifact) if m["kind"] == "ChosenImages"]
    images = serialization.load_images(store.folder(chosen))
    assert len(images) == 520 and len(images.classes) == record.plan.facts.learnt_classes == 8
    assert images.classes[0] == "glyphs:a to glyphs:g" and record.label == Label.DP
    with where().ledger() as ledger:
        reserved = [entry.body["stage"] for entry in ledger.entries() if entry.kind == "reserve"]
        assert reserved[0] == "selection" and ledger.verify() == ledger.replay() == []
    assert redrawn(tmp_path / "out", record.samples_artifact, 60)
    assert [fit.what for fit in audited(record).fits].count("class votes") == 1


@pytest.mark.slow
def test_clusters_that_records_vote_for_are_all_that_the_public_half_learns_from(no_servers, tmp_path, scans, capsys):
    drawn = ["data.public=shapes", "data.shapes_per_class=60", "selection.candidates=1000"]
    requested = [f"data.private={scans}", *drawn, "selection.clusters=20", "selection.share=0.5", *TINY]
    record = run("moments", [*requested, "latent.kind=patch", "latent.steps=20"], f"file://{tmp_path}/out")
    assert "of 20 clusters of public images stand out of the noise" in capsys.readouterr().err
    store = where().store()
    ancestry = store.ancestry(record.samples_artifact)
    labels = {m["kind"]: m["label"] for _, m in ancestry}
    assert labels["ChosenImages"] == labels["PublicAutoencoder"] == labels["PublicModel"] == Label.DP
    assert labels["PublicClusters"] == labels["PublicImages"] == Label.PUBLIC
    (chosen,) = [digest for digest, m in ancestry if m["kind"] == "ChosenImages"]
    images = serialization.load_images(store.folder(chosen))
    assert len(images.classes) == record.plan.facts.learnt_classes == 8 and 0 < len(images) < 600
    with where().ledger() as ledger:
        reserved = [entry.body["stage"] for entry in ledger.entries() if entry.kind == "reserve"]
        assert reserved[0] == "selection" and ledger.verify() == ledger.replay() == []
    assert redrawn(tmp_path / "out", record.samples_artifact, 60)
    assert [fit.what for fit in audited(record).fits].count("class votes") == 1
    again = run("moments", [*requested, "latent.kind=patch", "latent.steps=20", "selection.threshold=9"])
    assert {stage.name: stage.cached for stage in again.stages}["vote-for-clusters"], (
        "another threshold reads them again"
    )


@pytest.mark.slow
def test_further_averages_are_scored_beside_and_never_leave(no_servers, tmp_path):
    requested = ["data.share=0.1395", "fine_tuning.averages=[0.5,0.0]", "fine_tuning.ema_decay=0.9", *TINY]
    record = run("dp-sgd", requested, f"file://{tmp_path}/out")
    names = {"moving average 0.5", "moving average 0"}
    assert names < set(record.metrics) and record.metrics["moving average 0.5"]["coverage"] is not None
    assert "moving average 0.5" in Path(record.internal_report).read_text(encoding="utf-8")
    shown = Path(record.report).read_text(encoding="utf-8").replace("generate (moving average 0.5)", "")
    assert "moving average 0.5" not in shown, "that it was drawn from may be told, its scores are INTERNAL"
    assert len(record.entries) == 1, "one training, which is paid for once"
    assert redrawn(tmp_path / "out", record.samples_artifact, 60), "the decay that was set beforehand draws"
    assert not list((tmp_path / "out").rglob("averages*"))
    tuned = next(digest for digest, m in where().store().ancestry(record.samples_artifact) if m["kind"] == "TunedModel")
    assert "averages.safetensors" in where().store().manifest(tuned)["files"]


@pytest.mark.slow
def test_declared_classes_may_have_none_and_a_priced_drawing_follows_what_was_counted(no_servers):
    shares = "generation.shares={3: 5, 7: 1, 1: 0.01}"
    named = ["data.share=0.1395", *TINY]
    record = run("dp-sgd", [*named, "generation.classes=declared", shares], ".")
    labels = published_labels(Path(record.published))
    assert {name: labels.count(name) for name in set(labels)} == {"3": 50, "7": 10}, "0.17 % of 60 images are none"
    assert "declared by the custodian" in (Path(record.published) / "README.md").read_text().lower()
    assert len(record.entries) == 1 and record.certificate.epsilon > 9.9
    assert record.metrics["synthetic"]["logistic"] is not None

    counted = [*named, "generation.classes=queried", "generation.largest_share=0.2", "generation.images=40"]
    drawn = run("empirical-denoiser", counted)
    assert drawn.label == Label.DP and 9.8 < drawn.certificate.epsilon <= 10 and drawn.certificate.images == 40
    assert (
        sum(drawn.class_shares.shares.values()) == pytest.approx(1) and max(drawn.class_shares.shares.values()) <= 0.2
    )
    with where().ledger() as ledger:
        stages = [entry.body["stage"] for entry in ledger.entries() if entry.kind == "reserve"]
        assert stages == ["fine_tuning", "class_counts", "drawing"]


def audited(record):
    return audit_flow.audit_run.fn(record.run, 40).audit


@pytest.mark.slow
def test_a_drawing_that_pays_is_audited_by_games_and_training_without_a_certificate_is_attacked(no_servers):
    general = [change for change in TINY if not change.startswith("method.")]
    result = audited(run("empirical-denoiser", general))
    assert not result.refuted and result.canary_attack is None and result.memberships
    (fit,) = result.fits
    assert fit.what == "drawing" and 0.8 * fit.priced < fit.epsilon <= fit.priced
    assert result.bound.epsilon <= result.certificate == pytest.approx(fit.priced, rel=1e-3)

    record = run("moments", general)
    result = audited(record)
    (fit,) = result.fits
    assert fit.what == "class moments" and fit.faults == () and 0.9 * fit.priced < fit.epsilon <= fit.priced
    assert not result.refuted and result.bound.canaries == 100
    assert result.bound.epsilon <= result.certificate == pytest.approx(fit.priced, rel=1e-3)
    reported = (where().runs / record.run / "audit-internal.html").read_text()
    assert "Of 100 games against what was asked of the records the attacker guessed" in reported

    plain = ["method.training.steps=2", "method.network.kind=refinenet", "method.network.width=4"]
    record = run("dppm", [*general, *plain, "generation.hamiltonian.iterations=3"])
    result = audited(record)
    assert result.certificate is None and result.bound is None and not result.fits and result.memberships
    assert "nothing that an audit could refute" in (where().runs / record.run / "audit-internal.html").read_text()


BRIEFLY = [
    *("data.share=0.1395", "backbone.width=8", "backbone.steps=40", "backbone.batch=32", "judge.steps=10"),
    *("judge.directions=16", *TINY, "generation.images=30", "evaluation.images=30"),
]
TOLD = {
    "filter": "a judge (a linear classifier of the private classes on public features, paid for in the certificate) kept the surest",
    "guide": "towards which a judge pulled it (a linear classifier of the private classes on public features, paid for in the certificate)",
}


@pytest.mark.slow
@pytest.mark.parametrize("use", ["filter", "guide"])
def test_what_a_judge_chooses_or_guides_is_paid_for_once_told_of_and_audited(no_servers, tmp_path, use):
    record = run("dp-sgd", [*BRIEFLY, f"judge.use={use}", "judge.keep=0.5"], str(tmp_path / "out"))
    folder, store = Path(record.published), where().store()
    assert record.label == Label.DP and 9.8 < record.certificate.epsilon <= 10
    with where().ledger() as ledger:
        reserved = [entry for entry in ledger.entries() if entry.kind == "reserve"]
        assert [entry.body["stage"] for entry in reserved] == ["judge", "fine_tuning"]
        assert record.certificate.entries == tuple(entry.seq for entry in reserved)
        assert record.certificate.epsilon == pytest.approx(ledger.total("digits").epsilon, rel=1e-6)
        assert ledger.verify() == [] and ledger.replay() == []

    # As many images of each class as were asked for, with the labels that they were drawn for.
    labels = published_labels(folder)
    assert len(labels) == 30 and len(list((folder / "data").rglob("*.png"))) == 30
    assert redrawn(folder, record.samples_artifact, 30), "chosen or guided as they were"
    (samples,) = [m for digest, m in store.ancestry(record.samples_artifact) if digest == record.samples_artifact]
    parents = {store.manifest(digest)["kind"] for digest in samples["parents"]}
    head = (folder / "labels.csv").read_text().splitlines()[0]
    if use == "filter":
        assert record.judged["drawn"] == 60 and {"Samples", "PaidJudge"} <= parents and head.endswith(",drawn")
        drawn_for = [line.rsplit(",", 1)[1] for line in (folder / "labels.csv").read_text().splitlines()[1:]]
        assert labels == drawn_for and {labels.count(name) for name in set(labels)} == {3}
        assert "as drawn" in record.metrics, "what was chosen from is scored beside"
    else:
        assert (
            not record.judged and {"TunedModel", "PaidJudge", "PublicBackbone"} <= parents and head.endswith(",class")
        )
        assert {labels.count(name) for name in set(labels)} == {3} and "as drawn" not in record.metrics

    # Whose labels these are stands on the card and in the reports; how the judge fared on real images does not.
    card = json.loads((folder / "card.json").read_text())
    assert TOLD[use] in card["labels"]
    for page in (folder / "README.md", folder / "report.html", Path(record.internal_report)):
        assert TOLD[use] in page.read_text(), page
    shown = [
        path.read_text() for path in folder.rglob("*") if path.suffix in (".json", ".yaml", ".md", ".csv", ".html")
    ]
    shown += [Path(record.report).read_text(), report_for_prefect(record, {})]
    scores = {repr(value) for row in record.metrics.values() for value in row.values() if isinstance(value, float)}
    secret = {*[score for score in scores if len(score) > 9], REAL, "two_sample_auc", "told from real", "coverage"}
    assert len(secret) > 20 and not [(text[:40], one) for text in shown for one in secret if one in text]
    assert REAL in Path(record.internal_report).read_text()

    result = audited(record)
    assert [fit.what for fit in result.fits] == ["DP-SGD", "paid judge"] and not result.refuted
    assert "paid judge, as its noise is" in (where().runs / record.run / "audit-internal.html").read_text()
