"""Publishing: a folder that may be handed over, and the refusal to make one.

The folder holds an image folder (`images/class/000123.png`), `labels.csv`, `samples.png`, `card.json`, `README.md`, the
data card with the certificate sentence, `report.html`, the report that may leave, and, where the certificate covers any number of
images, `model/`, which can draw more (`artifacts.model`). The folder is written beside its destination and renamed, so that it
appears complete or not at all; at a URL, `card.json` comes last (`artifacts.upload`). INTERNAL samples are refused, with the
ancestor that made them INTERNAL.
"""

import csv
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from artifacts import serialization
from artifacts.card import CARD, CHECKER, REGISTRY, Evidence, add_evidence, card_of, seal
from artifacts.gate import draw_public
from artifacts.labels import Label, combined
from artifacts.model import FOR_DIFFUSERS, write_model
from artifacts.record import UNTOLD, RunRecord
from artifacts.reports.page import PageSection, in_html, inside, section_in_markdown
from artifacts.reports.run import REPORT, class_blocks, labels_note, not_covered, public_page, went_on
from artifacts.store import Store, full_disk
from artifacts.upload import free_place, is_url, shown, upload
from sfumato.class_shares import number_of_classes
from sfumato.errors import BadInput, Refused
from sfumato.images import ImageSet, picture, save_png
from sfumato.released import LEFT_OUT

NAME_DIGITS = 6
"""Digits of a published file's name."""
NAME_LENGTH = 60
"""Longest folder name in characters; file systems take 255 bytes."""


def publish(
    store: Store, record: RunRecord, to: Path | str, evidence: Evidence | None = None, *, model: bool = True
) -> Path | str:
    """Write the samples of a run to `to` (a new or empty folder, or a URL) and return it; `Refused` for INTERNAL samples.

    Without `evidence` the card is not signed, and nobody can check it. `model` adds the model where the certificate allows it.
    """
    check_label(store, record)
    to = destination(to)
    if isinstance(to, str):
        with store.writing() as folder:
            _fill(folder, store, record, evidence, model)
            upload(folder, to, mark=CARD)
        return shown(to)
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
    except OSError as error:
        raise unwritable(error, to) from None
    try:
        _fill(draft, store, record, evidence, model)
        draft.chmod(0o755)
        if to.exists():
            to.rmdir()
        os.rename(draft, to)
    except OSError as error:
        raise unwritable(error, to) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return to


def check_label(store: Store, record: RunRecord) -> None:
    """`Refused` for samples that may not leave: INTERNAL ones, unless a person accepted the claim.

    A last check of the record; `artifacts.gate` has checked ledger and store.
    """
    label = combined([store.manifest(record.samples_artifact)["label"], store.label_of(record.samples_artifact)])
    if label == Label.INTERNAL and not record.override("claim"):
        raise Refused(
            f"the samples of run {record.run} are INTERNAL, because of {store.tainted_by(record.samples_artifact)}: they must not "
            'leave, unless someone answers for the claim with --accept-claim "REASON"'
        )
    if label == Label.DP and record.certificate is None:
        raise Refused(f"the samples of run {record.run} have no certificate: they must not leave")


def _fill(folder: Path, store: Store, record: RunRecord, evidence: Evidence | None, model: bool) -> None:
    source = store.folder(record.samples_artifact)
    images = serialization.load_images(source)
    model_facts = write_model(folder, store, record) if model else {LEFT_OUT: "whoever published it left it out"}
    card = card_of(record, images, evidence, model_facts)
    _write(folder, images, serialization.load_drawn(source))
    (folder / "README.md").write_text(data_card(card, record), encoding="utf-8")
    shutil.copyfile(source / "samples.png", folder / "samples.png")
    if record.label != Label.INTERNAL:
        with tempfile.TemporaryDirectory() as pictures:
            draw_public(Path(pictures), store, record)
            (folder / REPORT).write_text(shareable_report(record, Path(pictures)), encoding="utf-8")
    add_evidence(folder, card)
    seal(folder, card, evidence)


def shareable_report(record: RunRecord, pictures: Path) -> str:
    """The report that may leave as one file, with the pictures of a folder; like the card, it shows only the name of the data, and
    no seed."""
    settings = {name: value for name, value in record.settings.items() if name not in UNTOLD}
    record = record.model_copy(update={"settings": {**settings, "data": {"name": record.settings["data"]["name"]}}})
    return in_html(public_page(record), inside(pictures))


def below(to: str, name: str) -> str:
    """The place called `name` in a folder or at a URL."""
    return f"{to.rstrip('/')}/{name}" if is_url(to) else str(Path(to) / name)


def destination(to: Path | str) -> Path | str:
    """The place as an absolute path, or as a URL; `BadInput` where it is taken already, or cannot be written."""
    if isinstance(to, str) and is_url(to):
        return free_place(to)
    return folder_at(Path(to))


def folder_at(to: Path) -> Path:
    """A folder as an absolute path; `BadInput` where it is taken already, or cannot be written."""
    to = to.expanduser().resolve()
    try:
        occupied = to.exists() and (not to.is_dir() or any(to.iterdir()))
        above = next(place for place in to.parents if place.exists())
    except OSError as error:
        raise unwritable(error, to) from None
    if occupied:
        raise BadInput(f"{to} exists and is not an empty folder: choose another place with --to")
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise BadInput(f"cannot write to {to}: {above} is no folder that you may write; choose another place with --to")
    return to


def unwritable(error: OSError, to: Path) -> BadInput:
    """The one line for a place that cannot be written."""
    known = full_disk(error, to.parent)
    return (
        known
        if isinstance(known, BadInput)
        else BadInput(f"cannot write to {to}: {error.strerror}; choose another place with --to")
    )


def _write(folder: Path, images: ImageSet, drawn: np.ndarray | None = None) -> None:
    """Write images by class, and their labels: the final ones, and the classes `drawn` for where a judge changed them."""
    names = folder_names(images.classes)
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "label", "class", *(["drawn"] if drawn is not None else [])])
        for number, label in enumerate(images.labels):
            path = folder / "images" / names[label] / f"{number:0{NAME_DIGITS}d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_png(path, picture(images.pixels[number]))
            drawn_class = [] if drawn is None else [images.classes[drawn[number]]]
            rows.writerow([path.relative_to(folder).as_posix(), label, images.classes[label], *drawn_class])


def data_card(card: dict, record: RunRecord) -> str:
    """The README of a published set: its content, its method, the statement and its limits."""
    claim = record.claim
    return "\n".join(
        [
            f"# {card['name']}",
            "",
            f"{card['images']} synthetic images in {number_of_classes(len(card['classes']))}, "
            f"{card['shape'][1]}x{card['shape'][2]} pixels, {card['shape'][0]} channel(s). Each was drawn by a model, none taken from the private collection.",
            "",
            "## Privacy",
            "",
            f"**{card['statement']}**",
            "",
            f"Label: {card['label']}. For comparison, the paper's own analysis claims epsilon {claim.epsilon:.3f} ({claim.source}); "
            "a claim is not a promise.",
            "",
            *(line for warning in record.plan.warnings for line in (f"Warning: {warning}.", "")),
            *(
                (f"Warning: the rehearsal with public images failed: {failed}", "")
                if (failed := went_on(record))
                else ()
            ),
            "## How it was made",
            "",
            f"Method `{card['method']}`; settings and mechanisms in `card.json`. Ledger entries "
            f"{', '.join(map(str, card['ledger_entries']))}, run `{card['run']}`.",
            "",
            *([labels, ""] if (labels := labels_note(record)) else []),
            *(section_in_markdown(PageSection("Classes", classes)) if (classes := class_blocks(record)) else ()),
            "## What is here",
            "",
            "`images/CLASS/NUMBER.png`, `labels.csv` (file, label, class"
            + (", class drawn for" if record.judged else "")
            + "), `samples.png`, `card.json`, "
            f"`{REGISTRY}` (a draft for the deployments registry of OpenDP), `{CHECKER}`"
            + (f", `{REPORT}` (all of this with pictures, one file)." if record.label != Label.INTERNAL else "."),
            "",
            *model_note(card),
            f"To check it, take `{CHECKER}` from a release of Sfumato and the key from whoever signed, not from here: "
            f"`python {CHECKER} {CARD} --key KEY`.",
            "",
            "![samples](samples.png)",
            "",
            *section_in_markdown(not_covered(record.plan)),
        ]
    )


def model_note(card: Mapping[str, Any]) -> list[str]:
    """The lines of the data card on the model beside the images, or on the reason why there is none."""
    model = card["model"]
    if LEFT_OUT in model:
        return [f"There is no model to draw more from: {model[LEFT_OUT]}.", ""]
    pipeline = model.get(FOR_DIFFUSERS, "")
    with_diffusers = (
        f" There is no pipeline for diffusers ({pipeline.removeprefix('none: ')})."
        if pipeline.startswith("none")
        else ' So does diffusers: `DiffusionPipeline.from_pretrained("FOLDER", trust_remote_code=True)(1000).images`, by the code in '
        "`pipeline.py`, which you may read first."
    )
    shown = " The knowledge base holds public images." if "base" in model["parts"] else ""
    return [
        f"`model/` ({model['bytes'] / 1e6:.1f} MB) draws more images under the same statement, in Python: "
        f'`sfumato.load("FOLDER").draw(1000)`.{shown}{with_diffusers}',
        "",
    ]


def folder_names(classes: Sequence[str]) -> list[str]:
    """A folder name of its own for each class."""
    names: list[str] = []
    for safe in map(safe_name, classes):
        names.append(
            next(name for name in (safe, *(f"{safe}-{i}" for i in range(2, len(classes) + 2))) if name not in names)
        )
    return names


def safe_name(name: str) -> str:
    """A class name as a folder name: letters, digits, dot, dash and underscore; never one that leaves its folder."""
    clean = re.sub(r"[^\w.\-]+", "_", name).lstrip(".")
    return clean[:NAME_LENGTH] or "class"
