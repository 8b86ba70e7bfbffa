"""What a classifier of the papers learns from the images of finished runs, over as many epochs as the papers train.

    .venv/bin/python benchmarks/teach.py RUN [RUN ...] --home sfumato-home/targets --classifier paper_cnn --epochs 50
    .venv/bin/python benchmarks/teach.py RUN --home sfumato-home/targets --classifier resnet9 --epochs 10 --real

Reads a run's images and the real test images of its private set; `--real` adds what real training images teach, the ceiling. `--draw 8000` draws so
many anew from the run's model, which costs nothing more. Scores are INTERNAL. The papers' CNN takes about a minute an epoch of 30,000 images of 28x28 on a core and a half.
"""

import argparse
import os
import time
from pathlib import Path

import torch

from artifacts.record import RunRecord, load_record
from sfumato import sources
from sfumato.evaluation import networks
from sfumato.evaluation.utility import NETWORKS
from sfumato.images import ImageSet, to_unit
from sfumato.preflight import private_of
from sfumato.settings import Settings
from tasks.comparison import samples_of
from tasks.runtime.environment import CHECKOUT, configure


def main() -> None:
    """Teach one classifier by each run's images, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="run", help="names of finished runs of one private set")
    parser.add_argument("--home", type=Path, default=CHECKOUT / "sfumato-home" / "targets", help="where runs are kept")
    parser.add_argument("--classifier", choices=list(NETWORKS), default="paper_cnn", help="default: paper_cnn")
    parser.add_argument("--epochs", type=int, default=50, help="default: 50")
    parser.add_argument("--images", type=int, default=30_000, help="at most so many of each set (default: 30000)")
    parser.add_argument(
        "--draw", type=int, default=0, help="draw so many from each run's model, in place of its images"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the classifier (default: 0)")
    parser.add_argument("--real", action="store_true", help="teach by real training images too")
    given = parser.parse_args()
    os.environ["SFUMATO_HOME"] = str(given.home.resolve())
    place = configure()
    records = [load_record(place.runs, run) for run in given.runs]
    settings = Settings.model_validate({key: value for key, value in records[0].settings.items() if key != "machine"})
    private = private_of(settings.data.model_copy(update={"folder": str(place.data)}))
    test = sources.load(private.source, private.reading("test"))
    sets = [
        (record.method, f"{record.certificate.epsilon:.3g}" if record.certificate else "none", images_of(record, given))
        for record in records
    ]
    if given.real:
        sets.append(("real training images", "", sources.load(private.source, private.reading("train"))))
    print("| images of | epsilon | images | classifier | epochs | accuracy | minutes |\n|" + " --- |" * 7)
    for name, epsilon, images in sets:
        began, count = time.monotonic(), min(given.images, len(images))
        right = accuracy(images, test, given)
        minutes = (time.monotonic() - began) / 60
        row = (name, epsilon, f"{count:,}", given.classifier, given.epochs, f"{right:.4f}", f"{minutes:.1f}")
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


def images_of(record: RunRecord, given: argparse.Namespace) -> ImageSet:
    """The images of a run, or others of its model."""
    if not given.draw:
        return samples_of(record)
    from tasks.more_images import model_of

    model = model_of(record)
    return ImageSet(*model.draw(given.draw, seed=given.seed), model.classes)


def accuracy(images: ImageSet, test: ImageSet, given: argparse.Namespace) -> float:
    """The share of the real test images that a classifier reads which these images taught."""
    few = torch.randperm(len(images), generator=torch.Generator().manual_seed(given.seed))[: given.images]
    shown, labels = to_unit(images.pixels)[few], torch.from_numpy(images.labels)[few]
    build = NETWORKS[given.classifier]
    taught = networks.trained(build, shown, labels, len(test.classes), epochs=given.epochs, seed=given.seed)
    return float((networks.read(taught, to_unit(test.pixels)) == torch.from_numpy(test.labels)).double().mean())


if __name__ == "__main__":
    main()
