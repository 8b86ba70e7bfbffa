"""The end of an audit: its page and its place in the report, and a promise that it refutes is taken back."""

import numpy as np
import pytest
import torch

from artifacts import serialization
from artifacts.record import load_record, save_record
from artifacts.references import Copies, Findings
from artifacts.tracking import Tracker
from sfumato.evaluation.copies import check_copies
from sfumato.evaluation.membership import membership
from sfumato.privacy.auditing.audit import epsilon_lower_bound
from tasks.audit import conclude
from tasks.runtime.environment import configure
from tests.examples import home_at, paid_record


@pytest.fixture
def place(tmp_path):
    with home_at(tmp_path / "home"):
        yield configure()


@pytest.fixture
def reported(monkeypatch) -> list[tuple[str, str]]:
    """What MLflow would have been told."""
    calls = []
    monkeypatch.setattr(Tracker, "log", lambda self, name, **facts: calls.append((facts["label"], facts["run"])))
    monkeypatch.setattr(Tracker, "withdraw", lambda self, name, run: calls.append((name, run)))
    return calls


@pytest.mark.parametrize("leaks", [False, True])
def test_an_audit_joins_the_report_and_a_refuted_model_is_released_no_longer(place, reported, leaks):
    folder = place.runs / "20260101-120000-rapid-scans-eps10"
    folder.mkdir()
    record, store = paid_record(place, folder), place.store()
    scores = np.arange(400) if leaks else np.random.default_rng(0).random(400)
    bound = epsilon_lower_bound(scores, np.arange(400) >= 200, delta=record.plan.privacy.delta)
    guesses = membership("canaries", scores[200:].astype(float), scores[:200].astype(float))
    check, to_train, to_test = check_copies(*(torch.randn(n, 1, 4, 4) for n in (50, 40, 30)))
    with store.writing() as draft:
        result = {"bound": bound, "canary_attack": guesses}
        serialization.save(
            draft, {}, {key: one.model_dump(mode="json") for key, one in result.items()} | {"memberships": []}
        )
        findings = store.keep(Findings, draft, entries={"7": "INTERNAL"})
    with store.writing() as draft:
        distances = {"to_train": torch.as_tensor(to_train), "to_test": torch.as_tensor(to_test)}
        serialization.save(draft, distances, check.model_dump(mode="json"))
        copies = store.keep(Copies, draft, entries={"8": "INTERNAL"})
    save_record(folder, record.model_copy(update={"published": "/out"}))  # by somebody, while the audit went on
    record = conclude(record, findings, copies)
    assert record.published == "/out", "an audit notes what it found, and forgets nothing"
    assert record.audit.refuted == leaks and load_record(place.runs) == record
    told_of = (folder / "report-internal.html").read_text(encoding="utf-8")
    for text in (told_of, (folder / "audit-internal.html").read_text(encoding="utf-8")):
        assert '<body class="INTERNAL">' in text and ("refute what is promised" in text) == leaks
    assert "canaries" not in (folder / "report.html").read_text(encoding="utf-8")
    assert (("scans-rapid", "aaa") in reported) == leaks and reported[-1] == ("INTERNAL", "bbb")
