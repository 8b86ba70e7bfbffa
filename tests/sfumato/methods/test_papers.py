"""The list of papers: what each says about privacy, in one length and one tone."""

import inspect
import re

import pytest

from sfumato.methods import METHODS, dp_sgd, promise
from sfumato.privacy.accounting.accountant import dp_sgd_epsilon
from tests.vectors import facts

every_paper = pytest.mark.parametrize("name", METHODS)


def test_a_method_has_the_name_of_its_file():
    assert "rapid" in METHODS and "nosuch" not in METHODS
    assert [name.replace("-", "_") for name in METHODS] == [m.module.split(".")[-1] for m in METHODS.values()]


@every_paper
def test_a_promise_is_a_short_paragraph(name):
    stated = METHODS[name].promise
    assert stated == promise(name), "as it stands in the file, which is not imported to be asked"
    assert 60 <= len(stated.split()) <= 140
    assert stated.startswith(("The paper", "No paper")) and "claim" in stated and "certif" in stated
    assert "\n" not in stated and "  " not in stated and stated.endswith(".")


@every_paper
def test_every_paper_claims_with_its_source(name):
    claim = METHODS[name].claim
    assert re.search(r"[A-Z]\w+( et al\.)? 20\d\d", claim.__doc__)
    assert all(
        parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in inspect.signature(claim).parameters.values()
    )


def test_the_numbers_of_the_baselines_promise():
    inputs, expected, near = facts("000-P3")
    run = inputs["sigma"], inputs["q"], inputs["steps"], inputs["delta"]
    pld, rdp, clt = (dp_sgd_epsilon(*run, accountant=name) for name in ("pld", "rdp", "clt"))
    assert pld == near(expected["pld_add_remove"]) and clt < pld < rdp == dp_sgd.claim(*run).epsilon
    rare = [dp_sgd_epsilon(0.5, 1e-4, 10_000, 1e-5, accountant=name) for name in ("pld", "prv", "clt")]
    assert rare[0] == pytest.approx(rare[1], rel=0.01), "two accountants agree that the limit formula is far off"
    stated = [f"{pld:.1f} by", f"{rdp:.1f} by RDP", f"{clt:.1f} for", f"{rare[2]:.2f} for {rare[0]:.2f}"]
    stated += [f"{expected['pld_replace_one']:.1f} for"]
    assert [number for number in stated if number not in dp_sgd.PROMISE] == []
