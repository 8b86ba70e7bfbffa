"""Resuming a training: its stored state, and the interface of what stores it.

A public training resumes to the same weights, to the last bit. A private one pays: before each stretch of steps the ledger
records up to which step records may be used; after it, the state is stored. When the process dies, no more than the stretch was
used: the reservation is settled at its end, and the steps since the last state are reserved, done and paid for again, with fresh
noise. A requested stop ends at a stored state and costs no step twice. The noise generator of a private training is never stored.

Not covered: where the state is written and how long a stretch lasts (`Keeper`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class TrainingState:
    """The state of a training after `step` steps; INTERNAL, unless it saw public images alone."""

    step: int
    tensors: Mapping[str, Tensor]
    """Weights, their moving average and the optimiser's moments; of public training also the losses and the generator."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the ledger entries that the weights stand on, with their labels; empty for public training."""
    reservation: str = ""
    """Hash of the reservation under which the last steps were done; empty for a comparison and for public training."""


class Keeper(Protocol):
    """Stores states, and decides when to stop."""

    def load(self) -> TrainingState | None:
        """The last state that was stored completely, or None."""

    def save(self, state: TrainingState) -> None:
        """Store a state in place of the last one, completely or not at all."""

    def stretch(self, step: int) -> int:
        """The number of steps from `step` on before the next state is stored; 1 or more."""

    def stopping(self) -> bool:
        """Whether a stop was requested."""
