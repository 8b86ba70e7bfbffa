"""Public images without a download: letters and digits rendered from the fonts that matplotlib ships.

Each glyph becomes a signed-distance field, is warped (affine and elastic), inked with a random stroke width, boxed, and
counted down to the wanted size. Images of 8x8 follow the recipe of scikit-learn's digits (Alpaydin and Kaynak 1998): a
32x32 bitmap that the writing fills from top to bottom, inked pixels counted on a 4x4 grid. Other sizes follow MNIST
(LeCun et al. 1998): the writing in a box of 20/28 of the side, its centre of mass in the middle; and since handwriting
of that size shows one pen's line, each letter is thinned to its skeleton and drawn along it with one width.

Not covered: other alphabets, and bit-for-bit equality between machines (a seed fixes the images on one machine).
"""

import functools
import string
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from sfumato.errors import BadInput
from sfumato.images import WHITE, ImageSet

LETTERS = string.ascii_letters
"""The public classes of the embedded default: a-z, then A-Z."""

DRAWABLE = string.ascii_letters + string.digits
"""All characters that every font in `FONTS` draws upright on its own code point."""

SMALLEST = 8
"""Smallest side of an image, pixels."""
DIGITS_SIDE = 8
"""Side of scikit-learn's digits, whose look images of this side have; larger ones look like Omniglot."""

FONTS = (
    *("DejaVuSans", "DejaVuSans-Oblique", "DejaVuSans-Bold", "DejaVuSans-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Italic", "DejaVuSerif-Bold", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralItalic", "STIXGeneralBol", "cmr10", "cmss10", "cmti10", "cmtt10"),
)
"""matplotlib's text fonts; its others hold symbols alone, old-style digits, or repeat these."""
PEN_FONTS = tuple(name for name in FONTS if "Bol" not in name)
"""Fonts for the pen: bold letters have the same skeletons, with more spurs."""

FIELD = 64
"""Side of a signed-distance field, pixels."""
GLYPH = 36
"""Height of the letter in its field, pixels; the margin takes warp and stroke."""
HAIRLINE = 79
"""Grey level above which a scaled letter counts as inked; below a half, so that thin serifs survive."""
NEIGHBOURS = (2, 6)
"""Fewest and most inked neighbours of a pixel that thinning may take (Zhang and Suen 1984): no end of a line, and none inside."""
THINNING = 0.05
"""Share of a letter's thickest half stroke that may be taken away; more would break hairlines."""
LATTICE = 48
"""Side of the lattice that holds a warped field: coarser than the bitmap, since distances are smooth."""
NODES = 4
"""Nodes per side of the elastic displacement, interpolated bicubically."""
FLAT = 1e-6
"""Smallest difference of two neighbours on a profile that is divided by."""
HALVINGS = 7
"""Halvings of the interval in which the level of the ink lies: to a hundredth of it."""
OVERSAMPLING = 4
"""Bitmap pixels per image pixel and side; 4 gives the 16 counts of scikit-learn's digits."""
CHUNK = 512
"""Images warped at once; small enough for the cache, without effect on the result."""

ROTATION = 0.14
"""Largest rotation, radians; drawn evenly, as the next three are."""
SLANT = 0.20
"""Largest horizontal shear, width per height."""
STRETCH = 0.17
"""Largest change of the logarithm of width over height."""
SHIFT = 0.05
"""Largest sideways displacement of the box, share of its side; without it 8x8 images have even widths alone."""


@dataclass(frozen=True)
class Look:
    """How the writing sits in its image; shares of the side of the box unless said otherwise."""

    box: float
    """Side of the box as a share of the image's side."""
    widest: float
    """Width over height that wider letters are squeezed to."""
    ink: float
    """Mean of the inked area over the area of the box; with a pen, mean half width of its line over the letter's height."""
    ink_spread: float
    """Standard deviation of that over images."""
    stroke: float
    """Largest half width of a stroke, over the letter's height; keeps `l` from turning into a block."""
    elastic: float
    """Standard deviation of a node's displacement, in half sides of the field."""
    tall: bool
    """Fit the height (True) or the larger side (False) into the box."""
    by_mass: bool
    """Centre by the centre of mass (True) or by the bounding box (False)."""
    pen: bool
    """Draw along the letter's skeleton with one width (True) or keep the font's own strokes (False)."""


# Tuned by hand until mean, spread and boxing were about those of scikit-learn's digits, which are public in truth, and
# of Omniglot as `sfumato.sources.named.boxed` shows it. Beside a set that is really private no measurement of it may
# enter here: it would leave unpaid.
DIGITS_LOOK = Look(
    box=1.0, widest=0.60, ink=0.295, ink_spread=0.025, stroke=0.17, elastic=0.05, tall=True, by_mass=False, pen=False
)
PEN_LOOK = Look(
    box=20 / 28, widest=1.2, ink=0.066, ink_spread=0.013, stroke=0.085, elastic=0.07, tall=False, by_mass=True, pen=True
)
THINNEST = 0.035
"""Smallest half width of the pen's line, over the letter's height; less would break it."""


def look_of(size: int) -> Look:
    """The look that images of this side follow."""
    return DIGITS_LOOK if size == DIGITS_SIDE else PEN_LOOK


def fonts_of(look: Look) -> tuple[str, ...]:
    """The fonts that letters of this look come from."""
    return PEN_FONTS if look.pen else FONTS


def letter_bitmap(font: ImageFont.FreeTypeFont, character: str, widest: float) -> np.ndarray:
    """One letter, `GLYPH` pixels high and at most `widest` times as wide, centred; bool `[FIELD, FIELD]`."""
    left, top, right, bottom = font.getbbox(character)
    image = Image.new("L", (int(right - left), int(bottom - top)))
    ImageDraw.Draw(image).text((-left, -top), character, font=font, fill=WHITE)
    image = image.crop(image.getbbox())
    aspect = min(image.width / image.height, widest)
    image = image.resize((max(1, round(GLYPH * aspect)), GLYPH), Image.Resampling.BICUBIC)
    field = Image.new("L", (FIELD, FIELD))
    field.paste(image, ((FIELD - image.width) // 2, (FIELD - image.height) // 2))
    return np.asarray(field) > HAIRLINE


def signed_distance(bitmap: np.ndarray) -> np.ndarray:
    """Distance to the outline of a bitmap bool `[h, w]`, in pixels, positive inside; float32 `[h, w]`."""
    from scipy.ndimage import distance_transform_edt

    inside, outside = distance_transform_edt(bitmap), distance_transform_edt(~bitmap)
    return np.where(bitmap, inside - 0.5, 0.5 - outside).astype(np.float32)


def thinned(bitmaps: np.ndarray) -> np.ndarray:
    """Skeletons one pixel wide of bool `[n, h, w]` with empty borders (Zhang and Suen 1984)."""
    left, again = bitmaps.copy(), True
    while again:
        again = False
        for first in (True, False):
            # The eight neighbours, clockwise from the one above.
            shifts = ((1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1))
            around = [np.roll(left, shift, (1, 2)) for shift in shifts]
            up, _, right, _, down, _, west, _ = around
            count = np.sum(around, 0)
            turns = np.sum([~a & b for a, b in zip(around, [*around[1:], around[0]], strict=True)], 0)
            if first:
                edge = ~(up & right & down) & ~(right & down & west)
            else:
                edge = ~(up & right & west) & ~(up & down & west)
            gone = left & (count >= NEIGHBOURS[0]) & (count <= NEIGHBOURS[1]) & (turns == 1) & edge
            left &= ~gone
            again |= bool(gone.any())
    return left


@functools.lru_cache(maxsize=2)
def distance_fields(characters: str, look: Look) -> Tensor:
    """Signed distances to the outline, or to the pen's line, in units of the letter's height.

    float32 `[characters, fonts, FIELD, FIELD]`, to be read alone: most of the time of drawing few images goes here, so that it is kept.
    """
    import matplotlib
    from scipy.ndimage import distance_transform_edt

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [ImageFont.truetype(folder / f"{name}.ttf", 2 * GLYPH) for name in fonts_of(look)]
    bitmaps = np.array([letter_bitmap(font, c, look.widest) for c in characters for font in fonts])
    if look.pen:
        fields = np.array([-distance_transform_edt(~line) for line in thinned(bitmaps)], np.float32)
    else:
        fields = np.array([signed_distance(bitmap) for bitmap in bitmaps])
    return torch.from_numpy(fields).view(len(characters), len(fonts), FIELD, FIELD) / GLYPH


def warps(rng: np.random.Generator, images: int, elastic: float) -> tuple[Tensor, Tensor]:
    """Random affine maps `[images, 2, 2]` and elastic nodes `[images, 2, NODES^2]`, in half sides of the field."""
    turn, slant, stretch = rng.uniform(-1, 1, (3, images)) * [[ROTATION], [SLANT], [STRETCH]]
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    shear = np.array([[np.exp(stretch), slant], [np.zeros(images), np.ones(images)]])
    affine = np.einsum("ijn,jkn->nik", rotation, shear)
    nodes = elastic * rng.standard_normal((images, 2, NODES**2))
    return torch.from_numpy(affine).float(), torch.from_numpy(nodes).float()


def warp(fields: Tensor, affine: Tensor, nodes: Tensor) -> Tensor:
    """Fields `[n, FIELD, FIELD]` seen through each one's map; `[n, LATTICE, LATTICE]`."""
    line = (torch.arange(LATTICE) + 0.5) / LATTICE * 2 - 1
    points = torch.stack(torch.meshgrid(line, line, indexing="xy")).view(2, -1)
    bumps = torch.eye(NODES**2).view(-1, 1, NODES, NODES)
    bumps = F.interpolate(bumps, LATTICE, mode="bicubic", align_corners=True).view(NODES**2, -1)
    places = (affine @ points + nodes @ bumps).transpose(1, 2).reshape(-1, LATTICE, LATTICE, 2)
    return F.grid_sample(fields[:, None], places, padding_mode="border", align_corners=False)[:, 0]


def extent(profile: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Where `profile` `[n, LATTICE]` first and last crosses `level` `[n]`; lattice pixels and fractions, `[n]` each."""
    height = profile - level[:, None]
    inside = (height > 0).to(torch.uint8)
    first, last = inside.argmax(1), LATTICE - 1 - inside.flip(1).argmax(1)

    def crossing(edge: Tensor, step: int) -> Tensor:
        here = height.gather(1, edge[:, None])[:, 0].clamp(min=0)
        beyond = height.gather(1, (edge + step).clamp(0, LATTICE - 1)[:, None])[:, 0].clamp(max=0)
        return edge + step * here / (here - beyond).clamp(min=FLAT)

    return crossing(first, -1), crossing(last, 1)


def box_side(left: Tensor, right: Tensor, top: Tensor, bottom: Tensor, look: Look) -> Tensor:
    """Side of the square box around writing with these edges; all `[n]`, lattice pixels."""
    return bottom - top if look.tall else torch.maximum(bottom - top, right - left)


def ink_levels(warped: Tensor, ink: Tensor, look: Look) -> Tensor:
    """Level `[n]` of each field above which there is ink.

    With a pen that is the half width of its line. Else it is where `ink` of the box is covered, by bisection within
    `look.stroke`: the box grows with the stroke, so that the share has to be searched for.
    """
    if look.pen:
        return -ink.clamp(THINNEST, look.stroke)
    across, down = warped.amax(1), warped.amax(2)
    thickest = warped.amax((1, 2))
    low, high = (thickest - look.stroke).clamp(max=0), THINNING * thickest
    for _ in range(HALVINGS):
        level = (low + high) / 2
        side = box_side(*extent(across, level), *extent(down, level), look)
        heavy = (warped > level[:, None, None]).sum((1, 2)) > ink * side**2
        low, high = torch.where(heavy, level, low), torch.where(heavy, high, level)
    return (low + high) / 2


def bitmaps(warped: Tensor, level: Tensor, shift: Tensor, look: Look, side: int) -> Tensor:
    """The inked fields, boxed as `look` says and moved sideways by `shift` `[n]` boxes; bool `[n, side, side]`."""
    left, right, top, bottom = *extent(warped.amax(1), level), *extent(warped.amax(2), level)
    box = box_side(left, right, top, bottom, look)
    middle = torch.stack([(left + right) / 2 + shift * box, (top + bottom) / 2], 1)
    if look.by_mass:
        mass = (warped > level[:, None, None]).float()
        line = torch.arange(LATTICE).float()
        middle = torch.stack([mass.sum(1) @ line, mass.sum(2) @ line], 1) / mass.sum((1, 2))[:, None]
    line = (torch.arange(side) + 0.5) / side - 0.5
    pixels = middle[:, None] + (box / look.box)[:, None, None] * line[:, None]  # [n, side, (x, y)] in lattice pixels
    places = (pixels + 0.5) / LATTICE * 2 - 1
    x, y = places[:, None, :, 0].expand(-1, side, -1), places[:, :, None, 1].expand(-1, -1, side)
    inked = F.grid_sample(warped[:, None], torch.stack([x, y], -1), padding_mode="border", align_corners=False)
    return inked[:, 0] > level[:, None, None]


def count_cells(bitmap: Tensor) -> Tensor:
    """Inked pixels per cell of `OVERSAMPLING` squared as grey levels; uint8 `[n, 1, h, w]`."""
    counts = F.avg_pool2d(bitmap[:, None].float(), OVERSAMPLING) * OVERSAMPLING**2
    return (counts * WHITE / OVERSAMPLING**2).round().to(torch.uint8)


def render_glyphs(characters: str, per_class: int, size: int, seed: int) -> ImageSet:
    """`per_class` images of each character, white on black, in the order of `characters`; grey, `size` x `size`."""
    check_request(characters, per_class, size)
    rng, look, images = np.random.default_rng(seed), look_of(size), len(characters) * per_class
    labels = np.repeat(np.arange(len(characters)), per_class)
    fonts = rng.integers(len(fonts_of(look)), size=images)
    ink = torch.from_numpy(look.ink + look.ink_spread * rng.standard_normal(images)).float()
    shift = torch.from_numpy(rng.uniform(-SHIFT, SHIFT, images)).float()
    affine, nodes = warps(rng, images, look.elastic)
    fields = distance_fields(characters, look)
    pixels = []
    for chunk in np.array_split(np.arange(images), -(-images // CHUNK)):
        warped = warp(fields[labels[chunk], fonts[chunk]], affine[chunk], nodes[chunk])
        level = ink_levels(warped, ink[chunk], look)
        pixels.append(count_cells(bitmaps(warped, level, shift[chunk], look, size * OVERSAMPLING)))
    return ImageSet(torch.cat(pixels).numpy(), labels, tuple(characters))


def check_request(characters: str, per_class: int, size: int) -> None:
    """Refuse an empty choice, repeats, characters that some font lacks, and images too few or too small."""
    repeated = sorted({c for c in characters if characters.count(c) > 1})
    foreign = [c for c in characters if c not in DRAWABLE]
    if not characters or repeated or foreign:
        culprit = f"holds {foreign[0]!r}" if foreign else f"repeats {repeated[0]!r}" if repeated else "is empty"
        raise BadInput(f"the choice of glyphs {characters!r} {culprit}; use each of a-z, A-Z and 0-9 at most once")
    if per_class < 1:
        raise BadInput(f"glyphs_per_class={per_class} draws nothing; use 1 or more")
    if size < SMALLEST:
        raise BadInput(f"glyphs of {size}x{size} pixels cannot be read; use data.size={SMALLEST} or more")
