"""Votes for public classes: each private record names, in its own class, the public class that it resembles most.

A priced query that any method which starts from class rows may make, in the spirit of PrivImage (Li et al. 2024) and part of none of the
papers here. The noisy winner starts the class row; a method with retrieval also looks up among its images alone. One record changes
one count by 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sfumato.config import MethodSection, SettingsOf
from sfumato.errors import BadInput
from sfumato.methods.plan import STAGE_VOTES, Facts, Spend, Votes
from sfumato.privacy.accounting.events import DiscreteHistogram

if TYPE_CHECKING:  # to list settings takes no torch
    from collections.abc import Callable

    from torch import Tensor

    from sfumato.methods.parts import Parts


class VotingSettings(Protocol):
    """What a method that may take votes has among its settings."""

    @property
    def votes(self) -> bool:
        """Whether votes are taken for the public class that resembles each private class."""

    @property
    def vote_noise(self) -> float:
        """Noise on each count of the votes, in records."""

    @property
    def distinct(self) -> bool:
        """Whether each private class gets a public class of its own, by the assignment with the most votes."""


def voting(
    method: VotingSettings, settings: SettingsOf[MethodSection], facts: Facts, *, time: int
) -> tuple[Votes | None, list[Spend]]:
    """The votes of a plan whose keys are at `time` (0: it has none), and their spend; `BadInput` where they have nothing to choose from."""
    if not method.votes:
        return None, []
    if method.distinct and facts.learnt_classes < len(facts.classes):
        raise BadInput(
            f"method.distinct=true needs {len(facts.classes)} public classes, one for each private class, and there are "
            f"{facts.learnt_classes}: use more public classes, or method.distinct=false"
        )
    if facts.learnt_classes < 2:
        raise BadInput(
            "method.votes=true asks which public class each private class resembles, and the public images are one class: use --set "
            "method.votes=false"
        )
    if settings.alignment.kind != "none":
        raise BadInput(
            "method.votes=true asks which public class each private class resembles, and alignment.kind=moments takes each to where all "
            "public ones lie: use --set method.votes=false, or alignment.kind=none"
        )
    event = DiscreteHistogram(noise_multiplier=method.vote_noise)
    spend = Spend(stage=STAGE_VOTES, what="votes for public classes", event=event)
    return Votes(noise_multiplier=method.vote_noise, time=time), [spend]


def nearest_image_class(parts: Parts) -> Callable[[Tensor, Tensor], Tensor]:
    """From images `[b, c, h, w]`, of whatever class, to the public class of the nearest public image `[b]`, by pixels."""
    from sfumato.methods.parts import planned

    return nearest_class(parts, planned(parts.images), planned(parts.image_classes))


def nearest_class(parts: Parts, images: Tensor, labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """From images `[b, c, h, w]`, of whatever class, to the public class of the nearest of the public `images` `[n, ...]` of classes `[n]`,
    by pixels. Public latents are compared as the images that they decode to."""
    import torch

    shown = parts.codec.decode(images).flatten(1)

    def vote(x: Tensor, y: Tensor) -> Tensor:
        return labels[torch.cdist(x.flatten(1), shown).argmin(1)]

    return vote
