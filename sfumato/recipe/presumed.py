"""Settings that the recipe presumes a method to have, besides what `Algorithm` declares of it. A method without them keeps its own defaults."""

from typing import Protocol, runtime_checkable

from sfumato.config import Network, Pretraining
from sfumato.methods import METHODS
from sfumato.retrieval.settings import Extractor, QuerySettings
from sfumato.settings import Settings


@runtime_checkable
class Retrieving(Protocol):
    """Of a method that looks public trajectories up."""

    k: float
    v: float
    times: tuple[float, ...]
    neighbour: str
    nearest: int
    query: QuerySettings
    reference: float
    extractor: Extractor


@runtime_checkable
class Ensemble(Protocol):
    """Of a method that draws from denoisers of disjoint shards."""

    members: int
    adapters: int
    abstain: bool
    prototypes: int
    training: Pretraining
    distillation: Pretraining


@runtime_checkable
class Averaging(Protocol):
    """Of a method whose averages of private images move what the public model draws."""

    beta: float
    longest: float
    pay: str
    trajectories: int
    clusters: int


@runtime_checkable
class Designing(Protocol):
    """Of a method with a network and a training of its own."""

    network: Network
    training: Pretraining


def retrieving(settings: Settings) -> Retrieving | None:
    """The method's settings, where it retrieves and the recipe knows how."""
    own = settings.method
    return own if METHODS[own.name].retrieves and isinstance(own, Retrieving) else None


def ensemble(settings: Settings) -> Ensemble | None:
    """The method's settings, where it has members and the recipe knows them."""
    own = settings.method
    return own if METHODS[own.name].has_members and isinstance(own, Ensemble) else None


def averaging(settings: Settings) -> Averaging | None:
    """The method's settings, where each of its images, or points, is paid for by averages that the recipe knows."""
    own, method = settings.method, METHODS[settings.method.name]
    pays = method.draw_privately and not method.has_members
    return own if pays and isinstance(own, Averaging) else None
