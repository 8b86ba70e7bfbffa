"""What is left in a home of work that is over, and may go: never the ledger, what was paid for, what a run shows or what was published.

What a run that was stopped or died would go on from goes only where a person asks for it: from a saved state it pays for its steps no second time.
Not covered: the databases and files of Prefect and MLflow, and the folders of finished runs.
"""

import math
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from artifacts.pruning import unneeded
from artifacts.record import RECORD
from artifacts.store import Store
from sfumato.errors import BadInput
from tasks.runtime.environment import Where
from tasks.runtime.heartbeat import any_at_work, sign
from tasks.runtime.locks import is_free

DAY_SECONDS = 86_400
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
DRAFTS = (".new-*", "store/.new-*", "store/keys/.new-*", "runs/*/.new-*")
"""Where writers put what they have not finished."""


@dataclass(frozen=True)
class Leftovers:
    """Files and folders of one kind."""

    title: str
    paths: tuple[Path, ...]
    unended: bool = False
    """Whether a run that was stopped goes on from them."""

    @property
    def size(self) -> int:
        """Bytes of all together."""
        return sum(one.stat().st_size for path in self.paths for one in (path, *path.rglob("*")) if one.is_file())


def leftovers(place: Where, days: float) -> list[Leftovers]:
    """What was last changed more than so many days ago and may go, by kind; empty kinds are there too."""
    before, home = time.time() - days * DAY_SECONDS, place.home
    unended = (
        path for path in place.runs.glob("*") if not (path / RECORD).exists() and not (path / "published").exists()
    )
    artifacts = unneeded(Store.open(home / "store"), named(place.runs))
    # by a sign `sfumato serve` sees that a run is gone, and it removes the sign itself
    signs = set((home / "locks").glob(sign("*")))
    locks = (path for path in (home / "locks").glob("*") if path not in signs and is_free(path))
    return [
        Leftovers("sets of images that were drawn to be judged", _old(artifacts.judged, before)),
        Leftovers("folders of runs that did not end", _old(unended, before)),
        Leftovers(
            "drafts of writers that were killed", _old((one for where in DRAFTS for one in home.glob(where)), before)
        ),
        Leftovers("locks that nobody holds", _old(locks, before)),
        Leftovers("results of runs that did not end", _old(artifacts.unended, before), unended=True),
        Leftovers("saved states of trainings", _old((home / "states").glob("*"), before), unended=True),
    ]


def named(runs: Path) -> Iterator[str]:
    """Every digest in the files of runs."""
    for path in runs.glob("*/*.json"):
        yield from DIGEST.findall(path.read_text(encoding="utf-8", errors="replace"))


def remove(place: Where, kinds: Iterable[Leftovers]) -> None:
    """Remove them; `BadInput` while a run of this home is at work, which may be about to use one."""
    if any_at_work(place.home):
        raise BadInput(f"a run is at work in {place.home}: prune when it has ended (`sfumato status` shows it)")
    for path in (path for kind in kinds for path in kind.paths):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _old(paths: Iterable[Path], before: float) -> tuple[Path, ...]:
    """Those in which nothing was changed since; one that is being changed or removed counts as new."""
    return tuple(sorted(path for path in paths if _changed(path) < before))


def _changed(path: Path) -> float:
    try:
        return max(one.stat().st_mtime for one in (path, *path.rglob("*")))
    except OSError:
        return math.inf
