"""`sfumato generate`: more images of a released model, or of a run that is paid for."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import OUT, SignCert, SignKey, Yes
from sfumato.errors import BadInput
from tasks.runtime.environment import configure

if TYPE_CHECKING:
    from artifacts.record import RunRecord


def generate(
    of: Annotated[str, typer.Argument(metavar="RUN|FOLDER", help="Name of a run, 'latest', or a published folder.")],
    images: Annotated[int, typer.Option(help="How many.")],
    classes: Annotated[
        list[str] | None, typer.Option(metavar="CLASS", help="Only these classes, with commas between or one by one.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed on the same machine draws the same images; else they differ.")
    ] = None,
    continuations: Annotated[
        int, typer.Option(min=0, help="So many of them go on from one noised image, and a picture shows it; of rapid.")
    ] = 0,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="A new or empty folder.")] = "more",
    key: Annotated[str, typer.Option(help="The signer's public key, as text or a file; for a published folder.")] = "",
    sign_cert: SignCert = "",
    sign_key: SignKey = "",
    yes: Yes = False,
) -> None:
    """Draw more images of what was paid for, in seconds. Trains and judges nothing, and costs nothing.

    Where each image is paid for (dp-ensemble without prototypes, empirical-denoiser without pay=class), says what as many more would cost, and asks.

    Example: sfumato generate latest --images 40 --classes 3,7 --to more
    """
    from sfumato.continuations import check_numbers
    from sfumato.generate import from_folder, named, write_more
    from sfumato.image_folder import free_folder
    from sfumato.released import CARD, load

    if "://" in of:
        raise BadInput(f"{of} is at a URL: copy it into a folder here first, and name the folder")
    folder, place = Path(of).expanduser(), configure()
    if images < 1:
        raise BadInput(f"--images {images}: give 1 or more")
    if continuations:
        check_numbers(images, continuations)
    free_folder(Path(to))
    signer = place.image_signer(sign_cert, sign_key)
    if (folder / CARD).is_file():
        model, origin = load(folder, key=key), from_folder(folder)
    elif folder.is_dir() and (folder.name != of or not (place.runs / of).is_dir()):
        raise BadInput(f"{of} is no published folder, for there is no {CARD} in it: give one, or the name of a run")
    else:
        from artifacts.model import lacking
        from artifacts.record import load_record, private_of
        from tasks.more_images import model_of, origin_of

        record = load_record(place.runs, of)
        free_folder(Path(to), beside=private_of(record))
        if why := lacking(record):
            if sign_cert or sign_key:
                raise BadInput(
                    "these images are those of a new run, which signs by SFUMATO_SIGN_CERT and SFUMATO_SIGN_KEY: set these instead"
                )
            return _pay(record, images, why, bool(classes or continuations) or seed is not None, to, yes)
        wanted = named(classes or (), record.plan.facts.classes)
        model, origin = model_of(record, classes=wanted, seed=seed), origin_of(record)
    from tasks.runtime.progress import progress

    with progress("generation", images=1) as show:
        written = write_more(
            model,
            images,
            Path(to),
            origin,
            classes=tuple(classes or ()),
            seed=seed,
            continuations=continuations,
            sign=signer.signed if signer else None,
            progress=show,
        )
    OUT.print(f"{images:,} images in {written}", soft_wrap=True, markup=False)
    OUT.print(f"covered by what was paid before: {model.certificate.sentence()}", soft_wrap=True, markup=False)


def _pay(record: "RunRecord", images: int, why: str, narrowed: bool, to: str, yes: bool) -> None:
    """Say what as many more would cost, and where a person agrees, run for them and publish."""
    from sfumato.errors import Refused
    from tasks.more_images import plan_more

    if record.certificate is None:
        raise Refused(f"no more images of run {record.run} can leave: {why}")
    if narrowed:
        raise BadInput(
            f"run {record.run} pays for each image ({why}), by fixed shares of its classes and with noise that has no seed: leave --classes, --seed and --continuations out"
        )
    planned = plan_more(record, images)
    certificate = planned.plan.certificate
    assert certificate is not None  # a run that was certified is planned again by its own settings
    OUT.print(
        f"run {record.run}: {why}. {images:,} more cost epsilon {certificate.epsilon:.4g} at delta {certificate.delta:.3g} once more "
        f"(sfumato ledger show {record.settings['data']['name']} tells what is left)",
        soft_wrap=True,
        markup=False,
    )
    if not yes and not sys.stdin.isatty():
        raise BadInput("nobody is there to ask, and nothing was spent: --yes pays for them")
    if not yes and not typer.confirm("Pay for them?"):
        return
    from flows.cli.results import summary
    from flows.synthesize import synthesize_planned
    from tasks.editions import next_edition
    from tasks.planning import Wishes
    from tasks.server.embedded import begin_server

    begin_server().wait()
    with next_edition(planned) as run:
        summary(synthesize_planned(run, Wishes(publish_to=to)))
