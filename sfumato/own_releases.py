"""Public images and weights that somebody drew from private records: published folders, which are known by their card.

Post-processing of a release costs nothing more, but a certificate of what is made with it counts the release too. A run whose own private set is behind its
public side would be certified without what that release cost, so it is refused. Not covered: images that were taken out of their folder.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from sfumato import sources
from sfumato.errors import BadInput
from sfumato.image_folder import BEHIND, OF_SET
from sfumato.settings import Settings


@dataclass(frozen=True)
class PublishedFolder:
    """A published folder, by its card."""

    setting: str
    """The setting that names it."""
    place: str
    run: str
    sets: frozenset[str]
    """The private set that it was drawn from, those that counted together with it, and all that are behind its own public side."""
    promise: str


def releases_of(settings: Settings) -> Iterator[PublishedFolder]:
    """The published folders among a run's public images and the weights that it begins with."""
    named = [("data.public", part) for part in sources.parts_of(settings.data.public) if part not in sources.NAMES]
    named += [("network.from", settings.network.from_), ("latent.from", settings.latent.from_)]
    for setting, place in named:
        if place and (card := sources.card_above(Path(place))):
            own = card["name"].removesuffix(OF_SET)
            together = card.get("in_all", {}).get("sets", [])
            sets = frozenset([own, *together, *card.get(BEHIND, [])])
            yield PublishedFolder(setting, place, card.get("run", ""), sets, card.get("statement", ""))


def sets_behind(settings: Settings) -> tuple[str, ...]:
    """The private sets behind a run's public side, directly or through other releases, for the card of what it releases itself."""
    return tuple(sorted(set().union(*(release.sets for release in releases_of(settings)))))


def refuse_own(settings: Settings, names: Collection[str]) -> None:
    """`BadInput` where the public side was drawn from a private set of one of these names."""
    for release in releases_of(settings):
        if shared := sorted(release.sets & set(names)):
            raise BadInput(
                f"{release.setting}={release.place} was drawn from the private set {shared[0]!r} itself (run {release.run}): this run's certificate would leave out what "
                "that release cost; name other public images or weights, or take more of what is paid for: sfumato generate"
            )


def drawn_from_others(settings: Settings) -> tuple[str, ...]:
    """Warnings of public images or weights that were drawn from other private sets, whose promise is another one; they leave with the images, and
    name a folder without the place where it lies."""
    return tuple(
        f"{release.setting}={Path(release.place).name} was drawn from private records of {', '.join(sorted(release.sets))} ({release.promise.rstrip('.')}); whoever is among them too is "
        "protected by that promise and this run's together, not by this run's alone"
        for release in releases_of(settings)
    )
