"""What a method works with once its public and priced stages have run; nothing here is private data."""

import copy
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from sfumato.alignment import ClassMaps
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.diffusion.schedule import NoiseSchedule
from sfumato.latents import PIXELS, Codec
from sfumato.methods.plan import Facts
from sfumato.networks.denoiser import class_rows, with_classes
from sfumato.privacy.accounting.events import AnyEvent
from sfumato.retrieval.knowledge_base import KnowledgeBase

Part = TypeVar("Part")


@dataclass(frozen=True)
class Parts:
    """What a method works with once its stages have run; nothing here is private data."""

    schedule: NoiseSchedule
    shape: tuple[int, int, int]
    """Channels, height and width of what the denoisers work on: an image, or its latent."""
    facts: Facts
    """Public counts and names of the private set."""
    public: nn.Module
    """The denoiser trained on public images."""
    started: nn.Module | None = None
    """The same after a first phase on noised private images, where the plan has one."""
    tuned: nn.Module | None = None
    """The denoiser after training on private records."""
    members: tuple[nn.Module, ...] = ()
    """Denoisers of single shards, for a priced drawing; INTERNAL."""
    paid: tuple[AnyEvent, ...] = ()
    """What a priced drawing has paid: its noise follows from this."""
    prototypes: Tensor | None = None
    """`[n, c, h, w]`, what a priced drawing made for `draw` to go on from, as many of each class, class by class."""
    codec: Codec = PIXELS
    """From images to what the denoisers work on, and back."""
    alignment: ClassMaps | None = None
    """Where private classes are aligned with the public images: there and back. All that is learnt and drawn lies there."""
    encoder: nn.Module | None = None
    base: KnowledgeBase | None = None
    winners: Tensor | None = None
    """`[classes]`, the public class that each private class voted for."""
    images: Tensor | None = None
    """Public images `[n, c, h, w]` as the denoisers see them, where the plan asks for them."""

    @property
    def start(self) -> nn.Module:
        """The denoiser that DP fine-tuning starts from."""
        return self.started or self.public

    def public_class(self, y: Tensor) -> Tensor:
        """The public classes that stand for private classes `y` `[b]`; no class where no votes were taken."""
        return y.new_full(y.shape, NO_CLASS) if self.winners is None else self.winners.to(y.device)[y]


def planned(part: Part | None) -> Part:
    """A part that the method's own plan asks for, so that it is there."""
    if part is None:
        raise ValueError("the method uses a part that its plan does not ask for")
    return part


def add_votes(parts: Parts, votes: Tensor, *, distinct: bool = False) -> Parts:
    """The parts with the winners of a noisy histogram `[classes, public classes]`.

    With `distinct` no two classes share a winner: of all such choices the one with the most votes; it needs as many public
    classes as private ones.
    """
    from scipy.optimize import linear_sum_assignment

    if not distinct:
        return replace(parts, winners=votes.argmax(1))
    return replace(parts, winners=torch.from_numpy(linear_sum_assignment(votes.cpu().numpy(), maximize=True)[1]))


def private_rows(parts: Parts) -> Tensor:
    """Class rows `[classes, condition]` to start from: those of the winning public classes, or the mean of all public rows."""
    rows = class_rows(parts.start)
    if parts.winners is None:
        return rows.mean(0, keepdim=True).repeat(len(parts.facts.classes), 1)
    return rows[parts.winners.to(rows.device)]


def untuned(parts: Parts) -> nn.Module:
    """A copy of the denoiser so far with rows for the private classes: what fine-tuning starts from."""
    return with_classes(copy.deepcopy(parts.start), private_rows(parts))
