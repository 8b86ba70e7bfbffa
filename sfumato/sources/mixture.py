"""Several public sources as one: their classes are kept apart, their shares may be chosen."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from sfumato.errors import BadInput
from sfumato.sources.catalogue import Catalogue, Reading, Record, SourceFacts

KIND = {1: "grey", 3: "colour"}
ROUNDING = 1e-9
"""Added before a number of records is rounded down, which a share of them may miss by rounding."""


def mix(parts: Mapping[str, Catalogue], reading: Reading) -> Catalogue:
    """The records of all parts, by name; the class `a` of `glyphs` becomes `glyphs:a`.

    With `reading.shares` each part gives that share of the mixture: as many records as possible without showing one twice, chosen by
    the seed.
    """
    source = "+".join(parts)
    if reading.part != "all":
        raise BadInput(
            f"the mixture {source!r} can only be public: data.private is one collection, so put its images into one folder"
        )
    check_alike(parts, reading)
    counts = numbers(source, [part.facts.records for part in parts.values()], reading.shares)
    classes = tuple(f"{name}:{label}" for name, part in parts.items() for label in part.facts.classes)

    def records() -> Iterator[Record]:
        rng, first = np.random.default_rng(reading.seed), 0
        for part, count in zip(parts.values(), counts, strict=True):
            chosen = np.zeros(part.facts.records, bool)
            chosen[rng.permutation(part.facts.records)[:count]] = True
            for keep, record in zip(chosen, part.records(), strict=True):
                if keep:
                    yield record._replace(label=first + record.label)
            first += len(part.facts.classes)

    def labels() -> Iterator[tuple[int, str]]:
        first = 0
        for part in parts.values():
            pairs = part.labels() if part.labels else ((one.label, one.group) for one in part.records())
            yield from ((first + label, group) for label, group in pairs)
            first += len(part.facts.classes)

    shape = reading.shape(next(iter(parts.values())).facts)
    stored = min(min(part.facts.height, part.facts.width) for part in parts.values())
    colours = max(part.facts.channels for part in parts.values())
    facts = SourceFacts(source, sum(counts), classes, *shape, stored=stored, colours=colours)
    return Catalogue(facts, records, has_parts=False, labels=None if reading.shares else labels)


def check_alike(parts: Mapping[str, Catalogue], reading: Reading) -> None:
    """Refuse parts whose pictures would differ in shape."""
    shapes = {name: reading.shape(part.facts) for name, part in parts.items()}
    (first, (channels, height, width)), *others = shapes.items()
    for name, (other_channels, other_height, other_width) in others:
        if other_channels != channels:
            raise BadInput(
                f"{first!r} is {KIND[channels]} and {name!r} is {KIND[other_channels]}: they mix with data.channels=1 or"
                " data.channels=3, which converts all"
            )
        if (other_height, other_width) != (height, width):
            raise BadInput(
                f"{first!r} is {width}x{height} and {name!r} is {other_width}x{other_height}: they mix with data.size=<side>,"
                " which resizes all"
            )


def numbers(source: str, records: list[int], shares: tuple[float, ...]) -> list[int]:
    """The number of records from each part."""
    if not shares:
        return records
    if len(shares) != len(records) or not all(share > 0 for share in shares) or not math.isclose(sum(shares), 1):
        raise BadInput(
            f"data.shares={list(shares)} does not fit data.public={source!r}: give {len(records)} numbers above 0 that sum to 1"
        )
    whole = min(count / share for count, share in zip(records, shares, strict=True))
    return [max(1, math.floor(share * whole + ROUNDING)) for share in shares]
