"""The number of the next edition: it goes on after what was published, and after what never will be."""

import pytest

from artifacts.record import save_record
from sfumato.privacy.ledger.decisions import Decision
from tasks.editions import is_over, next_edition
from tasks.planning import plan_run
from tasks.runtime.environment import configure
from tests.examples import home_at, make_record

QUICK = ["fine_tuning.steps=1", "fine_tuning.sample_rate=1"]


@pytest.fixture
def place(tmp_path):
    with home_at(tmp_path / "home"):
        yield configure()


def decided(what):
    return Decision(run="r", digests={}, decision=what, name="A", role="officer", reason="r", licence="", time="t")


@pytest.mark.parametrize(
    ("changes", "over"),
    [
        ({"published": ""}, False),
        ({"published": "/out"}, True),
        ({"published": "", "decisions": (decided("refused"),)}, True),
        ({"published": "", "decisions": (decided("refused"), decided("approved"))}, False),
    ],
    ids=["waiting", "published", "refused", "approved after all"],
)
def test_a_schedule_draws_the_next_edition_once_this_one_is_over(place, changes, over):
    """Else every Monday would draw again, from the cache, what a person has refused."""
    run = plan_run("rapid", changes=QUICK)
    folder = place.runs / "one"
    folder.mkdir()
    made = make_record(folder)
    settings = {**made.settings, "generation": {**made.settings["generation"], "edition": 4}}
    settings["data"] = {**settings["data"], "name": run.settings.data.name}
    record = made.model_copy(update={"settings": settings, "method": run.method, "copies": None, **changes})
    save_record(folder, record)
    assert is_over(record) == over
    with next_edition(run) as planned:
        assert planned.settings.generation.edition == (5 if over else 1)
