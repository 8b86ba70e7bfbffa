"""One plan for a run: what changes neither work nor price is changed in it without planning again."""

import pytest

from artifacts.witness import note_beside
from sfumato.preflight import plan_for
from sfumato.privacy.accounting.events import Gaussian
from tasks.planning import plan_run
from tasks.runtime.environment import where
from tests.examples import home_at, write_classes

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


def test_a_set_that_another_ledger_counts_too_is_said_on_screen_and_in_the_card(tmp_path):
    """Two homes are two ledgers, and neither budget holds for both."""
    scans, textures = (
        write_classes(tmp_path / name, {"ill": 40, "well": 40}, seed=at)
        for at, name in enumerate(("scans", "textures"))
    )
    changes = [f"data.private={scans}", f"data.public={textures}", "recipe.minutes=2"]

    def warned():
        run = plan_run("moments", changes=changes)
        assert set(run.plan.warnings) <= set(run.warnings)
        return [warning for warning in run.plan.warnings if "what they cost there" in warning]

    assert not warned()

    def noted() -> str:
        with where().ledger() as ledger:
            ledger.set_budget("scans", 5.0, 1e-5)
            head = ledger.signed_head()
        note_beside(str(scans), head)
        return head["ledger"][:8]

    one = noted()
    assert not warned(), "its own head"
    with home_at(tmp_path / "other"):
        (warning,) = warned()
        other = noted()
    assert warning.startswith(f"another ledger ({one}) has counted the images of 'scans' too")
    assert str(tmp_path) not in warning
    with home_at(tmp_path / "third"):
        (warning,) = warned()
    assert warning.startswith(f"other ledgers ({' and '.join(sorted([one, other]))}) have counted")


def test_spends_for_another_unit_are_said_where_one_total_holds_both(tmp_path):
    scans, textures = (
        write_classes(tmp_path / name, {"ill": 40, "well": 40}, seed=at)
        for at, name in enumerate(("scans", "textures"))
    )
    changes = [f"data.private={scans}", f"data.public={textures}", "recipe.minutes=2"]
    for unit, words in (("", []), ("patient", ["protect one patient, and this run protects one image"])):
        with where().ledger() as ledger:
            ledger.reserve(
                "scans",
                "d1gest",
                [Gaussian(noise_multiplier=9.0)],
                "add_remove",
                1e-5,
                stage="a",
                purpose="a test",
                run="run-1",
                code_version="1",
                images="any",
                unit=unit,
            )
        warnings = plan_run("moments", changes=changes).plan.warnings
        assert [word for word in words if any(word in warning for warning in warnings)] == words
        assert words or not any("protect one" in warning for warning in warnings)
