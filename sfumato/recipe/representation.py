"""What the recipe chooses to work on: pixels where they are few, else latents of an autoencoder, and their size.

Not covered: images that no whole factor brings to `POSITIONS`, which are refused with a size that fits.
"""

import math
from collections.abc import Iterator

from sfumato.errors import BadInput
from sfumato.networks.autoencoder import PATCHES
from sfumato.recipe.denoiser import UNET_UP_TO
from sfumato.recipe.picks import Pick
from sfumato.recipe.stage_costs import Declared, strokes
from sfumato.settings import Settings

PIXELS_UP_TO = 8
"""Largest side in pixels that is drawn pixel by pixel; above, an autoencoder makes a few numbers of an image first."""
SMALL, SMALL_FOLDS, SMALL_POSITIONS = 16, (2,), (4, 8)
"""Largest side in pixels of a small image, and in the place of `FOLDS` and `POSITIONS` what holds for one: noise of class moments bends strokes then,
where it would speckle pixels (`benchmarks/small_images.py`). One that does not divide is drawn pixel by pixel."""
POSITIONS = (6, 16)
"""Fewest and most positions of a latent along a side."""
FOLDS = (4, 8, 2, 16)
"""Factors by which an autoencoder may shrink a side, of which the first that fits is used; on a CPU the first that leaves `UNET_UP_TO` positions or
fewer, where one does (docs/results/quality.md#larger-images)."""
OTHER_FOLDS = tuple(fold for fold in range(2, max(FOLDS)) if fold not in FOLDS)
"""Further sides of squares in pixels, on a CPU, where these alone leave so few positions."""
MOST_SIDE = {"cpu": 128, "gpu": max(FOLDS) * POSITIONS[1]}
"""Largest side in pixels, by the device: above, too many numbers for class moments, or too much to learn in hours."""
WIDTH_AT_FULL_SIZE = 12
"""Channels of an autoencoder that works at the images' own size first."""
CHANNELS = {
    "strokes": {2: 1, 4: 2, 8: 4, 16: 4},
    "grey": {2: 2, 4: 6, 8: 8, 16: 12},
    "colour": {2: 3, 4: 6, 8: 8, 16: 12},
}
"""Channels of a latent: by what the public images are, and by how much a side shrinks at most. Of public photographs in colour, squares of 4x4 to 4
numbers, about 73 % of what a classifier reads survives, to 6 about 86 % (docs/results/speed.md#autoencoders); of grey ones 40 % with 2
(docs/results/xrays.md#earlier-and-other-attempts); of grey shapes, squares of 8x8 to 6 numbers, 78 %, to 8 numbers 87 %
(docs/results/quality.md#larger-images)."""
OF_SMALL = {"strokes": 2}
"""Channels of a small image, where they are others."""
BESIDE, ALONE = (
    "colours are there from the first step on",
    "class moments suit latents of grey images by convolutions alone",
)
"""Why a linear map lies beside an autoencoder's convolutions, and why none does (`benchmarks/results/autoencoder-linear.json`)."""
CROWDED = {4: 4}
"""The most where there are more than `UNET_UP_TO` positions a side: 16x16x6 numbers would be too many for class moments."""


def represent(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Pixels where they are few, latents above."""
    _, height, width = declared.shape
    side = max(height, width)
    if side <= PIXELS_UP_TO or (side <= SMALL and fold_of(height, width, settings.recipe.device) is None):
        yield Pick("latent.kind", "none", f"{height}x{width} pixels are few enough to be drawn one by one")
        return
    yield Pick("latent.kind", "patch", f"above {PIXELS_UP_TO} pixels a side; public images alone teach the autoencoder")


def represent_size(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """The size of a latent, by the kind of the autoencoder."""
    channels, height, width = declared.shape
    squares = settings.latent.kind == "patch"
    fold = fold_of(height, width, settings.recipe.device, squares=squares)
    if settings.latent.kind == "none" or fold is None:
        return
    if squares:
        yield Pick("latent.patch", fold, f"{height // fold}x{width // fold} positions, each for {fold}x{fold} pixels")
        yield Pick("latent.multipliers", PATCHES.multipliers, "the patches do what levels would")
        yield Pick("latent.linear", channels > 1, BESIDE if channels > 1 else ALONE)
        yield Pick("latent.width", PATCHES.width, "convolutions at the small size cost little")
        yield Pick("latent.loss", PATCHES.loss, "squared errors of small steps come down fastest")
        yield Pick("latent.learning_rate", PATCHES.learning_rate, "as high as small steps bear")
        yield Pick("latent.batch", PATCHES.batch, "small steps bring an error down faster than large ones")
    else:
        levels = tuple(2**n for n in range(int(math.log2(fold)) + 1))
        yield Pick(
            "latent.multipliers", levels, f"{height // fold}x{width // fold} positions, each for {fold}x{fold} pixels"
        )
        yield Pick("latent.width", WIDTH_AT_FULL_SIZE, "convolutions at full size are what costs")
    shown = "colour" if channels > 1 else "strokes" if strokes(settings, declared) else "grey"
    crowded = max(height, width) // fold > UNET_UP_TO
    usual = CHANNELS[shown][min(one for one in FOLDS if one >= fold)]
    usual = OF_SMALL.get(shown, usual) if max(height, width) <= SMALL else usual
    numbers = min(usual, CROWDED.get(fold, math.inf) if crowded else math.inf)
    why = f"numbers at each of {height // fold}x{width // fold} positions; strokes need few, photographs more"
    yield Pick("latent.channels", int(numbers), why)


def fold_of(height: int, width: int, device: str, *, squares: bool = True) -> int | None:
    """The factor by which a side shrinks to a number of positions that fits the size; None where nothing fits.

    squares: whether it may be any whole number, as of the squares of `latent.kind=patch`; levels of `kl` halve.
    """
    small = max(height, width) <= SMALL
    fewest, most = SMALL_POSITIONS if small else POSITIONS

    def fitting(folds: tuple[int, ...], most: int) -> Iterator[int]:
        for fold in folds:
            whole = not (height % fold or width % fold)
            if whole and min(height, width) >= fewest * fold and max(height, width) <= most * fold:
                yield fold

    if small:
        return next(fitting(SMALL_FOLDS, most), None)
    others = OTHER_FOLDS if squares else ()
    few = fitting(FOLDS + others, UNET_UP_TO) if device == "cpu" else iter(())
    return next(few, None) or next(fitting(FOLDS, most), None)


def nearest_side(side: int, device: str) -> int:
    """The side in pixels nearest to this one that the recipe has a latent for."""
    sides = (one for one in range(min(FOLDS) * POSITIONS[0], MOST_SIDE[device] + 1) if fold_of(one, one, device))
    return min(sides, key=lambda one: (abs(one - side), one))


def refuse_undivided(declared: Declared, device: str) -> None:
    """`BadInput` for a size that no latent fits, where a person has not set the representation; it names one that does."""
    _, height, width = declared.shape
    free = not {"latent.kind", "latent.multipliers", "latent.patch"} & declared.set_fields
    too_large = max(height, width) > (most := MOST_SIDE[device])
    if free and max(height, width) > SMALL and (too_large or not fold_of(height, width, device)):
        why = f"do not divide into {POSITIONS[0]} to {POSITIONS[1]} positions a side"
        if too_large:
            why = f"are too large for the recipe, which takes at most {most} a side on a {device.upper()}"
        raise BadInput(
            f"images of {height}x{width} pixels {why}: use --set data.size={nearest_side(min(height, width), device)}"
        )
