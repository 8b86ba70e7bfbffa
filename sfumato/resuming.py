"""How a training is broken off and goes on: what is kept of it, and who keeps it.

A public training goes on as if nothing had happened, to the last bit. A private one pays: before each stretch of steps
the ledger is told up to which step records may be used; after it, the state is kept. When the process dies, no more than
the stretch was used: the reservation is settled at its end, and the steps since the last state are reserved, done and
paid for again, with fresh noise. A stop that was asked for ends at a kept state and costs no step twice. The noise
generator of a private training is never kept.

Not covered: where the state is written and how long a stretch lasts (`Keeper`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class TrainingState:
    """Where training stood after `step` steps; INTERNAL, unless it saw public images alone."""

    step: int
    tensors: Mapping[str, Tensor]
    """Weights, their moving average and the optimiser's moments; of public training also the losses and the generator."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the ledger entries that the weights stand on, with their labels; empty for public training."""
    reservation: str = ""
    """Hash of the reservation under which the last steps were done; empty for a comparison and for public training."""


class Keeper(Protocol):
    """Where states are kept, and who says when to stop."""

    def load(self) -> TrainingState | None:
        """The last state that was kept whole, or None."""

    def save(self, state: TrainingState) -> None:
        """Keep a state in place of the last one, whole or not at all."""

    def stretch(self, step: int) -> int:
        """How many steps to do from `step` on before the next state is kept; 1 or more."""

    def stopping(self) -> bool:
        """Whether someone asked the work to stop."""
