"""Events as anyone can price them again: dp-accounting's constructors and their arguments, in the worst pair of a relation.

A list of these is all that a certificate rests on. `sfumato/verify_card.py` composes it without any of our code, and
`sfumato ledger replay --slow` does the same for a whole ledger.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from sfumato.config import Relation
from sfumato.errors import BadInput
from sfumato.privacy.accounting.events import (
    DiscreteHistogram,
    Event,
    Gaussian,
    Histogram,
    NoisedRecords,
    SubsampledGaussian,
)
from sfumato.privacy.ledger.signing import canonical

NEIGHBOURS = {"add_remove": "ADD_OR_REMOVE_ONE", "replace_one": "REPLACE_ONE"}
"""dp-accounting's names of the relations."""


def mechanisms_of(events: Iterable[Event], relation: Relation) -> list[dict[str, Any]]:
    """`[{"constructor": ..., "arguments": {...}, "count": n}]`: the worst pairs of these events, equal ones together.

    A record has norm 1 and an exchange moves a query by 2; in a histogram by the root of 2; in a histogram of integers it
    moves two cells by 1 each, which are two mechanisms. `BadInput` for an event that has no worst pair.
    """
    counts: Counter[str] = Counter()
    arguments_of: dict[str, tuple[str, dict[str, Any]]] = {}
    for event in events:
        if why := event.uncertified(relation):
            raise BadInput(f"no certificate holds, so there is nothing to check: {why}")
        constructor, arguments, count = _worst_pair(event, relation)
        key = canonical([constructor, arguments])
        counts[key] += count
        arguments_of[key] = constructor, arguments
    return [
        {"constructor": arguments_of[key][0], "arguments": arguments_of[key][1], "count": count}
        for key, count in sorted(counts.items())
        if count
    ]


def _worst_pair(event: Event, relation: Relation) -> tuple[str, dict[str, Any], int]:
    exchanged = relation == "replace_one"
    match event:
        case Gaussian():
            return *_gaussian(event.noise_multiplier, 2.0 if exchanged else 1.0), event.count
        case Histogram():
            return *_gaussian(event.noise_multiplier, math.sqrt(2) if exchanged else 1.0), 1
        case NoisedRecords():
            return *_gaussian(event.noise_multiplier, 2.0), 1
        case SubsampledGaussian():
            if event.sample_rate == 1:
                return *_gaussian(event.noise_multiplier, 2.0 if exchanged else 1.0), event.steps
            name, arguments = _gaussian(event.noise_multiplier, 1.0)
            sampled = {"sampling_prob": event.sample_rate, "neighboring_relation": NEIGHBOURS[relation]}
            return name, {**arguments, **sampled}, event.steps
        case DiscreteHistogram():
            whole = {"sigma": event.noise_multiplier, "sensitivity": 1, "use_connect_dots": True}
            return "from_discrete_gaussian_mechanism", whole, 2 if exchanged else 1
        case _:
            raise BadInput(f"event {event!r} has no worst pair: use those of sfumato.privacy.accounting.events")


def _gaussian(noise: float, sensitivity: float) -> tuple[str, dict[str, Any]]:
    return "from_gaussian_mechanism", {"standard_deviation": noise, "sensitivity": sensitivity}
