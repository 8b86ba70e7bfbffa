"""Small images of few records, drawn pixel by pixel and in latents of 2x2 pixels: what the recipe chooses above 8 pixels a side, and why.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/small_images.py [--side 12] [--method moments rapid] [--picture FILE]

The private set is drawn here: rings, crosses and bars, 420 of each, a fifth of them held out, white on black, of any size, place, turn and pen. Public are the rendered letters. Each
method runs by `--preset auto` in both ways, in a home of its own (`sfumato-home/small`). *readable*: read as their class by a classifier of real
images; *CNN*: what one that learnt from them reads of held-out ones. The picture has a block for each row of the table. About three minutes a row.
"""

import argparse
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from targets import set_up

from sfumato.errors import BadInput, Refused
from tasks.runtime.environment import CHECKOUT

RECORDS, FINE, SOFT = 420, 4, 0.6
"""Images of a class; steps of the grid within a pixel; width of an edge in pixels."""
WAYS = {"pixels": ["latent.kind=none"], "as the recipe has it": []}
SHOWN = {
    "frechet": "Frechet distance",
    "coverage": "coverage",
    "two_sample_auc": "told from real",
    "readable": "readable",
    "cnn": "CNN",
}
Far = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
"""How far each place is from a shape's line, by across, down and size."""
SHAPES: dict[str, Far] = {
    "rings": lambda u, v, size: np.abs(np.hypot(u, v) - size),
    "crosses": lambda u, v, size: np.minimum(stroke(u, v, size), stroke(v, u, size)),
    "bars": lambda u, v, size: stroke(u, v, size),
}


def main() -> None:
    """Run all rows, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=12, help="pixels of a side (default: 12)")
    parser.add_argument("--method", nargs="+", default=["moments", "rapid"])
    parser.add_argument("--minutes", type=float, default=3.0, help="what the recipe may take for a row (default: 3)")
    parser.add_argument("--home", type=Path, default=CHECKOUT / "sfumato-home" / "small", help="where runs are kept")
    parser.add_argument("--picture", type=Path, help="where the pictures of the samples go, one above the other")
    arguments = parser.parse_args()
    arguments.target = ""
    set_up(arguments)
    from flows.synthesize import synthesize
    from tasks.server.embedded import start_server

    start_server()
    rows, pictures = [], []
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder), arguments.side)
        common = [
            f"data.private={folder}",
            "data.name=shapes",
            "data.public=glyphs",
            f"recipe.minutes={arguments.minutes}",
        ]
        for method in arguments.method:
            for way, changes in WAYS.items():
                try:
                    record = synthesize(method=method, preset="auto", changes=[*common, *changes])
                except (BadInput, Refused) as error:
                    raise SystemExit(f"small_images: {error}") from None
                scores = record.metrics["synthetic"]
                rows.append([method, way, *(f"{scores[name]:.3g}" for name in SHOWN)])
                pictures.append(Image.open(record.samples).convert("L"))
    print(f"\n| method | drawn as | {' | '.join(SHOWN.values())} |\n|" + " --- |" * (len(SHOWN) + 2))
    for row in rows:
        print(f"| {' | '.join(row)} |")
    if arguments.picture:
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        stacked(pictures).save(arguments.picture)


def draw(folder: Path, side: int) -> None:
    """Write the shapes as PNG files, a folder for each class."""
    rng = np.random.default_rng(0)
    for name, far in SHAPES.items():
        (folder / name).mkdir()
        for number in range(RECORDS):
            Image.fromarray(one(far, side, rng)).save(folder / name / f"{number:04d}.png")


def one(far: Far, side: int, rng: np.random.Generator) -> np.ndarray:
    """An image of a shape, uint8 `[side, side]`."""
    line = (np.arange(side * FINE) + 0.5) / FINE - side / 2
    across, down = (axis - rng.normal(0, side / 16) for axis in np.meshgrid(line, line))
    turn = rng.uniform(-0.5, 0.5)
    u, v = across * math.cos(turn) + down * math.sin(turn), down * math.cos(turn) - across * math.sin(turn)
    ink = 1 / (1 + np.exp((far(u, v, side * rng.uniform(0.22, 0.36)) - rng.uniform(0.05, 0.09) * side) / (SOFT / 2)))
    grey = ink.reshape(side, FINE, side, FINE).mean((1, 3)) * rng.uniform(0.75, 1)
    return (255 * grey).astype(np.uint8)


def stroke(u: np.ndarray, v: np.ndarray, size: float) -> np.ndarray:
    """Distance from a line of this half-length along `u`."""
    return np.hypot(np.maximum(np.abs(u) - size, 0), v)


def stacked(pictures: list[Image.Image]) -> Image.Image:
    """Pictures one above the other."""
    gap = 8
    height = sum(picture.height + gap for picture in pictures) - gap
    sheet, top = Image.new(pictures[0].mode, (max(picture.width for picture in pictures), height), "white"), 0
    for picture in pictures:
        sheet.paste(picture, (0, top))
        top += picture.height + gap
    return sheet


if __name__ == "__main__":
    main()
