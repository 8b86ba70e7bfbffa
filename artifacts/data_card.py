"""The README of a published set: the header that Hugging Face reads, and below it content, promise, limits and how to load it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from artifacts.card import CHECKER, REGISTRY
from artifacts.forms import FORMS
from artifacts.model import FOR_DIFFUSERS
from artifacts.record import RunRecord
from artifacts.reports.in_short import doubts
from artifacts.reports.page import PageSection, section_in_markdown
from artifacts.reports.run import REPORT, SAMPLES, class_blocks, labels_note, not_covered, went_on
from sfumato.class_shares import number_of_classes
from sfumato.image_folder import DATA, LABELS, SPLIT, folder_names, shown_names
from sfumato.privacy.ledger.decisions import Decision
from sfumato.released import CARD, LEFT_OUT, MODEL, WITHOUT, in_words

README, CROISSANT, DATASHEET = "README.md", "croissant.json", "DATASHEET.md"
MODEL_CARD = f"{MODEL}/{README}"
SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)
"""Hugging Face's names for sizes, each with the number of images below which it holds."""
MORE = "10M<n<100M"
OWN_TERMS = "LicenseRef-"
"""Begins the name of a licence that is no identifier of SPDX."""


def data_card(card: Mapping[str, Any], record: RunRecord) -> str:
    """The README of a set whose card has all fields but the digests."""
    header = yaml.safe_dump(hugging_face(card), sort_keys=False, allow_unicode=True, width=1000)
    return "\n".join(
        [
            "---",
            f"{header}---",
            "",
            f"# {card['name']}",
            "",
            f"{card['images']} synthetic images {in_classes(card)}, "
            f"{card['shape'][1]}x{card['shape'][2]} pixels, {card['shape'][0]} channel(s). Each was drawn by a model, none taken from the "
            f"private collection, and each file says so (IPTC `trainedAlgorithmicMedia`{', C2PA' if card['signed_images'] else ''}). "
            f"Licence: {card['licence']}.",
            "",
            "## Privacy",
            "",
            f"**{card['statement']}**",
            "",
            f"Label: {card['label']}. {claimed(record)}",
            "",
            *cautions(card, record),
            "## How to load it",
            "",
            *loading(card),
            "## How it was made",
            "",
            f"Method `{card['method']}`; settings and mechanisms in `{CARD}`. Ledger entries "
            f"{', '.join(map(str, card['ledger_entries']))}, run `{card['run']}`.",
            "",
            *([labels, ""] if (labels := labels_note(record)) else []),
            *(section_in_markdown(PageSection("Classes", classes)) if (classes := class_blocks(record)) else ()),
            "## What is here",
            "",
            *contents(card, record),
            "",
            *model_note(card),
            f"To check it, take `{CHECKER}` from a release of Sfumato and the key from whoever signed, not from here: "
            f"`python {CHECKER} {CARD} --key KEY`.",
            "",
            f"![samples]({SAMPLES})",
            "",
            *section_in_markdown(not_covered(record.plan)),
        ]
    )


def decided(card: Mapping[str, Any]) -> Decision | None:
    """The decision by which the images left; None where there was none."""
    return Decision.model_validate(card["decision"]) if "decision" in card else None


def hugging_face(card: Mapping[str, Any]) -> dict[str, Any]:
    """The header of the README, by which Hugging Face finds and loads the set."""
    size = next((name for limit, name in SIZES if card["images"] < limit), MORE)
    labelled = len(card["classes"]) > 1
    return {
        **licence_fields(card["licence"]),
        "pretty_name": card["name"],
        "task_categories": ["image-classification" if labelled else "unconditional-image-generation"],
        "size_categories": [size],
        "annotations_creators": ["machine-generated"],
        "tags": ["synthetic", "differential-privacy", "sfumato"],
        "configs": [
            {"config_name": "default", "data_files": [{"split": SPLIT, "path": FORMS[card["form"]].glob}]},
        ],
        "dataset_info": {
            "features": features(card),
            "splits": [{"name": SPLIT, "num_bytes": card["image_bytes"], "num_examples": card["images"]}],
        },
    }


def features(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The columns of the set as Hugging Face's loader of its form gives them."""
    names = label_names(card)
    label = {"class_label": {"names": {str(number): name for number, name in enumerate(names)}}}
    drawn, columns = bool(card["sorted"]), list[dict[str, Any]]()
    if card["form"] == "webdataset":
        about: list[dict[str, Any]] = [
            {"name": name, "dtype": "string"} for name in ("class", *(["drawn"] if drawn else []))
        ]
        columns = [
            {"name": "png", "dtype": "image"},
            {"name": "cls", "dtype": "int64"},
            {"name": "json", "struct": about},
        ]
        return [*columns, *({"name": name, "dtype": "string"} for name in ("__key__", "__url__"))]
    columns = [{"name": "image", "dtype": "image"}]
    if card["form"] == "parquet":
        return [*columns, {"name": "label", "dtype": label}, *([{"name": "drawn", "dtype": label}] if drawn else [])]
    return [*columns, *([{"name": "label", "dtype": label}] if len(names) > 1 else [])]


def in_classes(card: Mapping[str, Any]) -> str:
    """How many classes the images are of, such as `in 3 classes`, and how many were drawn where some have no image."""
    there, drawn = sum(map(bool, card["of_each_class"])), len(card["classes"])
    return f"in {number_of_classes(drawn)}" if there == drawn else f"in {there} of {number_of_classes(drawn)}"


def label_names(card: Mapping[str, Any]) -> list[str]:
    """The names of the labels 0, 1, ... as loaders of its form give them: of folders those that hold images, in order."""
    if card["form"] != "folder":
        return shown_names(card["classes"])
    return sorted(
        name for name, count in zip(folder_names(card["classes"]), card["of_each_class"], strict=True) if count
    )


def licence_fields(licence: str) -> dict[str, str]:
    """A licence as Hugging Face writes it: a single identifier in small letters, everything else as another licence's name."""
    if " " in licence or licence.startswith(OWN_TERMS):
        return {"license": "other", "license_name": licence.removeprefix(OWN_TERMS).lower().replace(" ", "-")}
    return {"license": licence.lower()}


def loading(card: Mapping[str, Any]) -> Iterable[str]:
    """Snippets that load the set, each runs as it stands once FOLDER is the folder."""
    if card["form"] == "folder":
        yield from _snippet(
            "from datasets import load_dataset",
            'images = load_dataset("imagefolder", data_dir="FOLDER", split="train")',
        )
        yield from _snippet(
            "from torchvision.datasets import ImageFolder", f'images = ImageFolder("FOLDER/{DATA}/{SPLIT}")'
        )
    elif card["form"] == "parquet":
        yield from _snippet(
            "from datasets import load_dataset", 'images = load_dataset("parquet", data_dir="FOLDER", split="train")'
        )
        yield from _snippet(
            "import pandas", f'table = pandas.read_parquet("FOLDER/{DATA}")  # a PNG: table.image[0]["bytes"]'
        )
    else:
        yield from _snippet(
            "from datasets import load_dataset", 'images = load_dataset("webdataset", data_dir="FOLDER", split="train")'
        )
        yield from _snippet(
            "from glob import glob",
            "import webdataset",
            f'shards = webdataset.WebDataset(sorted(glob("FOLDER/{FORMS["webdataset"].glob}")), shardshuffle=False)',
            'images = shards.decode("pil").to_tuple("png", "cls", "json")',
        )
    if card["form"] != "webdataset":  # why not: `artifacts.datasheet.record_set`
        yield from _snippet(
            "import mlcroissant", f'records = mlcroissant.Dataset("FOLDER/{CROISSANT}").records("images")'
        )
    if card["form"] == "folder" and len(card["classes"]) > 1:
        yield f"Both libraries number the classes in the order of their folders; `label` in `{LABELS}` is the number in `{CARD}`. Go by the names."
        yield ""


def _snippet(*lines: str) -> list[str]:
    return ["```python", *lines, "```", ""]


def contents(card: Mapping[str, Any], record: RunRecord) -> Iterable[str]:
    """The files of the folder."""
    judged = ", class drawn for" if card["sorted"] else ""
    of_form = {
        "folder": f"`{DATA}/{SPLIT}/CLASS/NUMBER.png`, `{LABELS}` (file, label, class{judged})",
        "parquet": f"`{FORMS['parquet'].glob}` (image, label{judged})",
        "webdataset": f"`{FORMS['webdataset'].glob}` (`NUMBER.png`, `.cls`: label, `.json`: class{judged})",
    }
    yield (
        f"{of_form[card['form']]}, `{SAMPLES}`, `{CARD}`, `{DATASHEET}` (questions and answers), `{CROISSANT}` (for machines), "
        f"`{REGISTRY}` (a draft for the deployments registry of OpenDP), `{CHECKER}`"
        + (f", `{REPORT}` (all of this with pictures, one file)." if card["label"] != "INTERNAL" else ".")
    )


def claimed(record: RunRecord) -> str:
    """A sentence on the paper's claim, which is no certificate."""
    claim = record.claim
    return f"For comparison, the paper's own analysis claims epsilon {claim.epsilon:.3f} ({claim.source}); a claim is not a promise."


def cautions(card: Mapping[str, Any], record: RunRecord) -> Iterator[str]:
    """The run's warnings, a rehearsal that failed, a judge's doubts, and who let the release go, each with an empty line behind it."""
    for warning in record.plan.warnings:
        yield from (f"Warning: {warning}.", "")
    if failed := went_on(record):
        yield from (f"Warning: the rehearsal with public images failed: {failed}", "")
    if doubtful := doubts(record):
        yield from (f"Warning: {doubtful}.", "")
    if approved := decided(card):
        yield from (f"The release was {approved.in_words()}.", "")


def model_note(card: Mapping[str, Any]) -> list[str]:
    """The lines of the data card on the model beside the images, or on the reason why there is none."""
    model = card["model"]
    if LEFT_OUT in model:
        return [f"There is no model to draw more from: {model[LEFT_OUT]}.", ""]
    if lacks := model.get(WITHOUT):
        return [f"`{MODEL}/` holds weights that cannot draw: {in_words(lacks)}. [About the model]({MODEL_CARD}).", ""]
    pipeline = model.get(FOR_DIFFUSERS, "")
    with_diffusers = (
        f" There is no pipeline for diffusers ({pipeline.removeprefix('none: ')})."
        if pipeline.startswith("none")
        else ' So does diffusers: `DiffusionPipeline.from_pretrained("FOLDER", trust_remote_code=True)(1000).images`, by the code in '
        "`pipeline.py`, which you may read first."
    )
    return [
        f"`{MODEL}/` ({model['bytes'] / 1e6:.1f} MB) draws more images under the same statement, in Python: "
        f'`sfumato.load("FOLDER").draw(1000)`.{public_images(model)}{with_diffusers} [About the model]({MODEL_CARD}).',
        "",
    ]


def public_images(model: Mapping[str, Any]) -> str:
    """A sentence on the public images that a model holds, and their licence; empty where it holds none."""
    inside = model.get("public_images")
    return (
        f" There are public images in its {' and '.join(inside['parts'])} (licence: {inside['licence']})."
        if inside
        else ""
    )
