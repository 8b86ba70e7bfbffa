"""Whose classes a judge that keeps the surest should go by: those that images were drawn for, or its own, on sets that stand for private ones.

    .venv/bin/python benchmarks/judge_sorts.py [--sets writing discs tissue] [--method moments dp-sgd] [--minutes 10] [--epsilon 10]

*writing*: stand-in digits (`benchmarks/stand_in.py`) in any colour on any ground, off the middle, beside letters in colour on grounds; *discs* and *tissue*: those of
`benchmarks/own_cells.py` and `benchmarks/colours.py`, beside shapes. One run of each method on each set, in a home of its own (`sfumato-home/benchmarks`);
the same drawn images are then sorted both ways. *agreed*: share of them that the judge reads as the class that they were drawn for, from chance (0) to
always (1); *apart*: how well a classifier of the drawn images tells these classes apart, the same way; *judge*: real test images that it reads rightly; *CNN*: what a small CNN reads of these after training on the sorted images, over two seeds.
`--picture` shows rows of the two ways in turn. The scores look at private images and are INTERNAL; those of stand-ins may be shown.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from colours import tissue
from own_cells import discs
from PIL import Image
from small_images import stacked
from stand_in import drawn as stand_in
from targets import set_up
from torch import Tensor

from sfumato import formats, sources
from sfumato.errors import BadInput, Refused
from sfumato.evaluation.classifier import predict, train_classifier
from sfumato.images import ImageSet, to_pixels, to_unit
from sfumato.judge import LinearJudge, agreeing, relabelled, surest
from sfumato.preflight import private_set
from sfumato.settings import Settings
from sfumato.sources.glyphs import LETTERS, render_glyphs
from sfumato.sources.shapes import ARRANGEMENTS, draw
from tasks.runtime.environment import CHECKOUT

SIDE, RECORDS, HELD_OUT, LETTERS_EACH = 28, 8000, 1500, 200
"""Pixels of a side; private records, test images, and public letters of each class."""
CONTRAST, INKS = 0.25, 64
"""Least difference of an ink from the mean of its ground, of 1, and how many are tried for each."""
SMALLEST, FARTHEST = 0.7, 0.22
"""Size of a sign, of the whole image, and how far off the middle it may lie, of half a side."""
COLUMNS = 12
"""Images in a row of the picture."""
DEVICE = torch.device("cpu")
Part = tuple[np.ndarray, np.ndarray]


def coloured(strokes: Tensor, arrangement: str, rng: np.random.Generator) -> np.ndarray:
    """White strokes on black `[n, 1, 28, 28]`, 0 to 1, in any colour on grounds of this arrangement of shapes: uint8 `[n, 3, 28, 28]`."""
    strokes = placed(strokes, rng)
    grounds = torch.cat([draw(ARRANGEMENTS[arrangement], len(part), SIDE, rng) for part in strokes.split(256)])
    inks = torch.from_numpy(rng.uniform(0, 1, (len(strokes), INKS, 3))).float()
    apart = (inks.mean(2) - grounds.clamp(0, 1).mean((1, 2, 3))[:, None]).abs() > CONTRAST
    ink = inks[torch.arange(len(strokes)), apart.float().argmax(1)][:, :, None, None]
    return to_pixels((grounds.clamp(0, 1) * (1 - strokes) + ink * strokes) * 2 - 1)


def placed(strokes: Tensor, rng: np.random.Generator) -> Tensor:
    """Strokes `[n, 1, 28, 28]`, smaller and off the middle, each in a way of its own."""
    shrunk = torch.from_numpy(1 / rng.uniform(SMALLEST, 1, len(strokes))).float()
    away = torch.from_numpy(rng.uniform(-FARTHEST, FARTHEST, (len(strokes), 2))).float() * shrunk[:, None]
    matrix = torch.cat([torch.eye(2) * shrunk[:, None, None], away[:, :, None]], 2)
    return F.grid_sample(strokes, F.affine_grid(matrix, list(strokes.shape), align_corners=False), align_corners=False)


def writing(part: str, count: int, rng: np.random.Generator) -> Part:
    """Stand-in digits in any colour on any ground."""
    pixels, labels = stand_in(part, count, rng)
    return coloured(torch.from_numpy(pixels)[:, None].float() / 255, "objects", rng), labels


def of_kinds(made: Callable[[int, np.random.Generator], tuple[Tensor, Tensor]]) -> Callable[..., Part]:
    """The records of a stand-in that draws both parts alike."""

    def records(part: str, count: int, rng: np.random.Generator) -> Part:
        x, labels = made(count, rng)
        return to_pixels(x), labels.numpy()

    return records


SETS: dict[str, Callable[..., Part]] = {"writing": writing, "discs": of_kinds(discs), "tissue": of_kinds(tissue)}


def write(name: str, folder: Path) -> list[str]:
    """Write a set and its public images as NPZ files; the settings that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, public = np.random.default_rng(0), "shapes"
    arrays: dict[str, np.ndarray] = {}
    for part, count in (("train", RECORDS), ("test", HELD_OUT)):
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = SETS[name](part, count, rng)
    arrays = {key: value.transpose(0, 2, 3, 1) if value.ndim == 4 else value for key, value in arrays.items()}
    np.savez(folder / f"{name}.npz", **arrays)
    if name == "writing":
        letters = render_glyphs(LETTERS, LETTERS_EACH, SIDE, seed=3)
        pixels = coloured(torch.from_numpy(letters.pixels).float() / 255, "clouds", rng).transpose(0, 2, 3, 1)
        np.savez(folder / "letters.npz", images=pixels, labels=letters.labels)
        public = str(folder / "letters.npz")
    return [f"data.private={folder / f'{name}.npz'}", f"data.public={public}"]


def sorted_ways(drawn: ImageSet, judged: Tensor, wanted: list[int]) -> dict[str, ImageSet]:
    """The surest of the classes drawn for, and of the judge's."""
    ways = {"drawn for": drawn, "the judge's": relabelled(drawn, judged)}
    return {way: images.subset(surest(images, judged, wanted)) for way, images in ways.items()}


def learnt(images: ImageSet, test: ImageSet) -> float:
    """What a CNN reads of test images after training on these."""
    x, y = to_unit(images.pixels), torch.from_numpy(images.labels)
    rights = []
    for seed in (0, 1):
        read = predict(train_classifier(x, y, len(images.classes), seed=seed), to_unit(test.pixels)).argmax(1)
        rights.append(float((read.numpy() == test.labels).mean()))
    return statistics.mean(rights)


def rows_of(images: ImageSet) -> Image.Image:
    """A row of each class."""
    strips = [
        np.concatenate([*images.pixels[images.labels == label][:COLUMNS].transpose(0, 2, 3, 1)], 1)
        for label in range(len(images.classes))
    ]
    sheet = Image.new("RGB", (COLUMNS * SIDE, len(strips) * SIDE))
    for number, strip in enumerate(strips):
        sheet.paste(Image.fromarray(strip), (0, number * SIDE))
    return sheet


def main() -> None:
    """Run, sort, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--method", nargs="+", default=["moments"], help="methods (default: moments)")
    parser.add_argument("--epsilon", type=float, default=10.0, help="target epsilon (default: 10)")
    parser.add_argument("--minutes", type=float, default=10.0, help="that the recipe follows (default: 10)")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING", help="further section.field=value")
    parser.add_argument("--picture", type=Path, help="where to write one of the images")
    parser.add_argument(
        "--home", type=Path, default=CHECKOUT / "sfumato-home" / "benchmarks", help="where runs are kept"
    )
    arguments = parser.parse_args()
    arguments.target = ""
    set_up(arguments)
    from flows.synthesize import synthesize
    from tasks.runtime.environment import where
    from tasks.server.embedded import start_server

    start_server()
    rows, pictures = [], []
    for name in arguments.sets:
        data = write(name, arguments.home / "judge-sorts")
        common = [
            *data,
            f"recipe.minutes={arguments.minutes}",
            f"privacy.epsilon={arguments.epsilon}",
            "judge.use=filter",
        ]
        for method in arguments.method:
            try:
                record = synthesize(method=method, preset="auto", changes=[*common, *arguments.set], go_on=True)
            except (BadInput, Refused) as error:
                raise SystemExit(f"judge_sorts: {error}") from None
            store = where().store()
            parents = store.manifest(record.samples_artifact)["parents"]
            made = {store.manifest(parent)["kind"]: store.folder(parent) for parent in parents}
            judge = formats.load_judge(made["PaidJudge"], made["PublicBackbone"], DEVICE)
            drawn = formats.load_images(made["Samples"])
            secret = private_set(Settings.model_validate(record.settings))
            test = sources.load(secret.source, secret.reading("test"))
            judged = judge.of_set(drawn, DEVICE)
            each = int(len(drawn) * record.settings["judge"]["keep"]) // len(drawn.classes)
            ways = sorted_ways(drawn, judged, [each] * len(drawn.classes))
            scores = [f"{learnt(images, test):.3f}" for images in ways.values()]
            rows.append([name, method, *figures(judge, drawn, judged, test), *scores])
            pictures += [rows_of(one) for one in ways.values()]
    print("\n| set | method | agreed | apart | judge | CNN, classes drawn for | CNN, the judge's |\n|" + " --- |" * 7)
    for row in rows:
        print(f"| {' | '.join(row)} |")
    if arguments.picture:
        stacked(pictures).save(arguments.picture)


def figures(judge: LinearJudge, drawn: ImageSet, judged: Tensor, test: ImageSet) -> list[str]:
    """How often the judge agrees with the drawing, and how far apart what was drawn lies, from chance to always; how often it is right on real images."""
    chance, right = 1 / len(drawn.classes), judge.of_set(test, DEVICE).argmax(1).numpy() == test.labels
    agreed = (len(agreeing(drawn, judged)) / len(drawn) - chance) / (1 - chance)
    return [f"{agreed:.2f}", f"{judge.separation(drawn, DEVICE):.2f}", f"{right.mean():.3f}"]


if __name__ == "__main__":
    main()
