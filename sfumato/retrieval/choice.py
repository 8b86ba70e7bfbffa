"""Which time k of the query `auto` measures, and when retrieval counts as working at one.

A choice by measurement is made by the public stage that builds the knowledge base. The plan names the times, and its price depends on none
of them; what is trained, paid and drawn afterwards depends on the base, whose content holds the chosen one. So neither a cache key nor a
plan says anything that is not yet known.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

TIMES_CHANCE = 5.0
"""Times chance that held-out accuracy must reach; half the way from chance to certainty where that is less, with few classes."""
HIGHEST, PARTS = 8, 10
"""The largest k that `auto` measures, the paper's, and its spacing, in tenths of T."""
KEY_DRAWS = 8
"""Noise draws of a key in the recipe: 32 find little more and cost four times as much (`benchmarks/retrieval.py`)."""
PHOTOGRAPHS = {"crop": 0.3, "mirror": True, "jitter": 0.3, "edge": "border"}
"""How views of photographs differ."""


def retrieves(accuracy: float, chance: float) -> bool:
    """Whether accuracy is so far above chance that a neighbour means something."""
    return accuracy >= min(TIMES_CHANCE * chance, (1 + chance) / 2)


def times_above(v: float, public_classes: int) -> tuple[float, ...]:
    """The times of the query that `auto` measures, largest first, as shares of T, above the time v at which drawing resumes; none where
    there is one public class, which every neighbour has."""
    shares = (tenth / PARTS for tenth in range(HIGHEST, 0, -1))
    return tuple(share for share in shares if share > v and public_classes > 1)


class ChosenSetting(NamedTuple):
    """A setting of a method with retrieval that `auto` chooses."""

    name: str
    """Within the method's section."""
    value: Any
    why: str
    """The reason, for a person."""


def recipe_of(times: tuple[float, ...], public_classes: int, *, photographs: bool) -> Iterator[ChosenSetting]:
    """The settings of a method with retrieval that `auto` chooses, by declared facts alone."""
    if times:
        why = "the largest is taken at which held-out public images find their class; at none, no neighbour means anything"
        yield ChosenSetting("times", times, why)
    if public_classes > 1:
        yield ChosenSetting("extractor.contrast", "classes", "public classes teach it what is alike")
        yield ChosenSetting("query.key_draws", KEY_DRAWS, "one noised image tells little of what it was")
    if photographs:
        for name, value in PHOTOGRAPHS.items():
            yield ChosenSetting(f"extractor.{name}", value, "colour: photographs differ by light and frame")
