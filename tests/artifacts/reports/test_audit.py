"""The audit's report says INTERNAL, a verdict for each result and its edge; the picture is drawn whatever is missing."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from artifacts.reports.audit import (
    AUDIT_PICTURE,
    NOT_COVERED,
    attack_verdict,
    audit_page,
    bound_verdict,
    draw_audit,
    outcome,
    verdict,
)
from artifacts.reports.in_short import audit_note
from artifacts.reports.page import in_markdown
from sfumato.evaluation.copies import check_copies
from sfumato.evaluation.membership import COMBINED, CONTROL, NEAREST, membership
from sfumato.privacy.auditing.audit import epsilon_lower_bound
from sfumato.privacy.auditing.findings import Audit, Fit


def attack(name, gap, *, t=None, seed=0):
    rng = np.random.default_rng(seed)
    return membership(name, rng.normal(gap, 1, 100), rng.normal(0, 1, 80), t=t)


def distances(*, copies=0):
    records = torch.randn(70, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    images = torch.randn(50, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    images[:copies] = records[:copies]
    return check_copies(images, records[:40], records[40:])


def make_audit(*, leak=False, **changes):
    gap = 2.0 if leak else 0.0
    right = np.arange(200) >= 100
    scores = np.arange(200) if leak else np.random.default_rng(0).random(200)
    fields = {
        "run": "blue-heron", "certificate": 1.5, "claim": 1.25, "delta": 1e-5,
        "bound": epsilon_lower_bound(scores, right, delta=1e-5), "canary_attack": attack("canaries", gap),
        "memberships": (
            attack(COMBINED, gap), *(attack(f"loss, t = {t}", gap, t=t) for t in (2, 10, 40)),
            attack(CONTROL, 0, seed=1), attack(NEAREST, gap, seed=2),
        ),
        "copies": distances(copies=2 if leak else 0)[0],
    }  # fmt: skip
    return Audit(**(fields | changes))


def audit_text(audit):
    return in_markdown(audit_page(audit))


def row(text, name):
    """The cells of the one table row that begins with `name`."""
    (result,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in result.strip("|").split("|")]


def test_a_report_without_findings_says_so_and_how_little_that_is():
    audit = make_audit()
    text = audit_text(audit)
    assert text.startswith("# Audit of blue-heron\n\n> INTERNAL.") and "Do not share" in text
    assert "**Passed.**" in text and NOT_COVERED.blocks[0].text in text and "proves nothing" in text
    assert row(text, "certificate")[1] == "1.500" and row(text, "claim of the paper")[1] == "1.250"
    assert row(text, "canaries at best")[1] == f"{audit.bound.attainable:.3f}"
    assert row(text, COMBINED)[-1] == "no better than guessing"
    assert row(text, CONTROL)[-1] == "members and others are alike, as they should be"
    assert row(text, "published images") == ["published images", "50"]
    assert f"]({AUDIT_PICTURE})" in text and "could have refuted it" in text


def test_a_report_of_a_leak_names_bound_certificate_and_copies():
    audit = make_audit(leak=True)
    text = audit_text(audit)
    assert "**Not passed.**" in text and "therefore cannot hold" in text
    assert f"above {audit.bound.epsilon:.2f}, not 1.50" in verdict(audit)
    assert "2 published images repeat a training record" in verdict(audit)
    assert row(text, NEAREST)[-1] == "tells members better than guessing"
    assert row(text, "copies that no held-out record explains")[1] == "2"
    assert "Look at the pairs" in text


def test_one_copy_is_told_in_the_singular():
    audit = make_audit(copies=distances(copies=1)[0])
    assert verdict(audit).startswith("1 published image repeats a training record") and not audit.passed


def test_an_audit_that_could_not_have_refuted_the_certificate_admits_it():
    audit = make_audit(leak=True, certificate=10.0)
    assert "could not have refuted it" in bound_verdict(audit)
    assert f"no more than {audit.bound.attainable:.2f}" in bound_verdict(audit)
    assert "Nothing is promised" in bound_verdict(make_audit(certificate=None, claim=None))


FIT = Fit(
    what="DP-SGD", numbers=10**6, noise=1.0, noise_at_most=1.002, contribution=1.0, epsilon=1.48, priced=1.5, delta=1e-5
)
"""A white-box test that found nothing."""
FAULTY = FIT.model_copy(update={"epsilon": 3.9, "faults": ("the noise is at most 0.5021 of what the entry says",)})


def test_a_white_box_test_is_told_with_what_it_concludes_and_how_often_it_errs():
    text = audit_text(make_audit(fits=(FIT,)))
    assert (
        "1,000,000 noise numbers were 1.0000 times as large" in text
        and "No fault" in text
        and "once in 100,000 tests" in text
    )
    assert row(text, "DP-SGD, as its noise is")[1] == "1.480" and "**Passed.**" in text
    assert "1.48 at least is seen where 1.50 is priced" in audit_note(make_audit(fits=(FIT,)))


def test_a_fault_refutes_whatever_the_guesses_show(tmp_path):
    audit = make_audit(fits=(FAULTY,))
    assert audit.refuted and not audit.passed and not audit.outguessed
    for text in (audit_text(audit), verdict(audit), audit_note(audit), audit.reason):
        assert "DP-SGD: the noise is at most 0.5021" in text or "FAULT: the noise is at most 0.5021" in text
    draw_audit(tmp_path / "a.png", audit)
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_without_a_certificate_there_is_nothing_to_refute_and_that_is_said():
    audit = make_audit(certificate=None, bound=None, canary_attack=None)
    assert "nothing that an audit could refute" in bound_verdict(audit) and not audit.refuted
    assert "nothing that an audit could refute" in audit_note(audit)


def test_games_against_a_sampler_are_called_so_and_told_where_they_could_not_have_refuted():
    audit = make_audit(canary_attack=None, certificate=10.0)
    assert "games against the sampler" in bound_verdict(audit) and "could not have refuted" in bound_verdict(audit)
    assert "could not have refuted" in audit_note(audit)


def test_where_there_is_a_claim_alone_that_is_what_the_canaries_may_refute():
    assert "The claim of 9.00 is not refuted" in bound_verdict(make_audit(certificate=None, claim=9.0))
    broken = make_audit(leak=True, certificate=None, claim=1.5)
    assert broken.refuted and "above the claim of 1.50" in bound_verdict(broken) and "not 1.50" in verdict(broken)


def test_a_run_that_keeps_a_promise_too_large_to_protect_anyone_is_not_simply_passed():
    assert outcome(make_audit()) == "passed" and outcome(make_audit(leak=True)) == "not passed"
    lax = make_audit(leak=True, certificate=1e6, copies=distances(copies=0)[0])
    assert outcome(lax) == "passed, but attacks succeed" and "**Passed, but attacks succeed.**" in audit_text(lax)


def test_attacks_that_succeed_within_a_promise_are_still_told():
    audit = make_audit(leak=True, certificate=10.0, copies=distances()[0])
    assert audit.passed and f"Members can be told from others ({COMBINED}, {NEAREST}, canaries)" in verdict(audit)
    leaning = audit.copies.model_copy(update={"p_value": 1e-6})
    assert "lean towards training records (p = 1e-06)" in verdict(make_audit(copies=leaning))


def test_a_control_that_tells_members_takes_the_other_attacks_back():
    assert "discount" in attack_verdict(attack(CONTROL, 1))
    assert "discount" in attack_verdict(attack(CONTROL, -1))


def test_what_was_not_done_is_said_and_clears_nothing():
    text = audit_text(Audit(run="r", certificate=None, delta=1e-5))
    for words in (
        "nothing that an audit could refute",
        "No attack was run",
        "No copy check was done",
        "**Not passed.**",
    ):
        assert words in text
    assert row(text, "certificate")[1] == "none" and not re.search(r"\bnan\b", text)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"leak": True},
        {"certificate": None, "claim": None},
        {"claim": 8500.0, "certificate": 10.0, "leak": True},
        {"bound": None, "canary_attack": None},
        {"memberships": ()},
        {"copies": None},
    ],
)
def test_the_picture_is_drawn_whatever_is_missing(tmp_path, changes):
    _, to_train, to_test = distances(copies=2 if changes.get("leak") else 0)
    draw_audit(tmp_path / "a.png", make_audit(**changes), to_train, to_test)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 1000 and len(picture.convert("RGB").getcolors(1 << 20)) > 10


def test_the_picture_of_nothing_is_drawn_too(tmp_path):
    draw_audit(tmp_path / "a.png", Audit(run="r", certificate=None, delta=1e-5))
    assert (tmp_path / "a.png").stat().st_size > 5000
