"""What a published run leaves in MLflow: one version of a model that may leave, and runs that ended, with their commit."""

from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from artifacts.certify import spends_of
from artifacts.tracking import COMMIT, INTERNAL, SHAREABLE, USER
from sfumato import mlflow_model
from sfumato.errors import Refused
from tasks import release
from tasks.runtime.environment import where
from tests.flows.test_own_data import TINY, run

TINY_RUN = [*TINY, "data.share=0.1395", "method.extractor.steps=5"]


@pytest.mark.usefixtures("quick_judges")
def test_publishing_registers_a_bundle_and_ends_the_runs(no_prefect, tmp_path):
    record = run("rapid", TINY_RUN, str(tmp_path / "out"))
    client = where().tracker().client()
    version = client.get_model_version_by_alias("digits-rapid", "released")
    assert (
        version.tags["label"] == "DP" and version.tags["run"] == record.run and version.run_id == record.tracking["DP"]
    )
    assert version.description == record.certificate.sentence()
    place = Path(client.download_artifacts(version.run_id, "model"))
    assert {path.name for path in place.iterdir()} == {"MLmodel", "bundle", "input_example.json", "requirements.txt"}
    assert list((place / "bundle" / "data").glob("*.parquet")), "one file of images, not one each"
    assert mlflow_model._load_pyfunc(str(place / "bundle")).model.certificate == record.certificate
    shown, inside = (client.get_run(record.tracking[label]) for label in ("DP", "INTERNAL"))
    assert shown.info.status == inside.info.status == "FINISHED"
    assert COMMIT in shown.data.tags and shown.data.tags[COMMIT] == inside.data.tags[COMMIT]
    assert USER not in shown.data.tags and USER in inside.data.tags, "the account stays inside"
    assert shown.info.end_time - shown.info.start_time > 1000 * max(stage.seconds for stage in record.stages) * 0.5
    names = [{one.dataset.name for one in one_run.inputs.dataset_inputs} for one_run in (shown, inside)]
    assert names == [{"public images", "digits"}, {"glyphs", "digits"}], "where public images lie is not shown"
    everything = client.search_runs([shown.info.experiment_id, inside.info.experiment_id])
    assert {one.info.status for one in everything} == {"FINISHED"}


@pytest.mark.usefixtures("quick_judges")
def test_an_audit_that_refutes_a_run_while_it_is_published_takes_its_model_back(no_prefect, tmp_path, monkeypatch):
    write = release.publish

    def meanwhile(store, record, to, *rest):
        of_run = {"artifact": record.samples_artifact, "finding": record.samples_artifact, "run": record.run}
        with where().ledger() as ledger:
            spends = spends_of(store, ledger, record.samples_artifact)
            ledger.check("digits", what="audit", passed=False, code_version="1", spends=spends, **of_run)
        return write(store, record, to, *rest)

    monkeypatch.setattr(release, "publish", meanwhile)
    with pytest.raises(Refused, match="refutes its promise.* while the images left: take them back from .*/out"):
        run("rapid", TINY_RUN, str(tmp_path / "out"))
    with pytest.raises(MlflowException):
        where().tracker().client().get_model_version_by_alias("digits-rapid", "released")


def test_a_refused_run_is_failed_and_says_why_inside_alone(no_prefect):
    with where().ledger() as ledger:
        ledger.set_budget("digits", 1.0, 1e-5)
    with pytest.raises(Refused):
        run("rapid", TINY_RUN)
    client = where().tracker().client()
    reasons = {}
    for name in (SHAREABLE, INTERNAL):
        (parent,) = (
            one
            for one in client.search_runs([client.get_experiment_by_name(name).experiment_id])
            if "mlflow.parentRunId" not in one.data.tags
        )
        assert parent.info.status == "FAILED"
        reasons[name] = parent.data.tags["reason"]
    assert (
        reasons[SHAREABLE] == "Refused" and reasons[INTERNAL].startswith("Refused: ") and "budget" in reasons[INTERNAL]
    )
