"""More images of a released model: python -m sfumato.generate released/ --images 40 --to more/

The certificate of a released model covers any number of images, so these cost nothing more. The folder is new: class folders of PNG files, a table of labels,
and a README with the certificate. In a checkout `sfumato generate` does the same, and takes runs too. With `--continuations` several go on from one noised image, and a
picture shows them beside it.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.class_shares import number_of_classes
from sfumato.continuations import Continued, continued
from sfumato.errors import BadInput
from sfumato.image_folder import (
    BEHIND,
    DATA,
    LABELS,
    ORIGIN,
    SPLIT,
    free_folder,
    pictures_of,
    png_of,
    whole_folder,
    write_folders,
)
from sfumato.images import ImageSet
from sfumato.progress import Progress, silent
from sfumato.released import CARD, ReleasedModel, load

README = "README.md"


@dataclass(frozen=True)
class Origin:
    """Where images that are drawn later come from."""

    sentence: str
    name: str
    """The name of the published set: that of the private one, and what says that it is synthetic."""
    run: str
    sets: tuple[str, ...] = ()
    """The private sets that counted together when the model was released, and those behind its public side."""


CONTINUATIONS = "continuations.png"


def write_more(
    model: ReleasedModel,
    images: int,
    to: Path,
    origin: Origin,
    *,
    classes: Sequence[str] = (),
    seed: int | None = None,
    continuations: int = 0,
    sign: Callable[[bytes], bytes] | None = None,
    progress: Progress = silent,
) -> Path:
    """Draw images of `classes` (all by default) as `ReleasedModel.draw` does, into the new folder `to`; returns it.

    `origin` says what they are drawn from; a run refuses them as its public images where its own private set is behind them. With `continuations` above 0 so many go on from each of a few noised images
    (`sfumato.continuations`), which a picture shows. `sign` takes each PNG and returns it signed. `BadInput` for a folder that is taken, a class that there is not, or a model without such noised
    images; then nothing is written.

    Many parameters: those of a drawing, its place, and how it is shown.
    """
    to = free_folder(to)
    wanted, shown = named(classes, model.classes), None
    if continuations:
        shown = continued(model, images, continuations, classes=wanted, seed=seed)
        drawn = shown.images
    else:
        drawn = ImageSet(*model.draw(images, classes=wanted, seed=seed, progress=progress), model.classes)
    try:
        with whole_folder(to) as draft:
            write_folders(draft, pictures_of(drawn, sign=sign), drawn.classes)
            if shown:
                picture = png_of(shown.picture())
                (draft / CONTINUATIONS).write_bytes(sign(picture) if sign else picture)
            (draft / ORIGIN).write_text(json.dumps(mark(model, origin), indent=1), encoding="utf-8")
            (draft / README).write_text(readme(model, drawn, origin, shown), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write to {to}: {error.strerror}; choose another place with --to") from None
    return to


def named(texts: Sequence[str], classes: Sequence[str]) -> list[str]:
    """The classes that a person names, one in each text, or several with commas between them."""
    return [name for text in texts for name in ([text] if text in classes else text.split(","))]


def mark(model: ReleasedModel, origin: Origin) -> dict[str, Any]:
    """What `sfumato.own_releases` knows them by: the fields of a card that say it."""
    return {
        "name": origin.name,
        "run": origin.run,
        "statement": model.certificate.sentence(),
        "in_all": {"sets": list(origin.sets)},
    }


def readme(model: ReleasedModel, images: ImageSet, origin: Origin, shown: Continued | None = None) -> str:
    """What the folder holds, and what it promises."""
    order = ""
    if shown:
        each = len(images) // len(shown.noised)
        order = f"\nImages go on from {len(shown.noised):,} noised ones, {each} from each, one after the other. `{CONTINUATIONS}`: a row for each, which stands first.\n"
    size, classes = "x".join(map(str, model.shape[1:])), len(set(images.labels.tolist()))
    return f"""# {len(images):,} synthetic images in {number_of_classes(classes)}, {size} pixels

{origin.sentence} Each file says that a model made it.

**{model.certificate.sentence()}** It covers any number of images, and so these: drawing them cost nothing more.

`{DATA}/{SPLIT}/CLASS/NUMBER.png`, `{LABELS}` (file, label, class), `{ORIGIN}` (what they were drawn from).
{order}"""


def from_folder(folder: Path) -> Origin:
    """A published folder, by its card and the digest of it."""
    text = (folder.expanduser() / CARD).read_bytes()
    card, digest = json.loads(text), hashlib.sha256(text).hexdigest()
    return Origin(
        f"Drawn from the released model whose card (`{CARD}`) has the SHA-256 {digest}.",
        card["name"],
        card["run"],
        (*card.get("in_all", {}).get("sets", ()), *card.get(BEHIND, ())),
    )


def main() -> None:
    """Read the command line; exit code 2 for a mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a published folder with a model")
    parser.add_argument("--images", type=int, required=True, help="how many")
    parser.add_argument(
        "--classes", nargs="+", action="extend", default=[], help="classes to draw (default: all, as in the run)"
    )
    parser.add_argument("--seed", type=int, help="the same seed on the same machine draws the same images")
    parser.add_argument(
        "--continuations", type=int, default=0, help="how many of them go on from one noised image (a model of rapid)"
    )
    parser.add_argument("--to", type=Path, default=Path("more"), help="a new or empty folder (default: more)")
    parser.add_argument("--key", default="", help="the signer's public key, as text or a file, got from the signer")
    given = parser.parse_args()
    try:
        model, origin = load(given.folder, key=given.key), from_folder(given.folder)
        to = write_more(
            model,
            given.images,
            given.to,
            origin,
            classes=given.classes,
            seed=given.seed,
            continuations=given.continuations,
        )
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    print(f"{given.images:,} images in {to}. {model.certificate.sentence()}")


if __name__ == "__main__":
    main()
