"""The parts that an ablation pair takes out of a method, each one setting, and which methods can have it.

A file of its own, so that help loads no library that plans or trains.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato.methods import METHODS

if TYPE_CHECKING:
    from sfumato.methods.algorithm import Algorithm

METHOD = "method.name"
ALIGNED = "alignment.kind=moments"


@dataclass(frozen=True)
class Ablation:
    """A part of a method that a pair takes out."""

    what: str
    """The part, and what stands in its place."""
    who: str
    """The methods that can have it, in words; `borne_by` has their names, for which it loads them all."""
    setting: str
    on: str
    """The value that switches it on."""
    off: str
    bears: Callable[["Algorithm[Any]"], bool]
    """Whether a method can have it."""
    excludes: tuple[str, ...] = ()
    """Parts that cannot stand beside it."""
    beside: tuple[str, ...] = ()
    """Settings that both halves need."""

    def borne_by(self) -> list[str]:
        """The methods that can have it."""
        return [name for name, method in METHODS.items() if self.bears(method)]

    @property
    def methods(self) -> str:
        """The same in words."""
        borne = self.borne_by()
        missing = [name for name in METHODS if name not in borne]
        if not missing:
            return "all methods"
        return f"all but {', '.join(missing)}" if len(missing) < len(borne) else ", ".join(borne)


def has(field: str) -> Callable[["Algorithm[Any]"], bool]:
    """Whether a method has a setting of its own of this name."""
    return lambda method: field in method.section.model_fields


def draws_a_wanted_class(method: "Algorithm[Any]") -> bool:
    """Whether classes can be aligned for a method that does something else besides."""
    return not (method.labels or method.needs_moments)


def moments_alone() -> str:
    """The method that does nothing but align classes."""
    return next(name for name, method in METHODS.items() if method.needs_moments)


WANTED = "methods that draw a wanted class"
ABLATIONS = {
    "votes": Ablation(
        "votes for public classes", "RAPID and plain DP-SGD", "method.votes", "true", "false", has("votes"),
        excludes=("moments",),
    ),
    "retrieval": Ablation(
        "the nearest public trajectory; without, one at random", "RAPID", "method.neighbour", "nearest", "random",
        has("neighbour"),
    ),
    "eq5": Ablation(
        "learning by Eq. 5; without, plain noise at the same times", "RAPID", "method.target", "retrieved", "plain",
        has("target"),
    ),
    "central": Ablation(
        "a warm-up on central images", "methods that train the public denoiser by DP-SGD", "central.images", "4", "0",
        lambda method: bool(method.corrupt and not method.blueprint), excludes=("moments",),
    ),
    "moments": Ablation(
        "classes aligned by their moments", WANTED, "alignment.kind", "moments", "none", draws_a_wanted_class,
        excludes=("votes", "central"),
    ),
    "matching": Ablation(
        "drawn images moved to the mean embeddings of their classes", WANTED, "matching.share", "0.2", "0",
        lambda method: method.gains_by_moving and not method.draw_privately,
        beside=("matching.frequencies=500",),
    ),
    "variation": Ablation(
        "drawn images turned, slanted, scaled and shifted at random", "methods that draw any number of images",
        "generation.vary", "0.1", "0", lambda method: bool(method.draw) and not method.draw_privately,
    ),
    "judge": Ablation(
        "a paid judge that weighs labels", "all methods", "judge.use", "weigh", "none", lambda _: True
    ),
    "mechanism": Ablation(
        "the method's own private mechanism among aligned classes; without, class moments alone with all of epsilon", WANTED,
        METHOD, "", "", draws_a_wanted_class, excludes=("votes", "central"), beside=(ALIGNED,),
    ),
    "phase-one": Ablation(
        "training at large times on images noised once, under replace_one", "the method with two phases", "method.phase_one",
        "noised_once", "'off'", has("phase_one"), beside=("privacy.relation=replace_one",),
    ),
}  # fmt: skip
"""The parts by name."""


def described() -> str:
    """All parts, each with the methods that can have it."""
    return "; ".join(f"{name} ({part.what}; {part.who})" for name, part in ABLATIONS.items())
