"""The main job end to end on a tiny setting: private images in, a published set with its statement out; and again from the cache."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from PIL import Image

from artifacts.labels import Label
from artifacts.record import load_record
from artifacts.store import Store
from artifacts.tracking import INTERNAL, SHAREABLE
from flows.audit import audit_run
from flows.synthesize import synthesize
from sfumato import verify_card
from sfumato.errors import BadInput, Refused
from sfumato.privacy.ledger.ledger import Ledger
from tasks.runtime.environment import where
from tests.quick_judges import judge_quickly
from tests.spends import KEYS
from tests.tiny import TINY, shared

pytestmark = pytest.mark.usefixtures("quick_judges")
PATIENCE_SECONDS = 400


@pytest.fixture(scope="module")
def record(prefect_server, tmp_path_factory):
    """One run of the whole flow, published."""
    to = tmp_path_factory.mktemp("out") / "published"
    with pytest.MonkeyPatch.context() as patch:
        judge_quickly(patch)
        return synthesize(method="rapid", preset="digits", changes=TINY, publish_to=str(to))


def test_the_published_folder_can_be_handed_over(record):
    folder = Path(record.published)
    pictures = sorted((folder / "data" / "train").glob("*/*.png"))
    assert len(pictures) == 60 and {p.parent.name for p in pictures} == set("0123456789")
    assert Image.open(pictures[0]).size == (8, 8)
    card = json.loads((folder / "card.json").read_text())
    assert card["statement"] == record.certificate.sentence()
    assert record.certificate.sentence() in (folder / "README.md").read_text()
    assert len((folder / "labels.csv").read_text().splitlines()) == 61
    assert Image.open(folder / "samples.png").width > 300


def test_the_certificate_is_what_an_independent_accountant_finds(record):
    with where().ledger() as ledger:
        bodies = [entry.body for entry in ledger.entries() if entry.kind == "reserve" and entry.seq in record.entries]
        public_key = ledger.signed_head()["public_key"]
    events = {event["kind"]: event for body in bodies for event in body["events"]}
    assert sorted(events) == ["discrete_histogram", "subsampled_gaussian"]
    votes, steps = events["discrete_histogram"], events["subsampled_gaussian"]
    interval = {"value_discretization_interval": 1e-4}
    one = pld.from_gaussian_mechanism(steps["noise_multiplier"], sampling_prob=steps["sample_rate"], **interval)
    cell = pld.from_discrete_gaussian_mechanism(votes["noise_multiplier"], use_connect_dots=True, **interval)
    total = one.self_compose(steps["steps"]).compose(cell)
    assert verify_card.main([str(Path(record.published) / "card.json"), "--key", public_key]) == 0
    certificate = record.certificate
    assert certificate.epsilon == pytest.approx(total.get_epsilon_for_delta(certificate.delta), abs=1e-3)
    assert 9.9 <= certificate.epsilon <= 10
    assert record.spent_total["epsilon"] == pytest.approx(certificate.epsilon, abs=1e-3)


def test_labels_follow_from_what_was_used(record):
    store = where().store()
    kinds = {manifest["kind"]: manifest["label"] for _, manifest in store.ancestry(record.samples_artifact)}
    assert record.label == Label.DP
    assert kinds["TunedModel"] == kinds["ClassVotes"] == kinds["Samples"] == Label.DP
    assert {kinds[kind] for kind in ("PublicImages", "PublicModel", "FeatureExtractor", "Trajectories")} == {
        Label.PUBLIC
    }
    everything = [store.manifest(path.name) for path in (store.root / "objects").iterdir()]
    baseline = [m for m in everything if m["kind"] == "TunedModel" and m["label"] == Label.INTERNAL]
    judged = [m for m in everything if m["kind"] == "Judgement"]
    assert baseline and judged and {m["label"] for m in judged} == {Label.INTERNAL}


def test_scores_stay_out_of_what_may_leave(record):
    public, internal = Path(record.report).read_text(), Path(record.internal_report).read_text()
    assert "Scores against private images" in internal and '<body class="INTERNAL">' in internal
    words = re.sub(r"data:image/[^\"']+", "", public)  # any three letters may stand in a picture's base64
    assert "Scores against private images" not in words and "CNN" not in words and '<body class="DP">' in words
    client = where().tracker().client()
    for name, wanted in ((SHAREABLE, {"PUBLIC", "DP"}), (INTERNAL, {"INTERNAL"})):
        runs = client.search_runs([client.get_experiment_by_name(name).experiment_id])
        assert {run.data.tags["label"] for run in runs} == wanted
        assert any(run.data.tags.get("mlflow.parentRunId") == record.tracking[min(wanted)] for run in runs)


def test_what_may_be_shown_of_a_run_is_complete_and_holds_nothing_internal(record):
    runs, tracker = shared(), where().tracker()
    parent = runs[record.tracking["DP"]]
    client = tracker.client()
    pictures = {"samples.png", "nearest-public.png", "rehearsal.png", "training-curves.png", "privacy-curve.png"}
    assert {"report.html", "tables", "model", *pictures} == {
        file.path for file in client.list_artifacts(parent.info.run_id)
    }
    assert (
        parent.data.tags["ledger_entries"] == ",".join(map(str, record.entries)) and parent.data.params["seed"] == "0"
    )
    inputs = {one.dataset.name: one.dataset.digest for one in parent.inputs.dataset_inputs}
    assert inputs["digits"] == "withheld" and len(inputs["public images"]) == 32
    stages = {run.info.run_name: run for run in runs.values() if run.data.tags.get("mlflow.parentRunId")}
    assert stages["DP fine-tuning"].data.metrics["steps"] == 4 and "loss" not in stages["DP fine-tuning"].data.metrics
    assert stages["DP fine-tuning"].data.tags["method"] == "rapid"
    assert [point.step for point in client.get_metric_history(stages["public pretraining"].info.run_id, "loss")][
        -1
    ] == 20
    version = client.get_model_version_by_alias("digits-rapid", "released")
    assert float(version.tags["epsilon"]) == record.certificate.epsilon and version.run_id == parent.info.run_id
    bundle = {file.path for file in client.list_artifacts(parent.info.run_id, "model")}
    assert "model/MLmodel" in bundle and version.description == record.certificate.sentence()
    assert not [path for path in tracker.files.rglob("model/**/*") if path.suffix in {".pkl", ".pickle", ".pt"}]


def test_again_everything_comes_from_the_cache_and_nothing_is_spent(record):
    again = synthesize(method="rapid", preset="digits", changes=TINY)
    assert all(stage.cached for stage in again.stages) and len(again.stages) == len(record.stages)
    assert again.spent_total == record.spent_total and again.samples_artifact == record.samples_artifact
    with where().ledger() as ledger:
        kinds = [entry.kind for entry in ledger.entries() if entry.body.get("run") == again.run]
        assert kinds.count("reuse") >= 2 and "reserve" not in kinds
        assert ledger.verify() == [] and ledger.replay() == []


def test_a_damaged_artifact_is_made_again(record):
    store = where().store()
    base = next(d for d, m in store.ancestry(record.samples_artifact) if m["kind"] == "Trajectories")
    victim = store.root / "objects" / base / "tensors.safetensors"
    victim.write_bytes(victim.read_bytes()[:-7] + b"garbage")
    again = synthesize(method="rapid", preset="digits", changes=TINY)
    remade = [stage.name for stage in again.stages if not stage.cached]
    assert remade == ["build-knowledge-base"] and again.spent_total == record.spent_total


def test_an_internal_set_is_not_published_and_says_why(record, tmp_path):
    from artifacts.publish import publish

    store = where().store()
    internal = next(
        path.name
        for path in (store.root / "objects").iterdir()
        if (m := store.manifest(path.name))["kind"] == "Samples" and m["label"] == Label.INTERNAL
    )
    tainted = record.model_copy(update={"samples_artifact": internal, "certificate": None, "label": "INTERNAL"})
    with pytest.raises(Refused, match=r"INTERNAL, because of TunedModel [0-9a-f]{12}: they must not"):
        publish(store, tainted, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_spent_budget_stops_the_run_before_the_door_opens(record):
    with where().ledger() as ledger:
        total = ledger.total("digits")
        ledger.set_budget("digits", total.epsilon + 0.5, total.delta)
    store = where().store()
    retained = {path.name for path in (store.root / "objects").iterdir()}
    with pytest.raises(Refused, match=r"epsilon 0\.5 of .* left .* with these settings .* would fit"):
        synthesize(method="rapid", preset="digits", changes=[*TINY, "seed=7"])
    made = {path.name for path in (store.root / "objects").iterdir()} - retained
    assert [store.manifest(name)["kind"] for name in made] == ["PublicImages"], "nothing is trained"
    again = synthesize(method="rapid", preset="digits", changes=[*TINY, "evaluation.images=40"])
    assert [
        stage.name for stage in again.stages if not stage.cached and "fine-tune" not in stage.name
    ]  # looks are free
    assert again.samples_artifact == record.samples_artifact and again.spent_total["epsilon"] == total.epsilon
    with where().ledger() as ledger:
        assert ledger.total("digits").epsilon <= total.epsilon + 0.5
        ledger.set_budget("digits", 1000.0, total.delta)


def test_the_same_seed_gives_the_same_public_half_and_other_noise(record, no_servers):
    def digests(store: Store, samples: str) -> dict[str, str]:
        return {manifest["kind"]: digest for digest, manifest in store.ancestry(samples)}

    first = digests(Store.open(Path(record.report).parents[2] / "store"), record.samples_artifact)
    again = synthesize.fn(method="rapid", preset="digits", changes=TINY)
    assert not any(stage.cached for stage in again.stages)
    second = digests(where().store(), again.samples_artifact)
    public = {"PublicImages", "PublicModel", "FeatureExtractor", "Trajectories"}
    assert {kind for kind in first if first[kind] == second[kind]} == public
    assert set(first) - public == {"ClassVotes", "TunedModel", "Samples"}


def test_an_audit_spends_nothing_and_stays_beside_the_run(record):
    with where().ledger() as ledger:
        before = ledger.total("digits")
    audited = audit_run(record.run, canaries=40)
    folder = Path(record.report).parent
    result = audited.audit
    assert result.bound.canaries == 40 and result.bound.epsilon < result.certificate and not result.refuted
    assert result.certificate == pytest.approx(record.certificate.epsilon, rel=1e-6)
    assert len([one for one in result.memberships if one.t]) >= 3 and result.copies == record.copies
    assert "INTERNAL" in (folder / "audit-internal.html").read_text()
    assert Image.open(folder / "audit-internal.png").width > 800
    assert load_record(where().runs, record.run).audit == result
    with where().ledger() as ledger:
        assert ledger.total("digits") == before
        looks = [e.body["stage"] for e in ledger.entries() if e.kind == "look" and e.body["run"] == record.run]
        assert {"votes", "fine_tuning", "audit"} <= set(looks)
    store = where().store()
    retained = {path.name: store.manifest(path.name) for path in (store.root / "objects").iterdir()}
    coins = {digest for digest, manifest in retained.items() if manifest["kind"] == "CanaryImages"}
    touched = [m for m in retained.values() if coins & set(m["parents"])]
    assert {m["kind"] for m in touched} == {"ClassVotes", "TunedModel", "Findings"}
    assert {m["label"] for m in touched} == {Label.INTERNAL}


def test_an_audit_that_makes_no_sense_is_told(record):
    with pytest.raises(BadInput, match="1 canaries: at delta .* an audit takes 2 to"):
        audit_run(record.run, canaries=1)
    with pytest.raises(BadInput, match=r"only machine\.\* may differ"):
        audit_run(record.run, changes=["fine_tuning.steps=1"])
    with pytest.raises(BadInput, match="'nobody' is not in"):
        audit_run("nobody")


def command(home: Path, changes: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command line of a run with a home of its own, and the environment that it needs."""
    environment = {**os.environ, "SFUMATO_HOME": str(home), "PREFECT_HOME": str(home / "prefect")}
    environment["PREFECT_LOCAL_STORAGE_PATH"] = str(home / "results")
    settings = (part for change in changes for part in ("--set", change))
    return [sys.executable, "-m", "tests.quick_judges", "run", "rapid", *settings], environment


@pytest.mark.slow
def test_two_identical_runs_at_once_pay_once(tmp_path):
    home = tmp_path / "home"
    line, environment = command(home, [*TINY, "evaluation.baseline=false"])
    pipes = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(line, **pipes) for _ in range(2)]
    for run in both:
        _, errors = run.communicate(timeout=2 * PATIENCE_SECONDS)
        assert run.returncode == 0, errors[-2000:]
    with Ledger(f"sqlite:///{home / 'ledger.db'}", lambda: "", KEYS) as ledger:
        kinds = [entry.kind for entry in ledger.entries()]
        assert kinds.count("reserve") == kinds.count("commit") == 2 and kinds.count("reuse") >= 2
        assert ledger.verify() == []


def in_the_middle(line: list[str], environment: dict[str, str], home: Path) -> tuple[subprocess.Popen, Path]:
    """A run that has taken private steps, in a process group of its own; and the file with what it has said."""
    stated = home.parent / "said"
    with stated.open("w") as out:
        run = subprocess.Popen(line, env=environment, stdout=out, stderr=out, start_new_session=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        assert time.monotonic() < deadline and run.poll() is None, stated.read_text()[-2000:]
        if (home / "ledger.db").exists():
            with Ledger(f"sqlite:///{home / 'ledger.db'}", lambda: "", KEYS) as ledger:
                entries = ledger.entries()
            opened = {e.body["reserve"] for e in entries if e.kind == "open"}
            begun = [e.body["reserve"] for e in entries if e.kind == "progress"]
            if len(begun) > 2 and set(begun) <= opened:
                return run, stated
        time.sleep(0.2)


def wait_for_last_of(group: int) -> None:
    """Until no process of a group is left: the server of a run that was killed must go by itself."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.2)
        pytest.fail("its server is still there")


@pytest.mark.slow
@pytest.mark.parametrize("requested", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_a_signal_to_all_its_processes_ends_a_run_within_moments_with_its_state_kept(tmp_path, requested):
    """A terminal's Ctrl-C, and what service managers and torchrun send: both reach the run and all that it has started."""
    home = tmp_path / "home"
    slow = [c for c in TINY if "fine_tuning.steps" not in c] + ["fine_tuning.steps=400", "evaluation.baseline=false"]
    run, stated = in_the_middle(*command(home, slow), home)
    os.killpg(run.pid, requested)
    assert run.wait(120) == 128 + requested, stated.read_text()[-2000:]
    reported = stated.read_text()
    assert reported.count("sfumato: ") == 1 and "stopped" in reported and "rror" not in reported, reported
    assert list(home.glob("states/*")), "the same command goes on from there"


def test_killed_in_the_middle_the_next_run_goes_on_and_pays_for_what_was_lost_again(tmp_path):
    """kill -9 while private images are being trained on; then the same command again."""
    home = tmp_path / "home"
    slow = [c for c in TINY if "fine_tuning.steps" not in c] + ["fine_tuning.steps=400", "evaluation.baseline=false"]
    line, environment = command(home, slow)
    first, _ = in_the_middle(line, environment, home)
    first.kill()
    first.wait()
    wait_for_last_of(first.pid)
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr[-2000:]
    with Ledger(f"sqlite:///{home / 'ledger.db'}", lambda: "", KEYS) as ledger:
        spends = [events[0].kind for _, events in ledger.spends("digits")]
        assert sorted(spends) == ["discrete_histogram", "subsampled_gaussian", "subsampled_gaussian"]
        tuned = [e for e in ledger.entries() if e.kind == "reserve" and e.body["stage"] == "fine_tuning"]
        first, second = (
            e for e in ledger.entries() if e.kind == "commit" and e.body["reserve"] in [t.seq for t in tuned]
        )
        assert first.body["settled"] and "settled" not in second.body
        # All steps are paid for, and of the stretch in which the process died no more than its twentieth twice.
        paid = sum(entry.body["events"][0]["steps"] for entry in (first, second))
        assert 400 <= paid <= 420
        assert ledger.verify() == [] and ledger.replay() == []
    record = json.loads(sorted((home / "runs").glob("*/run.json"))[-1].read_text())
    assert {entry.seq for entry in tuned} <= set(record["entries"]) and 9.9 < record["certificate"]["epsilon"] < 10.4
    assert record["spent_total"]["epsilon"] == pytest.approx(record["certificate"]["epsilon"])
    assert list((home / "states").iterdir()) == []
