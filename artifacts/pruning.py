"""What nobody needs any more in a store: artifacts that were not paid for, and that nothing which counts was made from.

Kept is what somebody names, what stands on a ledger entry of its own, since it was paid for, and all that these were made from. Scores and other looks
stay too, but not what they looked at: a run that wants it again makes it again, which costs time and nothing else.
"""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from artifacts.labels import Label
from artifacts.store import Damaged, Store


class Unneeded(NamedTuple):
    """Folders of artifacts that may go."""

    judged: list[Path]
    """Sets that were drawn to be judged, and what only they were made from; the scores are there."""
    unended: list[Path]
    """Results that nothing stands on yet: a run that was stopped goes on from them."""


def unneeded(store: Store, named: Iterable[str]) -> Unneeded:
    """The artifacts without a ledger entry of their own from which none of those `named`, and none that was paid for, was made. Damaged ones stay."""
    manifests = {}
    for folder in (store.root / "objects").iterdir():
        with contextlib.suppress(Damaged):
            manifests[folder.name] = store.manifest(folder.name)
    bound = {digest for digest, manifest in manifests.items() if manifest["entries"]}
    looks = {digest for digest in bound if manifests[digest]["label"] == Label.INTERNAL}
    free = manifests.keys() - bound - _with_ancestors(manifests, {*named, *(bound - looks)})
    judged = free & _with_ancestors(manifests, looks)
    return Unneeded(*([store.root / "objects" / one for one in sorted(some)] for some in (judged, free - judged)))


def _with_ancestors(manifests: Mapping[str, Mapping[str, Any]], digests: set[str]) -> set[str]:
    todo, seen = list(digests), set()
    while todo:
        digest = todo.pop()
        if digest not in seen and digest in manifests:
            seen.add(digest)
            todo += [*manifests[digest]["parents"], *manifests[digest].get("behind", ())]
    return seen
