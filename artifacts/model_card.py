"""The README of a published model: the header that Hugging Face reads, and below it the certificate, how to draw, what the parts are, limits
and a picture.

It lies in `model/`, below the folder that `sfumato.load` takes. Not covered: a model that did not leave, of which the data card says why.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from artifacts.data_card import cautions, claimed, licence_fields, public_images
from artifacts.datasheet import answers
from artifacts.model import FOR_DIFFUSERS
from artifacts.record import RunRecord
from artifacts.reports.page import section_in_markdown
from artifacts.reports.run import REPORT, SAMPLES, not_covered
from sfumato.class_shares import number_of_classes
from sfumato.released import BACKBONE, CARD, COUNTS, JUDGE, WITHOUT, in_words

IN_WORDS = {
    "public": "denoiser of public images",
    "tuned": "denoiser, after it learnt from private images",
    "autoencoder": "autoencoder, in whose latents the denoisers work",
    "extractor": "network in whose features trajectories are found",
    "base": "knowledge base: public images, and the noise that they were joined with",
    "images": "public images that the drawing reads",
    "votes": "noisy votes of private records for public classes",
    "moments": "noisy moments of the private classes",
    "matching": "noisy mean features of the private classes",
    "prototypes": "images that were paid for one by one, from which any number is drawn",
    COUNTS: "noisy numbers of records of each class",
    JUDGE: "judge of labels, trained on private records with noise",
    BACKBONE: "classifier of public images, in whose features the judge reads",
}
"""The parts of a model in words."""


def model_card(card: Mapping[str, Any], record: RunRecord) -> str:
    """The README of `model/`, for a card that has all fields but the digests, and names a model."""
    header = yaml.safe_dump(hugging_face(card), sort_keys=False, allow_unicode=True, width=1000)
    return "\n".join(
        [
            "---",
            f"{header}---",
            "",
            f"# The model of {card['name']}",
            "",
            f"It draws images of {number_of_classes(len(card['classes']))}, {card['shape'][1]}x{card['shape'][2]} pixels, "
            f"{card['shape'][0]} channel(s), by the method `{card['method']}`. Licence: {card['licence']}.",
            "",
            "## Certificate",
            "",
            f"**{card['statement']}**",
            "",
            f"It covers the weights, and all that anyone draws from them: drawing costs nothing more. {claimed(record)}",
            "",
            *cautions(card, record),
            "## How to draw",
            "",
            *drawing(card["model"]),
            "## What is in it",
            "",
            *parts(card["model"]),
            "## Limits",
            "",
            answers(card)["dataLimitations"],
            "",
            "Whoever trains these weights further on private images is not covered by the certificate.",
            "",
            *section_in_markdown(not_covered(record.plan)),
            "## Pictures",
            "",
            f"Some images of each class, as it drew them. `{REPORT}` shows each beside the nearest public image.",
            "",
            f"![samples](../{SAMPLES})",
            "",
        ]
    )


def hugging_face(card: Mapping[str, Any]) -> dict[str, Any]:
    """The header, by which Hugging Face finds the model."""
    return {
        **licence_fields(card["licence"]),
        "library_name": "sfumato",
        "pipeline_tag": "unconditional-image-generation",
        "tags": ["synthetic", "differential-privacy", "sfumato"],
    }


def drawing(model: Mapping[str, Any]) -> Iterable[str]:
    """Lines of code that draw, each runs as it stands once FOLDER is the folder above this one; or why nothing can."""
    if lacks := model.get(WITHOUT):
        yield from (f"It cannot draw: {in_words(lacks)}.", "")
        return
    yield from (
        f"FOLDER is the folder that holds this one, with `{CARD}`, whose signature and digests are checked first.",
        "",
    )
    yield from ("```python", "import sfumato", 'images, labels = sfumato.load("FOLDER").draw(16, seed=0)', "```", "")
    pipeline = model[FOR_DIFFUSERS]
    if pipeline.startswith("none"):
        yield f"There is no pipeline for diffusers: {pipeline.removeprefix('none: ')}."
    else:
        yield from ("```python", "from diffusers import DiffusionPipeline")
        yield 'images = DiffusionPipeline.from_pretrained("FOLDER", trust_remote_code=True)(16, seed=0).images'
        yield "```"
    yield from ("", "Into class folders: `python -m sfumato.generate FOLDER --images 40 --to more`.", "")


def parts(model: Mapping[str, Any]) -> Iterable[str]:
    """A table of the parts, and what is to be known of public images among them."""
    yield from ("| part | what it is | label | bytes |", "| --- | --- | --- | --- |")
    for name, part in model["parts"].items():
        yield f"| `{name}` | {IN_WORDS[name]} | {part['label']} | {part['bytes']:,} |"
    for name, why in model.get(WITHOUT, {}).items():
        yield f"| `{name}` | {IN_WORDS[name]} | left out | {why} |"
    note = f"PUBLIC parts never saw a private image; DP ones are covered by the certificate.{public_images(model)}"
    yield from ("", note, "")
