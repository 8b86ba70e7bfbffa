"""What goes from a home, what stays, and when nothing does."""

import os
import time

import pytest

from artifacts.references import Judgement, Samples
from artifacts.states import load_state, save_state
from sfumato.errors import BadInput
from sfumato.privacy.accounting.events import Gaussian
from sfumato.resuming import TrainingState
from tasks.prune import DAY_SECONDS, leftovers, remove
from tasks.runtime.environment import configure
from tasks.runtime.heartbeat import sign
from tasks.runtime.locks import turn
from tests.examples import home_at, keep_samples, reserve


@pytest.fixture
def place(tmp_path):
    """A home in which a run has ended, one was killed, and one of a year ago was too."""
    with home_at(tmp_path / "home"):
        place = configure()
        store = place.store()
        with place.ledger() as ledger:
            paid = reserve(ledger, [Gaussian(noise_multiplier=5.0)])
        of_ledger = keep_samples(store, entries={paid.hash: "DP"})
        with store.writing() as folder:
            (folder / "facts.json").write_text("{}")
            unended = store.keep(Samples, folder)
        judged = keep_samples(store, parents=[of_ledger])
        with store.writing() as folder:
            (folder / "facts.json").write_text("{}")
            store.keep(Judgement, folder, parents=[judged], entries={paid.hash: "INTERNAL"})
        for name in ("ended", "died", "published"):
            (place.runs / name / "published" if name == "published" else place.runs / name).mkdir(parents=True)
            (place.runs / name / "rehearsal.png").write_bytes(b"x" * 100)
        (place.runs / "ended" / "run.json").write_text('{"samples_artifact": "' + of_ledger.digest + '"}')
        (store.root / ".new-draft").mkdir()
        (place.home / "locks").mkdir()
        for name in ("a-stage", sign("died")):
            (place.home / "locks" / name).touch()
        save_state(place.home / "states" / "key", TrainingState(3, {}, {}, ""))
        year_ago = time.time() - 365 * DAY_SECONDS
        for path in place.home.rglob("*"):
            os.utime(path, (year_ago, year_ago))
        (place.runs / "at work").mkdir()
        yield place, of_ledger, judged, unended


UNENDED = {"saved states of trainings": ["key"]}


def gone(place, days=30) -> dict[str, list[str]]:
    return {one.title: [path.name for path in one.paths] for one in leftovers(place, days) if one.paths}


def test_what_is_old_and_over_may_go_and_the_rest_stays(place):
    place, of_ledger, judged, unended = place
    expected = {
        "sets of images that were drawn to be judged": [judged.digest],
        "folders of runs that did not end": ["died"],
        "drafts of writers that were killed": [".new-draft"],
        "locks that nobody holds": ["a-stage"],
        **UNENDED,
        "results of runs that did not end": [unended.digest],
    }
    assert gone(place) == expected
    assert gone(place, days=400) == {}
    assert gone(place, days=0)["folders of runs that did not end"] == ["at work", "died"]
    sizes = {one.title: one.size for one in leftovers(place, 30)}
    assert sizes["folders of runs that did not end"] == 100 and sizes["locks that nobody holds"] == 0
    remove(place, [one for one in leftovers(place, 30) if not one.unended])
    assert gone(place) == {**UNENDED, "results of runs that did not end": [unended.digest]}
    assert load_state(place.home / "states" / "key").step == 3
    assert (place.home / "locks" / sign("died")).exists(), "`sfumato serve` tells by it that the run is gone"
    assert place.store().intact(of_ledger) and not place.store().intact(judged)
    assert {path.name for path in place.runs.iterdir()} == {"ended", "published", "at work"}
    with place.ledger() as ledger:
        assert ledger.verify() == [] and len(ledger.entries()) == 2


def test_nothing_is_removed_while_a_run_is_at_work_and_its_lock_stays(place):
    place, *_ = place
    before = sorted(place.home.rglob("*"))
    with turn(place.home, sign("at-work"), ""):
        os.utime(place.home / "locks" / sign("at-work"), (0, 0))
        assert gone(place)["locks that nobody holds"] == ["a-stage"]
        with pytest.raises(BadInput, match="a run is at work in .*: prune when it has ended"):
            remove(place, leftovers(place, 0))
    assert sorted(path for path in place.home.rglob("*") if path.name != sign("at-work")) == before
