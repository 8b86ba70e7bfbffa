"""The public images of a person who names none: they are drawn, and beside grey images private records say which kind.

Images in colour have shapes beside them. Grey ones may be writing or anything else, and what suits one spoils the other: of letters, X-rays become
letters, and of shapes digits become grey (`benchmarks/public_images.py`). So both kinds are drawn, and each private record votes for the kind
that it is nearer to, at the smallest share of epsilon at which the noise leaves no doubt. Where none does, or where no public denoiser draws,
nobody votes: mean embeddings then have both, which suits the autoencoder, and all else has shapes.
"""

import math

from sfumato.config import Data
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
    grey = channels == 1
    share = _share(settings, records, classes) if grey else 0.0
    both = share or (grey and METHODS[settings.method.name].embeds)
    public = LETTERS_AND_SHAPES if both else SHAPES
    changed: dict[str, Section] = {"data": settings.data.model_copy(update={"public": public})}
    if share:
        changed["selection"] = settings.selection.model_copy(update={"sources": 1, "share": share})
    return settings.model_copy(update=changed)


def _share(settings: Settings, records: int, classes: int) -> float:
    """The share of epsilon for votes between two sources; 0 where there can be none."""
    learns = (
        settings.pretraining.steps > 0 and not METHODS[settings.method.name].blueprint and not settings.network.from_
    )
    if not learns or settings.selection.model_fields_set or records < 2:
        return 0.0
    privacy = with_numbers(settings.privacy, settings.privacy.epsilon, records)
    cells = 2 * classes
    for share in SHARES:
        noise = noise_of_votes(share * privacy.epsilon, privacy.delta, privacy.relation)
        if noise * math.sqrt(cells) <= CLEAR * records:
            return share
    return 0.0


def warning(settings: Settings) -> str:
    """What is said of drawn public images that nobody chose."""
    if settings.selection.sources:
        drawn = "letters and shapes are drawn, and private records vote for the kind that is public"
        way = "--set data.public=glyphs for writing and data.public=shapes for all else save the votes"
    else:
        drawn = f"{settings.data.public.replace('+', ' and ')} drawn at random are public"
        way = "for writing --set data.public=glyphs is better"
    return (
        f"data.public names no images, so that {drawn}: images that resemble the private ones may teach more, and look better (--set "
        f"data.public=PATH); {way}"
    )
