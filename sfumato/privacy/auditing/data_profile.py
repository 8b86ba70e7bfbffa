"""The profile of a private collection before a run, which a person sees as its data sheet: counts, sizes, duplicates, copies among the public images. INTERNAL.

Pictures are duplicates if all their pixels are equal, and near duplicates if their grey thumbnails differ by no more than the
copy check allows (`sfumato.evaluation.copies`): saved again, resized, a little brighter. Every number comes from private images
without noise.

Not covered: near duplicates that are cropped, mirrored or turned; pictures of one grey level, which show nothing.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sfumato.config import Section
from sfumato.evaluation.copies import copy_distance
from sfumato.images import WHITE, to_unit
from sfumato.progress import Progress, silent
from sfumato.sources import Inspection

SHOWN = 20
"""Largest number of pairs and sets that a profile names; it counts all of them."""
ROWS = 1024
"""Thumbnails compared with all others at once."""


class Alike(Section):
    """Pairs of similar pictures, closest first; a picture similar to several is listed with the closest one."""

    pairs: int
    """The number of pairs, each counted once."""
    across_groups: int
    """The number of pairs whose pictures lie in two groups; 0 without groups."""
    across_classes: int
    """The number of pairs whose pictures lie in two classes; 0 for pairs with public pictures."""
    named: tuple[tuple[str, str], ...]
    """Some of the pairs, each once."""


class DataProfile(Section):
    """The profile of a private collection; INTERNAL."""

    name: str
    source: str
    public: str
    """The public source that it was compared with; empty for none."""
    records: int
    """Pictures that can be read."""
    classes: dict[str, int]
    """Readable pictures of each class."""
    groups: int | None
    """Groups among them; None where each picture stands for itself."""
    largest_group: int
    """Pictures of the largest group; 1 without groups."""
    kinds: dict[str, int]
    """Pictures of each size and mode, the most frequent first."""
    duplicates: Alike
    """The same pixels twice."""
    near: Alike
    """Nearly the same, beyond the duplicates."""
    copies: Alike
    """The same pixels among the public pictures."""
    near_public: Alike
    """Nearly the same as a public picture, or as its negative."""
    broken: tuple[str, ...]
    """A line for each picture that cannot be read."""
    unfit: str = ""
    """The reason why a run would refuse the set, by the checks that every run makes; empty where it would accept it, or was not checked."""
    copied: str = ""
    """The reason why it would refuse the public images beside the set, as it reads both; empty likewise."""

    @property
    def refused(self) -> str:
        """The reasons why no run would begin with these pictures; empty where one would."""
        if self.broken and not self.records:
            return "none of its pictures can be read: the sheet says why under 'Cannot be read'"
        if self.broken:
            return f"{len(self.broken)} of {self.records + len(self.broken)} pictures cannot be read: replace or remove them"
        reasons = [self.copied]
        if self.copies.pairs:
            copied = "1 private picture is" if self.copies.pairs == 1 else f"{self.copies.pairs} private pictures are"
            reasons = [
                f"{copied} among the public ones of {self.public!r}: public images must not come "
                "from the private collection; take the copies out of the public side"
            ]
        return "; besides, ".join(reason for reason in (*reasons, self.unfit) if reason)


def profile_of(
    name: str,
    private: Inspection,
    public: Inspection | None = None,
    *,
    progress: Progress = silent,
) -> DataProfile:
    """Compare the pictures of a private collection with each other and with public ones; INTERNAL."""
    counts = np.bincount(private.labels, minlength=len(private.classes)).tolist()
    sizes = Counter([] if private.groups is None else private.groups.tolist())
    firsts = {digest: at for at, digest in reversed(list(enumerate(private.digests)))}
    again = [(at, firsts[digest]) for at, digest in enumerate(private.digests) if firsts[digest] != at]
    distinct = np.array(sorted(firsts.values()), np.int64)
    distinct = (
        distinct[np.ptp(private.thumbnails[distinct].reshape(len(distinct), -1), axis=1) > 0]
        if len(distinct)
        else distinct
    )
    shown = private.thumbnails[distinct]
    limit = copy_distance(_flat(shown)) if len(distinct) else 0.0
    near = [(int(distinct[a]), int(distinct[b])) for a, b in close(shown, None, limit, progress=progress)]
    copies, near_public = [], []
    if public is not None:
        places = {digest: at for at, digest in enumerate(public.digests)}
        copies = [(at, places[digest]) for at, digest in enumerate(private.digests) if digest in places]
        copied = {at for at, _ in copies}
        both = np.concatenate([public.thumbnails, WHITE - public.thumbnails])
        pairs = [(int(distinct[a]), b % len(public.where)) for a, b in close(shown, both, limit, progress=progress)]
        near_public = [pair for pair in pairs if pair[0] not in copied]
    others = public.where if public else ()
    return DataProfile(
        name=name,
        source=private.source,
        public=public.source if public else "",
        records=len(private.where),
        classes=dict(zip(private.classes, counts, strict=True)),
        groups=None if private.groups is None else len(sizes),
        largest_group=max(sizes.values(), default=1),
        kinds=dict(Counter(private.kinds).most_common()),
        duplicates=_alike(again, private, private.where),
        near=_alike(near, private, private.where),
        copies=_alike(copies, private, others, within=False),
        near_public=_alike(near_public, private, others, within=False),
        broken=private.broken,
    )


def _alike(pairs: Sequence[tuple[int, int]], private: Inspection, others: Sequence[str], within: bool = True) -> Alike:
    """The pairs (a private picture, another) by name and number; `within` for another private one."""

    once = list({frozenset(pair) if within else pair: pair for pair in reversed(pairs)}.values())[::-1]

    def differing(of: np.ndarray | None) -> int:
        return 0 if of is None or not within else sum(bool(of[a] != of[b]) for a, b in once)

    return Alike(
        pairs=len(once),
        across_groups=differing(private.groups),
        across_classes=differing(private.labels),
        named=tuple((private.where[a], others[b]) for a, b in once[:SHOWN]),
    )


def close(
    pictures: np.ndarray, others: np.ndarray | None, limit: float, *, progress: Progress = silent
) -> list[tuple[int, int]]:
    """Pairs (position, position of its nearest neighbour) for pictures uint8 `[n, s, s]` within `limit` of it, closest first.

    Neighbours are sought among `others` uint8 `[m, s, s]`, or else among all other pictures. Distances are root mean squares
    per pixel, pixels in [-1, 1].
    """
    flat = _flat(pictures)
    reference = flat if others is None else _flat(others)
    if len(flat) == 0 or len(reference) < (2 if others is None else 1):
        return []
    pairs = []
    for start in range(0, len(flat), ROWS):
        rows = flat[start : start + ROWS]
        distances = torch.cdist(rows, reference)
        if others is None:
            distances[torch.arange(len(rows)), torch.arange(start, start + len(rows))] = math.inf
        which = distances.argmin(1)
        exact = (rows - reference[which]).square().mean(1).sqrt()
        pairs += [(float(d), start + a, int(which[a])) for a, d in enumerate(exact) if d <= limit]
        progress(min(start + ROWS, len(flat)), len(flat))
    return [(a, b) for _, a, b in sorted(pairs)]


def _flat(thumbnails: np.ndarray) -> Tensor:
    return to_unit(thumbnails).flatten(1)
