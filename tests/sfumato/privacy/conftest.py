"""Both databases that a ledger can be kept in: a file, and a server."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Database:
    """A place for ledgers that a test can make unreachable for a while."""

    kind: str
    fresh: Callable[[], str]
    """The URL of a database in which there is nothing yet."""
    away: Callable[[], None]
    back: Callable[[], None]


def sqlite_in(folder: Path) -> Database:
    """Files in a folder; away while the folder has another name."""
    place, elsewhere, numbers = folder / "ledgers", folder / "unplugged", itertools.count(1)
    return Database(
        "sqlite",
        fresh=lambda: f"sqlite:///{place / f'{next(numbers)}.db'}",
        away=lambda: place.rename(elsewhere),
        back=lambda: elsewhere.rename(place),
    )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request, tmp_path) -> Database:
    """A test that asks for it runs once on each."""
    if request.param == "sqlite":
        return sqlite_in(tmp_path)
    server = request.getfixturevalue("postgres_server")
    server.start()  # a test that failed may have left it stopped
    return Database("postgres", fresh=server.fresh, away=server.stop, back=server.start)


@pytest.fixture
def url(database) -> str:
    """A database with nothing in it."""
    return database.fresh()
