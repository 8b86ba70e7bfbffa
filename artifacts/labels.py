"""What may leave: PUBLIC < DP < INTERNAL. A label is computed from parents and ledger entries, never typed."""

from collections.abc import Iterable
from enum import StrEnum


class Label(StrEnum):
    """Ordered from free to confined."""

    PUBLIC = "PUBLIC"
    """Made from public data alone."""
    DP = "DP"
    """Private data entered only through certified spends; may leave with its certificate attached."""
    INTERNAL = "INTERNAL"
    """A look without noise, or a mechanism without certificate, went into it; must not leave."""


ORDER = tuple(Label)


def combined(labels: Iterable[str]) -> Label:
    """The tightest of the given labels; PUBLIC for none."""
    return max((Label(label) for label in labels), key=ORDER.index, default=Label.PUBLIC)
