"""Marks on fields of settings: the work that does not depend on them, so that its results are reused whatever their values."""

from dataclasses import dataclass
from typing import Any

PUBLIC_IMAGES, MEASURING, EXTRACTOR = "public images", "measuring public images", "extractor"
JUDGE_TRAINING, REHEARSING, PROTOTYPES = "training a judge", "rehearsing", "prototypes"
COMPARING, PUBLIC_MODEL_ALONE, SUMMING = "comparing", "public model alone", "summing features"
TAKING_MOMENTS = "taking moments"
"""Work that depends on a part of a section only (`Section.seen_by`)."""


@dataclass(frozen=True)
class NotFor:
    """Marks a field on which some work does not depend, so that it stands at one value there, `at` or its default, for all runs.

    That value never changes, since cache keys hold it.
    """

    works: tuple[str, ...]
    at: Any = None


def not_for(*works: str, at: Any = None) -> NotFor:
    """The mark for these works."""
    return NotFor(works, at)


OF_THE_PRIVATE_SIDE = not_for(PUBLIC_IMAGES)
OF_EACH_CLASS = not_for(REHEARSING, PROTOTYPES, PUBLIC_MODEL_ALONE)
"""Marks what says how many images there are of each class."""
