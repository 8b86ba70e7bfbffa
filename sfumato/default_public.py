"""The public images of a person who names none: they are drawn, and beside grey images private records say which kind.

Images in colour have shapes beside them. Grey ones may be writing or anything else, and what suits one spoils the other: of letters, X-rays become
letters, and of shapes digits become grey (`benchmarks/public_images.py`). So both kinds are drawn, and each private record votes for the kind
that it is nearer to, at the smallest share of epsilon at which the noise leaves no doubt, or at the largest that they may have. Where no public denoiser
learns from them nobody votes. The source is the same for every method and epsilon, so that runs on one private set compare.
"""

import math

from sfumato.config import Data, Privacy
from sfumato.methods import METHODS
from sfumato.methods.plan import noise_of_votes, with_numbers
from sfumato.recipe.stage_costs import STROKES
from sfumato.section import Section
from sfumato.settings import Settings
from sfumato.sources import parts_of

SHAPES, LETTERS_AND_SHAPES = "shapes", "glyphs+shapes"
"""Public sources where the private images may show anything: in colour, and in grey."""
SHARES = (0.005, 0.01, 0.02, 0.05)
"""Shares of epsilon that the votes may cost."""
CLEAR = 0.1
"""Largest noise on the difference of two sources' votes, as a share of the records."""


def unnamed(data: Data) -> bool:
    """Whether nobody has said which images are public, nor which letters, and the private ones may show anything."""
    stated = {"public", "glyphs", "glyphs_per_class"} & data.model_fields_set
    if stated or data.public_classes or data.public_without:
        return False
    return not set(parts_of(data.private)) <= STROKES


def drawn_beside(settings: Settings, channels: int, records: int, classes: int) -> Settings:
    """The settings with drawn public images beside private ones of so many channels, records and classes, and with the votes between them."""
    if channels > 1:
        return settings.model_copy(update={"data": settings.data.model_copy(update={"public": SHAPES})})
    changed: dict[str, Section] = {"data": settings.data.model_copy(update={"public": LETTERS_AND_SHAPES})}
    learns = (
        settings.pretraining.steps > 0 and not METHODS[settings.method.name].blueprint and not settings.network.from_
    )
    if learns and not settings.selection.model_fields_set and records > 1:
        share = _share(settings.privacy, records, classes)
        changed["selection"] = settings.selection.model_copy(update={"sources": 1, "share": share})
    return settings.model_copy(update=changed)


def _share(privacy: Privacy, records: int, classes: int) -> float:
    """The share of epsilon for votes between two sources."""
    numbers, cells = with_numbers(privacy, privacy.epsilon, records), 2 * classes
    for share in SHARES:
        noise = noise_of_votes(share * numbers.epsilon, numbers.delta, numbers.relation)
        if noise * math.sqrt(cells) <= CLEAR * records:
            return share
    return SHARES[-1]


def drawn_warning(settings: Settings) -> str:
    """What is said of drawn public images that nobody chose."""
    if settings.selection.sources:
        drawn = "letters and shapes are drawn, and private records vote for the kind that is public"
        way = "--set data.public=glyphs for writing and data.public=shapes for all else save the votes, and keep the public model for the next run"
    else:
        drawn = f"{settings.data.public.replace('+', ' and ')} drawn at random are public"
        if settings.selection.clusters:
            drawn += ", and private records vote for clusters of them"
        way = "for writing --set data.public=glyphs is better"
    return (
        f"data.public names no images, so that {drawn}: images that resemble the private ones may teach more, and look better (--set "
        f"data.public=PATH); {way}"
    )
