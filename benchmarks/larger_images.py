"""Images above 32 pixels a side: how many positions an autoencoder should leave, on a set that stands for a private one.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/larger_images.py --way "" --way "latent.patch=4 latent.channels=4" [--side 64] [--picture FILE]

Private are the stained blobs of `benchmarks/own_cells.py`, 8,000 in four classes, in colour, at any side; public are the shapes that the program
draws. Each *way* is a list of settings, an empty one the recipe's own; one run of `moments` at epsilon 10 for each, in a home of its own
(`sfumato-home/larger`). *of the way*: from public images (0) to a Gaussian's draws (1), of the public model's samples in the rehearsal; *survives*: of
what a public classifier reads, the autoencoder; *readable*: read as their class by a classifier of real images; *CNN*: what one that learnt from them reads
of held-out ones. The picture has a block for each row. With 20 minutes for the recipe about as many a row.
"""

import argparse
from pathlib import Path

import numpy as np
from own_cells import discs
from PIL import Image
from small_images import SHOWN, stacked
from targets import set_up

from sfumato.errors import BadInput, Refused
from sfumato.images import to_pixels
from tasks.runtime.environment import CHECKOUT

RECORDS, HELD_OUT = 8000, 1500
"""Private records and test images."""
JUDGED = ("evaluation.classifiers=fast", "evaluation.images=2000", "generation.images=2000")
"""So that judging is no longer than the rest."""


def main() -> None:
    """Run all ways, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=64, help="pixels of a side (default: 64)")
    parser.add_argument("--grey", action="store_true", help="without colours")
    parser.add_argument("--way", action="append", default=[], help="settings of a row; repeatable")
    parser.add_argument("--minutes", type=float, default=20.0, help="what the recipe may take for a row (default: 20)")
    parser.add_argument("--home", type=Path, default=CHECKOUT / "sfumato-home" / "larger", help="where runs are kept")
    parser.add_argument("--picture", type=Path, help="where the pictures of the samples go, one above the other")
    arguments = parser.parse_args()
    arguments.target = ""
    set_up(arguments)
    from flows.synthesize import synthesize
    from tasks.server.embedded import start_server

    start_server()
    rows, pictures, file = [], [], write(arguments.home, arguments.side)
    common = [
        f"data.private={file}",
        "data.public=shapes",
        f"data.channels={1 if arguments.grey else 3}",
        f"recipe.minutes={arguments.minutes}",
        *JUDGED,
    ]
    for way in arguments.way or [""]:
        try:
            record = synthesize(method="moments", preset="auto", changes=[*common, *way.split()], go_on=True)
        except (BadInput, Refused) as error:
            raise SystemExit(f"larger_images: {error}") from None
        latent, rehearsed, scores = record.settings["latent"], record.rehearsal, record.metrics["synthetic"]
        assert rehearsed and rehearsed.samples and rehearsed.real and rehearsed.gaussian, (
            "a run with a public model is rehearsed"
        )
        positions = arguments.side // latent["patch"]
        share = (rehearsed.samples - rehearsed.real) / (rehearsed.gaussian - rehearsed.real)
        survives = "" if rehearsed.survives is None else f"{rehearsed.survives:.3f}"
        denoiser = f"{record.settings['network']['kind']}, {record.settings['pretraining']['steps']} steps"
        works_on = f"{positions}x{positions}x{latent['channels']}"
        rows.append([works_on, denoiser, f"{share:.2f}", survives, *(f"{scores[name]:.3g}" for name in SHOWN)])
        pictures.append(Image.open(record.samples).convert("RGB"))
    head = ["works on", "denoiser", "of the way", "survives", *SHOWN.values()]
    print(f"\n| {' | '.join(head)} |\n|" + " --- |" * len(head))
    for row in rows:
        print(f"| {' | '.join(row)} |")
    if arguments.picture:
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        stacked(pictures).save(arguments.picture)


def write(home: Path, side: int) -> Path:
    """The file with the private images and their test part."""
    home.mkdir(parents=True, exist_ok=True)
    file, rng, arrays = home / f"discs-{side}.npz", np.random.default_rng(0), {}
    for part, count in (("train", RECORDS), ("test", HELD_OUT)):
        images, labels = discs(count, rng, side)
        arrays |= {f"{part}_images": to_pixels(images).transpose(0, 2, 3, 1), f"{part}_labels": labels.numpy()}
    np.savez(file, **arrays)
    return file


if __name__ == "__main__":
    main()
