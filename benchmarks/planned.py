"""Hours that the papers' runs at their own size would take on one GPU, each from nothing, as the program estimates them; no data are needed.

    .venv/bin/python benchmarks/planned.py            # print them
    .venv/bin/python benchmarks/planned.py --write    # and put them into sfumato/reproductions/*.yaml, where the page of the papers has them from

The numbers of images and classes are those that the data sets were published with; everything else is the plan that `sfumato run` makes, and the
table of costs of a GPU (`sfumato.costs`), so that they are the same on every machine. Not covered: memory, and public stages that one run leaves to the next.
"""

import argparse
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from sfumato.inventory import FOLDER, Line
from sfumato.methods.plan import Facts
from sfumato.preflight import filled, plan_for
from sfumato.recipe.auto import follow
from sfumato.recipe.estimate import estimate
from sfumato.settings import Settings, resolve

PLACE = Path(__file__).resolve().parents[1] / "sfumato" / FOLDER
MINUTES = 60
BUDGET = "privacy.epsilon="
"""Begins the setting that changes next to nothing about the time."""
HOURS = re.compile(r"(, hours: [\d.]+)?\}$")
"""The end of a line of the inventory."""


@dataclass(frozen=True)
class Published:
    """A data set as it was published, at the size and with the colours in which it is stored."""

    train: int
    """Images for training."""
    every: int
    """Images in all."""
    classes: int
    channels: int
    side: int = 0
    """Pixels; 0 where it is not square, or differs."""


PUBLISHED = {
    "mnist": Published(60_000, 70_000, 10, 1, 28),
    "fashion-mnist": Published(60_000, 70_000, 10, 1, 28),
    "emnist-letters": Published(124_800, 145_600, 26, 1, 28),
    "omniglot": Published(19_280, 19_280, 964, 1, 28),
    "glyphs": Published(20_800, 20_800, 52, 1),
    "cifar10": Published(50_000, 60_000, 10, 3, 32),
    "celeba": Published(162_770, 202_599, 2, 3),
    # By the counts of black, blond and brown hair; the pictures with two of them, which are left out, are few.
    "celeba-hair": Published(96_430, 120_027, 3, 3),
    "ffhq32": Published(70_000, 70_000, 1, 3, 32),
    "ffhq64": Published(70_000, 70_000, 1, 3, 64),
    "imagenet": Published(1_281_167, 1_281_167, 1_000, 3),
    "imagenet32": Published(1_281_167, 1_281_167, 1_000, 3, 32),
}
"""Name in the settings -> sizes; those of users' folders are what the presets expect there. Deng 2012, Xiao et al. 2017, Cohen et al. 2017,
Lake et al. 2015, Krizhevsky 2009, Liu et al. 2015, Karras et al. 2019, Russakovsky et al. 2015; `glyphs` are drawn here."""


def facts_of(settings: Settings) -> tuple[Facts, int]:
    """What the plan has to know of both collections, and the number of public images."""
    data, private = settings.data, PUBLISHED[settings.data.private]
    public = [PUBLISHED[part] for part in data.public.split("+")]
    side = data.size or private.side
    labelled = data.unlabelled not in ("private", "both"), data.unlabelled not in ("public", "both")
    classes = range(private.classes if labelled[0] else 1)
    facts = Facts(
        records=private.train,
        classes=tuple(map(str, classes)),
        public_classes=sum(one.classes for one in public) if labelled[1] else 1,
        shape=(data.channels or private.channels, side, side),
    )
    return facts, sum(one.every for one in public)


@functools.cache
def hours_of(method: str, preset: str, changes: tuple[str, ...]) -> float:
    """Hours of a run on one GPU, public stages included."""
    settings = resolve(method, preset, changes)
    facts, public = facts_of(settings)
    settings = filled(follow(settings, facts, public), facts, None)
    plan = plan_for(settings, facts)
    counted = settings.model_copy(
        update={"recipe": settings.recipe.model_copy(update={"public_images": public})}
    )  # which changes no choice any more
    return estimate(counted, plan, gpu=True).minutes / MINUTES


def planned(line: Line) -> float:
    """The same of a line of the inventory, with two significant figures."""
    changes = tuple(change for change in line.changes if not change.startswith(BUDGET))
    return float(f"{hours_of(line.method, line.preset, changes):.2g}")


def full_lines(text: str) -> Iterator[tuple[int, Line]]:
    """The lines of the papers' own sizes in a file of the inventory, with their places in its text."""
    full = False
    for number, line in enumerate(text.splitlines()):
        full = line.strip() == "full:" or (full and line.lstrip().startswith("- {"))
        if full and line.lstrip().startswith("- {"):
            yield number, Line.model_validate(yaml.safe_load(line)[0])


def main() -> None:
    """Print, and write where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the hours into the inventory")
    arguments = parser.parse_args()
    for path in sorted(PLACE.glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in full_lines(path.read_text(encoding="utf-8")):
            lines[number] = HOURS.sub(f", hours: {planned(line):g}}}", lines[number], count=1)
            print(f"{planned(line):8g} h  {path.stem}: {line.what}")
        if arguments.write:
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
