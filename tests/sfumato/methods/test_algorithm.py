"""A new method is one file: the one on the page about adding a method works as it stands."""

import importlib.util
import itertools
import math
import re
import sys
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
import torch

from sfumato.methods import FILES, METHODS
from sfumato.methods.algorithm import Algorithm, begun, design
from sfumato.methods.plan import STAGE_RATES, STAGE_TUNING, UNCLAIMED
from sfumato.privacy.accounting import accountant
from sfumato.privacy.ledger.ledger import Ledger
from tests.spends import KEYS

PAGE = Path(__file__).parents[3] / "docs" / "add-a-method.md"
NAME = "late-times"


@pytest.fixture
def late_times(tmp_path, monkeypatch):
    """The method of the page, as its file in the list of methods."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "late_times.py").write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("sfumato.methods.late_times", tmp_path / "late_times.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(FILES, NAME, "late_times")
    return METHODS[NAME]


def test_the_method_of_the_page_plans_pays_and_draws(late_times, world, access_to, tmp_path):
    tiny = world("dp-sgd")
    settings = tiny.settings.model_copy(update={"method": late_times.section(boundary=0.3)})
    plan = late_times.plan(settings, tiny.facts)
    priced = accountant.epsilon([spend.event for spend in plan.spends], plan.privacy.delta, plan.privacy.relation)
    assert plan.method == NAME and plan.certificate.epsilon == pytest.approx(priced, rel=1e-9)
    own = replace(tiny, settings=settings, plan=plan)
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks):02d}:00Z", KEYS) as ledger:
        parts, entries = own.pay(access_to(ledger))
        assert set(entries.values()) == {"DP"} and ledger.total("digits").epsilon == pytest.approx(priced, rel=1e-6)
    seen = late_times.corrupt(settings, parts)(torch.zeros(9, 1, 8, 8), torch.arange(9), torch.Generator())
    assert seen.t.max() <= 15 == round(0.3 * settings.schedule.timesteps)
    drawn = late_times.draw(settings, parts, torch.arange(4), torch.Generator().manual_seed(0))
    assert drawn.shape == (4, 1, 8, 8) and drawn.isfinite().all()
    assert design(late_times, settings, tiny.parts.shape, tiny.facts).network == settings.network
    assert begun(late_times, settings, tiny.parts)[1].classes == len(tiny.facts.classes)


def test_the_method_of_the_page_bears_several_rates_and_no_noise(late_times, world):
    tiny = world("dp-sgd")
    settings = tiny.settings.model_copy(update={"method": late_times.section()})
    three = settings.fine_tuning.model_copy(update={"rates": (0.5, 1.0, 2.0)})
    plan = late_times.plan(settings.model_copy(update={"fine_tuning": three}), tiny.facts)
    assert len(plan.events(STAGE_TUNING)) == 3 and len(plan.events(STAGE_RATES)) == 1
    free = settings.privacy.model_copy(update={"epsilon": math.inf, "reason": "the comparison without privacy"})
    assert late_times.plan(settings.model_copy(update={"privacy": free}), tiny.facts).claim == UNCLAIMED


def test_the_promise_of_the_page_is_as_the_rules_for_promises_have_it(late_times):
    stated = late_times.promise
    assert (
        60 <= len(stated.split()) <= 140 and stated.startswith("No paper") and "claim" in stated and "certif" in stated
    )


def test_a_method_is_a_frozen_value_and_what_it_does_not_name_it_cannot_do(late_times):
    assert isinstance(late_times, Algorithm)
    absent = {field.name for field in fields(late_times) if getattr(late_times, field.name) is None}
    assert absent == {
        "loss",
        "labels",
        "ballot",
        "distinct",
        "draw_privately",
        "finish",
        "worst_case",
        "blueprint",
        "embeds",
        "evolves",
        "keeps_points",
        "partition",
        "walk",
        "query",
        "resume",
        "retrieves",
    }
    with pytest.raises(FrozenInstanceError):
        late_times.labels = print
