"""A folder of handwritten digits with planted defects, to see what `sfumato check` finds; the tests check the same folder.

    .venv/bin/python benchmarks/planted_defects.py --to planted
    .venv/bin/sfumato check planted/scans --public planted/open --set data.group=prefix

Forty digits of ten persons in two classes, and twenty public ones. Planted: a file that was cut off and one that is no
picture, a digit that lies in both classes under two persons, one saved anew as JPEG, one resized; and among the public
pictures a private one, a resized and an inverted one.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SIDE, PRIVATE, PUBLIC, IMAGES_EACH = 32, 40, 20, 4
"""Pixels of a side, private and public digits, and digits of each person."""
CLASSES = ("even", "odd")


def plant(folder: Path) -> tuple[Path, Path]:
    """Write the folders `scans` and `open` below `folder`; returns them."""
    pixels = (load_digits().images[: PRIVATE + PUBLIC] * 255 / 16).astype(np.uint8)
    digits = [Image.fromarray(one).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for one in pixels]
    private, public = folder / "scans", folder / "open"
    for place in (private, public):
        for name in CLASSES:
            (place / name).mkdir(parents=True)
    for at, image in enumerate(digits[:PRIVATE]):
        image.save(private / CLASSES[at % 2] / f"p{at // IMAGES_EACH}_{at}.png")
    for at, image in enumerate(digits[PRIVATE:]):
        image.save(public / CLASSES[at % 2] / f"{at}.png")
    digits[3].save(private / "even" / "p20_copy.png")
    digits[8].save(private / "even" / "p2_again.jpg", quality=70)
    digits[10].convert("RGB").resize((40, 40)).save(private / "even" / "p21_large.png")
    digits[20].save(public / "odd" / "leak.png")
    digits[21].resize((64, 64)).save(public / "odd" / "resized.png")
    Image.eval(digits[22], lambda level: 255 - level).save(public / "odd" / "negative.png")
    whole = (private / "even" / "p0_0.png").read_bytes()
    (private / "even" / "p9_cut.png").write_bytes(whole[:80])
    (private / "odd" / "p9_text.png").write_bytes(b"hello")
    return private, public


def main() -> None:
    """Write them where they were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="a new folder")
    to = parser.parse_args().to
    if to.exists():
        parser.error(f"--to {to}: exists already; give a new folder")
    print("\n".join(map(str, plant(to))))


if __name__ == "__main__":
    main()
