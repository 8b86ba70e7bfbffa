"""Pieces of a run side by side: really at once, each with its entry in the one ledger, and the same as one after another."""

import importlib.util
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect import flow

from artifacts.labels import Label
from flows.private_half import pay, terms
from flows.public_half import encode, load_images, prepare
from sfumato.config import Machine
from sfumato.errors import BadInput
from sfumato.preflight import plan_for, preflight, private_set
from sfumato.settings import resolve
from tasks.runtime import environment as places
from tasks.runtime import parallel as module
from tasks.runtime.environment import configure, where
from tasks.runtime.parallel import CLUSTERS, among_others, check_books, side_by_side
from tasks.runtime.run import Journal
from tasks.terms import Order
from tests.examples import home_at

MEMBERS = [
    *(
        "data.share=0.1395",
        "data.glyphs_per_class=20",
        "network.width=16",
        "pretraining.steps=5",
        "generation.steps=20",
    ),
    *("method.members=2", "method.key=two", "method.training.steps=3"),
]
PATIENCE_SECONDS = 120
MEETING = threading.Barrier(2, timeout=PATIENCE_SECONDS)


@pytest.fixture
def home(tmp_path):
    with home_at(tmp_path / "home"):
        configure()
        yield tmp_path


def meet(number):
    """Returns when the other piece is at work too."""
    MEETING.wait()
    return number


def look(number, count, folder):
    """Wait until all pieces are at work, each in a process of its own, and write a line into the ledger."""
    (folder / str(os.getpid())).touch()
    until = time.monotonic() + PATIENCE_SECONDS
    while len(list(folder.iterdir())) < count and time.monotonic() < until:
        time.sleep(0.05)
    with where().ledger() as ledger:
        ledger.look("digits", "d" * 64, f"piece {number}", stage="check", run="run", code_version="0")
    return number, os.getpid()


def fail(number):
    """The second piece meets a person's mistake."""
    if number == 1:
        raise BadInput("class 'well' has no image: add some")
    return number


def die(folder):
    """As if memory had run out; leaves a file for each beginning."""
    (folder / str(os.getpid())).touch()
    os._exit(9)


def test_two_pieces_are_at_work_at_once_and_come_back_in_order(prefect_server, home):
    machine = Machine(runner="threads", workers=2)
    assert side_by_side("pieces", machine, [partial(meet, n) for n in range(4)]) == [0, 1, 2, 3]


def test_a_mistake_in_one_piece_is_said_as_it_is(prefect_server, home):
    with pytest.raises(BadInput, match="^class 'well' has no image: add some$"):
        side_by_side("pieces", Machine(runner="threads", workers=1), [partial(fail, n) for n in range(3)])


@pytest.mark.slow
@pytest.mark.parametrize("runner", CLUSTERS)
def test_two_workers_of_a_cluster_write_into_the_ledger_of_the_run(prefect_server, home, runner):
    if importlib.util.find_spec(f"prefect_{runner}") is None:
        pytest.skip(f"{runner} is missing: pip install 'sfumato[scale]'")
    (folder := home / "meeting").mkdir()
    pieces = [partial(look, number, 2, folder) for number in range(2)]
    result = side_by_side("pieces", Machine(runner=runner, workers=2), pieces)
    assert [number for number, _ in result] == [0, 1]
    assert len({pid for _, pid in result} - {os.getpid()}) == 2
    with where().ledger() as ledger:
        assert {entry.body["reason"] for entry in ledger.entries()} == {"piece 0", "piece 1"}
        assert ledger.verify() == []


@flow
def train_members(runner):
    """The stages of an ensemble up to its members."""
    settings, facts, _ = preflight(resolve("dp-ensemble", changes=MEMBERS))
    plan, book = plan_for(settings, facts), Journal.begin(settings, private_set(settings))
    order = Order(private=book.private, terms=terms(plan), machine=Machine(runner=runner, workers=2))
    public = prepare(settings, plan, encode(settings, load_images(settings, plan, book), book), book)
    return pay(settings, plan, public, order, book).members, [s.cached for s in book.stages]


@pytest.mark.slow
def test_members_of_two_processes_are_those_of_one_and_each_look_is_written_once(prefect_server, home):
    apart, _ = train_members("processes")
    in_turn, cached = train_members("inline")
    assert all(cached) and len(cached) == 4, "the same keys, whoever trained them"
    assert [ref.digest for ref in in_turn] == [ref.digest for ref in apart] and len(set(apart)) == 2
    assert {ref.label for ref in apart} == {Label.INTERNAL}
    with where().ledger() as ledger:
        assert sorted(entry.body["reason"] for entry in ledger.entries()) == [
            "member 1 of 2 (INTERNAL)",
            "member 2 of 2 (INTERNAL)",
        ]
        assert ledger.verify() == []


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["processes", "dask"])
def test_a_worker_that_dies_is_said_in_one_line_and_its_piece_is_not_begun_again(prefect_server, home, runner):
    if runner == "dask" and importlib.util.find_spec("prefect_dask") is None:
        pytest.skip("dask is missing: pip install 'sfumato[scale]'")
    (folder := home / "begun").mkdir()
    with pytest.raises(BadInput, match=f"a worker of machine.runner='{runner}' died") as error:
        side_by_side("pieces", Machine(runner=runner, workers=1), [partial(die, folder)])
    assert "\n" not in str(error.value) and len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("runner", CLUSTERS)
def test_a_cluster_whose_program_is_missing_is_named(home, monkeypatch, runner):
    monkeypatch.setitem(sys.modules, f"prefect_{runner}", None)
    with pytest.raises(BadInput, match=f"machine.runner='{runner}' needs .*scale"):
        module._runner(Machine(runner=runner, workers=1))


def test_a_dask_scheduler_that_the_environment_names_is_used(home, monkeypatch):
    used = []
    stand_in = SimpleNamespace(DaskTaskRunner=lambda **how: used.append(how))
    monkeypatch.setitem(sys.modules, "prefect_dask", stand_in)
    monkeypatch.setitem(sys.modules, "dask", SimpleNamespace(config=SimpleNamespace(set=lambda _: None)))
    module._runner(Machine(runner="dask", workers=3))
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://host:8786")
    module._runner(Machine(runner="dask", workers=3))
    assert used[0]["cluster_kwargs"]["n_workers"] == 3 and used[1] == {"address": "tcp://host:8786"}


def test_a_worker_with_another_ledger_is_refused(home, monkeypatch):
    books = where().books
    check_books(books)
    assert str(Path(where().home)) not in repr(books)
    with monkeypatch.context() as patch:
        patch.setattr(places.platform, "node", lambda: "the-other-machine")
        with pytest.raises(BadInput, match="'the-other-machine' writes into another ledger"):
            check_books(books)
    monkeypatch.setenv("SFUMATO_LEDGER", "sqlite:////elsewhere/ledger.db")
    with pytest.raises(BadInput, match="SFUMATO_LEDGER"):
        check_books(books)


def test_a_server_for_the_ledger_may_be_reached_from_every_machine(home, monkeypatch):
    monkeypatch.setenv("SFUMATO_LEDGER", "postgresql+psycopg://keeper:secret@books/ledger")
    books = where().books
    monkeypatch.setattr(places.platform, "node", lambda: "the-other-machine")
    check_books(books)
    assert "secret" not in repr(books)


def test_a_piece_takes_its_share_of_the_cores_and_nothing_is_nested(monkeypatch):
    monkeypatch.setattr(module.os, "cpu_count", lambda: 8)
    assert among_others(Machine(runner="processes", workers=4)).threads == 2
    assert among_others(Machine(runner="threads")).threads == 1
    assert among_others(Machine(runner="processes", threads=3)).threads == 3
    assert among_others(Machine(runner="ray")).runner == "inline"


def test_torchrun_and_a_runner_do_not_go_together(home, monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match="machine.runner='threads' does not go with torchrun, which started 2 processes"):
        side_by_side("pieces", Machine(runner="threads"), [partial(meet, 0)])
