"""The results of the public and priced stages that a method works with; nothing here is private data."""

import copy
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from sfumato.adapters import HeadStack
from sfumato.alignment import ClassMaps
from sfumato.config import Matching, Network
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.diffusion.schedule import NoiseSchedule
from sfumato.latents import PIXELS, Codec
from sfumato.methods.plan import Facts
from sfumato.networks.build import build
from sfumato.networks.denoiser import class_rows, with_classes
from sfumato.privacy.accounting.events import AnyEvent
from sfumato.retrieval.knowledge_base import KnowledgeBase

Part = TypeVar("Part")


@dataclass(frozen=True, eq=False)
class Target:
    """Mean embeddings that the drawn images of each class are moved to."""

    frequencies: Tensor
    """`[c h w, m]`, of the random features."""
    means: Tensor
    """`[classes, 2 m]`"""
    how: Matching


@dataclass(frozen=True)
class Parts:
    """Trained models and other results of the stages before a method draws; nothing here is private data."""

    schedule: NoiseSchedule
    shape: tuple[int, int, int]
    """Channels, height and width of the denoisers' inputs: images, or latents."""
    facts: Facts
    """Public counts and names of the private set."""
    public: nn.Module
    """The denoiser trained on public images."""
    own: nn.Module | None = None
    """A network of the method's own after its training on public images, where the plan has an `own_start`."""
    started: nn.Module | None = None
    """The same after a first phase on noised private images, where the plan has one."""
    warm: nn.Module | None = None
    """The denoiser so far, with rows for the private classes, after a warm-up on central images."""
    tuned: nn.Module | None = None
    """The denoiser after training on private records."""
    members: tuple[nn.Module, ...] = ()
    """Denoisers of single shards, for a priced drawing; INTERNAL."""
    heads: HeadStack | None = None
    """Or all of them as heads on the public denoiser's features; INTERNAL."""
    paid: tuple[AnyEvent, ...] = ()
    """The events that a priced drawing has paid; its noise follows from them."""
    cell_counts: Tensor | None = None
    """int64 `[classes k]`, the noisy number of records of each cell of a partition, while a drawing pays."""
    prototypes: Tensor | None = None
    """`[n, c, h, w]`, images of a priced drawing, or points of its sampler, that `draw` starts from, equally many of each class, class by
    class."""
    codec: Codec = PIXELS
    """Maps images to the denoisers' space, and back."""
    alignment: ClassMaps | None = None
    """Maps between private classes and the public images' space, where classes are aligned; training and drawing happen in that space."""
    target: Target | None = None
    """Mean embeddings of the private classes, where the plan has `matching`."""
    encoder: nn.Module | None = None
    base: KnowledgeBase | None = None
    winners: Tensor | None = None
    """`[classes]`, the public class that each private class voted for."""
    images: Tensor | None = None
    """Public images `[n, c, h, w]` as the denoisers see them, where the plan asks for them."""
    image_classes: Tensor | None = None
    """`[n]`, their public classes."""

    @property
    def start(self) -> nn.Module:
        """The denoiser that DP fine-tuning starts from."""
        return self.started or self.public

    def public_class(self, y: Tensor) -> Tensor:
        """The public classes that stand for private classes `y` `[b]`; no class where no votes were taken."""
        return y.new_full(y.shape, NO_CLASS) if self.winners is None else self.winners.to(y.device)[y]


def planned(part: Part | None) -> Part:
    """A part that the method's own plan requires, which is therefore present."""
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
    if parts.warm is not None:
        return copy.deepcopy(parts.warm)
    return with_classes(copy.deepcopy(parts.start), private_rows(parts))


def unlearnt(parts: Parts, network: Network, seed: int) -> nn.Module:
    """A denoiser of the private classes that has seen no image; its weights follow from the seed."""
    classes, levels = len(parts.facts.classes), parts.schedule.alpha_bar
    return build(network, parts.shape, classes, seed=seed, alpha_bar=levels)
