"""One plan for a run: what changes neither work nor price is changed in it without planning again."""

import pytest

from sfumato.preflight import plan_for
from tasks.planning import plan_run
from tests.examples import home_at

QUICK = ["fine_tuning.steps=1", "fine_tuning.sample_rate=1"]


@pytest.fixture(autouse=True)
def home(tmp_path):
    with home_at(tmp_path / "home") as path:
        yield path


@pytest.mark.parametrize("method", ["dp-sgd", "rapid", "empirical-denoiser"])
def test_the_plan_of_another_edition_is_the_one_that_would_be_made_for_it(method):
    run = plan_run(method, changes=[*QUICK, "generation.images=100", "evaluation.images=100"])
    other = run.of_edition(3)
    assert other.settings.generation.edition == 3
    assert other.plan == plan_for(other.settings, other.plan.facts) != run.plan


def test_a_planned_run_says_what_a_person_gave_and_what_was_filled_in():
    run = plan_run("dp-sgd", changes=QUICK)
    assert (run.method, run.preset, run.changes) == ("dp-sgd", "digits", tuple(QUICK))
    assert isinstance(run.settings.privacy.delta, float) and run.settings.privacy == run.plan.privacy
