"""The public images of a person who names none: they are drawn, and private records say which of them are like their own.

Images in colour have shapes beside them. Grey ones may be writing or anything else, and what suits one spoils the other: of letters, X-rays become
letters, and of shapes digits become grey (`benchmarks/public_images.py`). So both kinds are drawn. Few of either are like a given private set, so each
record votes for the cluster of them that it looks most like (`sfumato.clusters`), at the smallest share of epsilon that makes for as many clusters as there can be,
or at the largest that they may have. Records too few for clusters vote for one of the kinds, where there are two. Where no public denoiser learns from the images
nobody votes. The source is the same for every method and epsilon, so that runs on one private set compare.
"""

import math
from typing import Any

from sfumato import sources
from sfumato.clusters import MOST, clusters_for
from sfumato.config import Data
from sfumato.methods import METHODS
from sfumato.methods.plan import noise_of_votes, with_numbers
from sfumato.recipe.stage_costs import STROKES, target_epsilon
from sfumato.section import Section
from sfumato.settings import Settings
from sfumato.sources import parts_of

SHAPES, LETTERS_AND_SHAPES = "shapes", "glyphs+shapes"
"""Public sources where the private images may show anything: in colour, and in grey."""
SHARES = (0.005, 0.01, 0.02, 0.05)
"""Shares of epsilon that the votes may cost."""
IMAGES_IN_CLUSTER = 10
"""Public images per cluster, at least."""
CANDIDATES, PIXELS = 200_000, 32 * 32
"""Further images that may be drawn, of so many pixels each; of larger ones fewer, since each takes longer."""


def unnamed(data: Data) -> bool:
    """Whether nobody has said which images are public, nor which letters, and the private ones may show anything."""
    stated = {"public", "glyphs", "glyphs_per_class"} & data.model_fields_set
    if stated or data.public_classes or data.public_without:
        return False
    return not set(parts_of(data.private)) <= STROKES


def drawn_beside(settings: Settings, shape: tuple[int, int, int], records: int) -> Settings:
    """The settings with drawn public images beside so many private records of this shape, and with the votes for what is public."""
    public = SHAPES if shape[0] > 1 else LETTERS_AND_SHAPES
    changed: dict[str, Section] = {"data": settings.data.model_copy(update={"public": public})}
    learns = (
        settings.pretraining.steps > 0 and not METHODS[settings.method.name].blueprint and not settings.network.from_
    )
    settings = settings.model_copy(update=changed)
    if not learns or settings.selection.model_fields_set or records < 2:
        return settings
    wanted = _clusters(settings, shape, records)
    if not wanted and shape[0] == 1:
        wanted = {"sources": 1, "share": SHARES[-1]}
    return settings.model_copy(update={"selection": settings.selection.model_copy(update=wanted)})


def _clusters(settings: Settings, shape: tuple[int, int, int], records: int) -> dict[str, Any]:
    """Votes for clusters of the drawn images, at the smallest share of epsilon that makes for as many as can be; none for records that are too few."""
    numbers = with_numbers(settings.privacy, target_epsilon(settings), records)
    data = settings.data.model_copy(update={"channels": shape[0]})
    images = sources.describe(data.public, sources.public_reading(data, shape[1])).records
    for share in SHARES:
        count = clusters_for(records, noise_of_votes(share * numbers.epsilon, numbers.delta, numbers.relation))
        if count == MOST:
            break
    if not (count := min(count, images // IMAGES_IN_CLUSTER)):
        return {}
    candidates = min(CANDIDATES, round(CANDIDATES * PIXELS / math.prod(shape[1:])))
    return {"clusters": count, "share": share, "candidates": candidates}


def drawn_warning(settings: Settings) -> str:
    """What is said of drawn public images that nobody chose."""
    kinds = settings.data.public.replace("glyphs", "letters").replace("+", " and ")
    if settings.selection.clusters:
        drawn = f"{kinds} are drawn, and private records vote for those of them that they look like"
        way = "--set selection.clusters=0 saves the votes, and keeps the public model for the next run"
    elif settings.selection.sources:
        drawn = f"{kinds} are drawn, and private records vote for the kind that is public"
        way = "--set data.public=glyphs for writing and data.public=shapes for all else save the votes, and keep the public model for the next run"
    else:
        drawn, way = f"{kinds} drawn at random are public", "for writing --set data.public=glyphs is better"
    return (
        f"data.public names no images, so that {drawn}: images that resemble the private ones may teach more, and look better (--set "
        f"data.public=PATH); {way}"
    )
