"""The interface of a method: one frozen value that holds the functions which its plan calls for.

A capability that a method lacks is None here, and its plan does not require it; no caller inspects a method's file. Settings are
generic over the method's own section `M`, so that each function takes those of its method alone.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar, TypeVarTuple

from sfumato.config import MethodSection, SettingsOf
from sfumato.retrieval.settings import Extractor

if TYPE_CHECKING:  # a list of methods and their settings needs no torch
    from torch import Generator, Tensor, nn

    from sfumato.diffusion.objective import Corrupt, Randomness
    from sfumato.methods.parts import Parts
    from sfumato.methods.plan import Blueprint, Claim, Embedding, Evolution, Facts, Plan
    from sfumato.partition import Partition
    from sfumato.privacy.accounting.events import AnyEvent
    from sfumato.privacy.auditing.played import Play, Played

M = TypeVar("M", bound=MethodSection)
Arguments = TypeVarTuple("Arguments")
R = TypeVar("R")


def without_gradients(function: Callable[[*Arguments], R]) -> Callable[[*Arguments], R]:
    """`torch.inference_mode` for a function of a method's file; loads torch at the first call."""

    @functools.wraps(function)
    def called(*arguments: *Arguments) -> R:
        import torch

        with torch.inference_mode():
            return function(*arguments)

    return called


@dataclass(frozen=True)
class Algorithm(Generic[M]):
    """A method. `parts` hold the models trained for it; `y` `[b]` are private classes."""

    section: type[M]
    """Its settings."""
    promise: str
    """The paper's claim, the certificate, and why they differ (Markdown)."""
    claim: Callable[..., Claim]
    """The paper's own epsilon from the paper's own numbers. Never a certificate."""
    plan: Callable[[SettingsOf[M], Facts], Plan]
    """The plan of work and spends, before any private image is opened."""
    draw: Callable[[SettingsOf[M], Parts, Tensor, Generator], Tensor] | None = None
    """Images or latents `[b, c, h, w]` of classes y from what was trained; None where each image is paid for."""
    corrupt: Callable[[SettingsOf[M], Parts], Corrupt] | None = None
    """Makes noised examples of private records, where the plan has `fine_tuning`."""
    loss: Callable[[SettingsOf[M], Parts], Callable[[nn.Module, Tensor, Tensor, Generator], Tensor]] | None = None
    """The loss of plain training on private records, where the plan has `plain`."""
    query: Callable[[SettingsOf[M], Parts, Tensor, Generator], Tensor] | None = None
    """The first part of `draw`, where a noised image `[b, c, h, w]` decides what the rest begins with, and several images may go on from it."""
    resume: Callable[[SettingsOf[M], Parts, Tensor, Tensor, Generator], Tensor] | None = None
    """The rest: from noised images and classes y to images or latents."""
    walk: Callable[[SettingsOf[M]], Sequence[int]] | None = None
    """The times that `draw` passes, where all it does is to follow one denoiser along them from noise to an image."""
    labels: Callable[[SettingsOf[M], Parts, Tensor], tuple[Tensor, Tensor]] | None = None
    """Splits the output of `draw` into images and labels, where the labels are not the requested y."""
    ballot: Callable[[Parts], Callable[[Tensor, Tensor], Tensor]] | None = None
    """From private images and their classes to the public class that each votes for, where the plan has `votes`."""
    distinct: Callable[[SettingsOf[M]], bool] | None = None
    """Whether no two private classes may share a public one that they voted for."""
    draw_privately: Callable[[SettingsOf[M], Parts, tuple[Tensor, Tensor], Tensor, Randomness], Tensor] | None = None
    """Draws where the plan spends in the stage `drawing`: instead of `draw`, or before it where the plan has `prototypes`."""
    keeps_points: Callable[[SettingsOf[M]], bool] | None = None
    """Whether `draw_privately` serves for points alone, the plan's `prototypes`, from which any number is then drawn at no further cost."""
    finish: Callable[[SettingsOf[M], Parts, Tensor, Randomness], Tensor] | None = None
    """From the points at which `draw_privately` ends to images, by public parts alone, where the plan keeps points as `prototypes`; None
    where it keeps images."""
    partition: Callable[[SettingsOf[M], Parts], Partition | None] | None = None
    """The cells of each class by which `draw_privately` takes records and wanted images in place of classes, by public images alone; None where
    classes stay whole."""
    worst_case: Callable[[SettingsOf[M], Parts, Tensor, Randomness], Played] | None = None
    """`draw_privately` played with stand-ins for the networks and the worst record in it or not, for an audit
    (`sfumato.privacy.auditing.games`)."""
    blueprint: Callable[[SettingsOf[M], tuple[int, int, int], Facts], Blueprint] | None = None
    """The network that private training begins afresh, where that is not the public denoiser, for images or latents of a shape."""
    retrieves: Callable[[SettingsOf[M]], Extractor] | None = None
    """The extractor by whose features it looks public trajectories up; None where it retrieves nothing."""
    has_members: bool = False
    """Whether it draws from denoisers of disjoint shards."""
    evolves: Callable[[SettingsOf[M]], Evolution] | None = None
    """What private records vote for, where the plan has an `evolution`."""
    embeds: Callable[[SettingsOf[M]], Embedding] | None = None
    """Which features of private records are summed, where the plan has an `embedding`."""
    controls: tuple[str, ...] = ()
    """Settings under which it stands beside itself in a comparison with runs that take votes."""
    is_baseline: bool = False
    """Whether it is the baseline itself, which has none."""
    needs_moments: bool = False
    """Whether the preflight aligns the classes for it, and gives the moments all that the budget has."""

    @property
    def gains_by_moving(self) -> bool:
        """Whether mean embeddings say more of what it draws: images of a wanted class that do not have them already."""
        return self.draw is not None and not (self.labels or self.embeds)

    def images_may_move(self, settings: SettingsOf[M]) -> bool:
        """Whether its drawn images may move to mean embeddings: where any number is drawn at no further cost."""
        keeps = self.keeps_points is not None and self.keeps_points(settings)
        return self.gains_by_moving and (keeps or not self.draw_privately)

    @property
    def module(self) -> str:
        """The method's module."""
        return self.section.__module__


def begun(method: Algorithm[M], settings: SettingsOf[M], parts: Parts) -> tuple[nn.Module, Blueprint]:
    """The network from which a method's private training starts, and its blueprint: the denoiser so far, or one of the method's own, afresh
    or as it learnt from public images."""
    from sfumato.methods.parts import untuned
    from sfumato.networks.build import build

    own = design(method, settings, parts.shape, parts.facts)
    if parts.own is not None:
        return copy.deepcopy(parts.own).requires_grad_(True), own
    if method.blueprint:
        levels = parts.schedule.alpha_bar
        return build(own.network, own.shape, own.classes, seed=settings.seed, alpha_bar=levels), own
    return untuned(parts), own


def worst_pair(method: Algorithm[M], settings: SettingsOf[M], parts: Parts, events: Sequence[AnyEvent]) -> Play:
    """A play of a method's sampler against the worst record that `events` pay for; on the CPU, for an audit."""
    from sfumato.methods.parts import planned

    paid, game = replace(parts, paid=tuple(events)), planned(method.worst_case)

    def play(present: Tensor, source: Randomness) -> Played:
        return game(settings, paid, present, source)

    return play


def design(method: Algorithm[M], settings: SettingsOf[M], shape: tuple[int, int, int], facts: Facts) -> Blueprint:
    """The blueprint of the network that a method trains on private images, or latents, of `shape`."""
    if method.blueprint:
        return method.blueprint(settings, shape, facts)
    from sfumato.methods.plan import Blueprint

    return Blueprint(network=settings.network, shape=shape, classes=len(facts.classes))
