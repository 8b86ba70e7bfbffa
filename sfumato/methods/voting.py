"""Votes for public classes: each private record names, in its own class, the public class that it resembles most.

A priced query that any method which starts from class rows may make, in the spirit of PrivImage (Li et al. 2024) and part of none of the
papers here. The noisy winner starts the class row; a method with retrieval also looks up among its images alone. One record changes
one count by 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from sfumato.config import LATER, MethodSection, SettingsOf
from sfumato.errors import BadInput
from sfumato.methods.plan import STAGE_VOTES, Facts, Spend, Votes
from sfumato.privacy.accounting.events import DiscreteHistogram

if TYPE_CHECKING:  # to list settings takes no torch
    from collections.abc import Callable

    from torch import Tensor

    from sfumato.methods.parts import Parts


class VotingSection(MethodSection):
    """Settings of a method that may take votes."""

    votes: Annotated[bool, LATER] = False
    """Take votes for the public class that resembles each private class, whose row it then starts from; needed for retrieval by class."""
    vote_noise: Annotated[float, Field(gt=0), LATER] = 6.0
    """Noise on each count of the votes, in records."""
    distinct: Annotated[bool, LATER] = False
    """Give each private class a public class of its own, by the assignment with the most votes. It reads the noisy votes alone. Classes
    that share a winner start from one row and retrieve the same images, and little training tells them apart poorly."""


def voting(settings: SettingsOf[VotingSection], facts: Facts, time: int) -> tuple[Votes | None, list[Spend]]:
    """The votes of a plan whose keys are at `time` (0: it has none), and their spend; `BadInput` where they have nothing to choose from."""
    method = settings.method
    if not method.votes:
        return None, []
    if method.distinct and facts.public_classes < len(facts.classes):
        raise BadInput(
            f"method.distinct=true needs {len(facts.classes)} public classes, one for each private class, and there are "
            f"{facts.public_classes}: use more public classes, or method.distinct=false"
        )
    if facts.public_classes < 2:
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


def nearest_class(parts: Parts, images: Tensor, labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """From images `[b, c, h, w]`, of whatever class, to the public class of the nearest of the public `images` `[n, ...]` of classes `[n]`,
    by pixels. Public latents are compared as the images that they decode to."""
    import torch

    shown = parts.codec.decode(images).flatten(1)

    def vote(x: Tensor, y: Tensor) -> Tensor:
        return labels[torch.cdist(x.flatten(1), shown).argmin(1)]

    return vote


def asks_distinct(settings: SettingsOf[VotingSection]) -> bool:
    """Whether no two private classes may share a public one that they voted for."""
    return settings.method.distinct
