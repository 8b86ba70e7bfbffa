"""Publishing: a folder that may be handed over, and the refusal to make one.

The folder holds the images below `data/` in one of three forms (`artifacts.forms`), `samples.png`, the signed `card.json`, `README.md`, the
data card with the certificate sentence (`artifacts.data_card`), `DATASHEET.md` and `croissant.json` (`artifacts.datasheet`), `report.html`,
the report that may leave, and, where the certificate covers any number of images, `model/`, which can draw more (`artifacts.model`), with a
card of its own (`artifacts.model_card`). No
other picture lies where a loader of images looks. The folder is written beside its destination and renamed, so that it
appears complete or not at all; at a URL, `card.json` comes last (`artifacts.upload`). INTERNAL samples are refused, with the
ancestor that made them INTERNAL.
"""

import hashlib
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from artifacts import serialization
from artifacts.approval import check
from artifacts.card import CARD, Evidence, add_evidence, card_of, seal
from artifacts.data_card import CROISSANT, DATASHEET, MODEL_CARD, README, data_card
from artifacts.datasheet import croissant, datasheet
from artifacts.forms import FORMS
from artifacts.gate import draw_public
from artifacts.labels import Label, combined
from artifacts.model import write_model
from artifacts.model_card import model_card
from artifacts.packaging import Packaging
from artifacts.record import UNTOLD, RunRecord, private_of
from artifacts.reports.page import in_html, inside
from artifacts.reports.run import REPORT, SAMPLES, public_page
from artifacts.store import Store, full_disk
from artifacts.upload import free_place, is_url, shown, upload
from sfumato.errors import BadInput, Refused
from sfumato.image_folder import DATA, free_folder, pictures_of, png_of, whole_folder
from sfumato.image_folder import safe_name as safe_name
from sfumato.progress import Progress, counted, silent
from sfumato.released import LEFT_OUT


def publish(
    store: Store,
    record: RunRecord,
    to: Path | str,
    evidence: Evidence | None = None,
    packaging: Packaging = Packaging(),
    progress: Progress = silent,
) -> Path | str:
    """Write the samples of a run to `to` (a new or empty folder, or a URL) and return it; `Refused` for INTERNAL samples.

    Without `evidence` the card is not signed, and nobody can check it. What `packaging` leaves open is as in the settings of the run.
    `progress` counts images.
    """
    check_label(store, record)
    packaging = packaging.of_run(record)
    check(record, packaging.terms)
    to = destination(to, private_of(record))
    if isinstance(to, str):
        with store.writing() as folder:
            _fill(folder, store, record, evidence, packaging, progress)
            upload(folder, to, mark=CARD)
        return shown(to)
    try:
        with whole_folder(to) as draft:
            _fill(draft, store, record, evidence, packaging, progress)
    except OSError as error:
        raise unwritable(error, to) from error
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


def _fill(
    folder: Path,
    store: Store,
    record: RunRecord,
    evidence: Evidence | None,
    packaging: Packaging,
    progress: Progress,
) -> None:
    source = store.folder(record.samples_artifact)
    images, form = serialization.load_images(source), FORMS[packaging.terms.form]
    model = (
        write_model(folder, store, record, packaging.terms.public_licence)
        if packaging.model
        else {LEFT_OUT: "whoever published it left it out"}
    )
    drawn = serialization.load_drawn(source)
    pictures = pictures_of(images, drawn, packaging.signer.signed if packaging.signer else None)
    form.write(folder, counted(pictures, progress, len(images)), images.classes)
    with Image.open(source / SAMPLES) as grid:
        sample = png_of(grid)
        (folder / SAMPLES).write_bytes(packaging.signer.signed(sample) if packaging.signer else sample)
    decision = check(record, packaging.terms)
    card = card_of(record, images, evidence, model) | {
        **packaging.terms.model_dump(mode="json", exclude={"approval", "approvers", "public_licence"}),
        **({"decision": decision.model_dump(mode="json")} if decision else {}),
        "date": packaging.date,
        "signed_images": packaging.signer is not None,
        "sorted": drawn is not None,
        "relabelled": 0 if drawn is None else int((drawn != images.labels).sum()),
        "of_each_class": np.bincount(images.labels, minlength=len(images.classes)).tolist(),
        "image_bytes": sum(path.stat().st_size for path in folder.glob(form.glob)),
    }
    texts = {README: data_card(card, record), DATASHEET: datasheet(card), CROISSANT: croissant(card, folder)}
    if LEFT_OUT not in model:
        texts[MODEL_CARD] = model_card(card, record)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    if record.label != Label.INTERNAL:
        with tempfile.TemporaryDirectory() as pictures_of_report:
            draw_public(Path(pictures_of_report), store, record)
            report = shareable_report(record, Path(pictures_of_report), digest_of(folder / DATA))
            (folder / REPORT).write_text(report, encoding="utf-8")
    add_evidence(folder, card)
    seal(folder, card, evidence)


def shareable_report(record: RunRecord, pictures: Path, images: str = "") -> str:
    """The report that may leave as one file, with the pictures of a folder; like the card, it shows only the name of the data, and
    no seed."""
    settings = {name: value for name, value in record.settings.items() if name not in UNTOLD}
    record = record.model_copy(update={"settings": {**settings, "data": {"name": record.settings["data"]["name"]}}})
    return in_html(public_page(record, images), inside(pictures))


def digest_of(images: Path) -> str:
    """SHA-256 over what `find DATA -type f | LC_ALL=C sort | xargs -d '\n' sha256sum` prints in a published folder."""
    folder, files = images.parent, [path for path in images.rglob("*") if path.is_file()]
    listed = sorted((path.relative_to(folder).as_posix(), path) for path in files)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n" for name, path in listed]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def below(to: str, name: str) -> str:
    """The place called `name` in a folder or at a URL."""
    return f"{to.rstrip('/')}/{name}" if is_url(to) else str(Path(to) / name)


def destination(to: Path | str, private: str = "") -> Path | str:
    """The place as an absolute path, or as a URL; `BadInput` where it is taken already, cannot be written, or lies among the `private` images."""
    if isinstance(to, str) and is_url(to):
        return free_place(to)
    return free_folder(Path(to), beside=private)


def unwritable(error: OSError, to: Path) -> BadInput:
    """The one line for a place that cannot be written."""
    known = full_disk(error, to.parent)
    return (
        known
        if isinstance(known, BadInput)
        else BadInput(f"cannot write to {to}: {error.strerror}; choose another place with --to")
    )
