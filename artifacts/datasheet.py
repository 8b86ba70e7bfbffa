"""What a stranger asks of a data set, answered from its card: for people as a datasheet (Gebru et al. 2021), for machines as Croissant 1.1
with its vocabulary for responsible AI.

What the program cannot know, whoever publishes may tell (`release.curator`, `release.purpose`, `release.contact`). Not covered: the private images, of which nothing is
said that the card does not say.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.data_card import OWN_TERMS, in_classes
from artifacts.forms import FORMS
from sfumato.image_folder import DATA, SPLIT

CROISSANT_VERSIONS = ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"]
BLANK = "Not told."
RECORDS = "images"
"""The record set in `croissant.json`."""
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""The context that Croissant's own tools write and compare with."""
KINDS = {"folder": "image/png", "parquet": "application/x-parquet", "webdataset": "application/x-tar"}


def judged_by(card: Mapping[str, Any]) -> str:
    """What a judge did with the drawn images (`judge.use`); empty where none sorted them."""
    return card.get("settings", {}).get("judge", {}).get("use", "") if card["sorted"] else ""


def answers(card: Mapping[str, Any]) -> dict[str, str]:
    """The answers by the names of Croissant's fields for responsible AI."""
    unprotected = card["unprotected"]
    collection = (
        f"Every image was drawn by the method {card['method']} of Sfumato {card['code_version']}, whose access to the private images "
        f"is in card.json. {card['statement']}"
    )
    limits = (
        "The images are those of a model: rare things may be missing, details wrong and classes mixed up. Do not take a single image for "
        "evidence of anything, and no count over the images for one over the private collection."
    )
    shares = (
        f"Class shares: {card['class_shares']['source']}"
        if card["class_shares"]
        else "Every class was drawn equally often, whatever its share in the private collection."
    )
    if card["relabelled"]:
        shares += (
            f" A judge then gave {card['relabelled']} images another class, so that the numbers of their labels differ."
        )
    return {
        "dataCollection": collection,
        "dataCollectionType": "Synthetic data",
        "dataAnnotationProtocol": f"A label is the class that an image was drawn for{_sorting(card)}",
        "machineAnnotationTools": f"Sfumato {card['code_version']}",
        "dataPreprocessingProtocol": "Private and public images were cropped and resized one by one before anything was learnt.",
        "personalSensitiveInformation": f"Each image was drawn by a model; none was taken from the private collection. {card['statement']} "
        f"Not protected: number of records ({unprotected['records']}), names of the classes, size of the images; "
        f"{unprotected['sets']}; {unprotected['tuning']}.",
        "dataBiases": f"{shares} Whatever the private and the public collection favour, the images may favour too; nothing was "
        "corrected.",
        "dataLimitations": limits,
        "dataUseCases": "Training and testing programs, teaching, and showing what the private collection is about. Not for decisions "
        "about persons.",
        "dataReleaseMaintenancePlan": "The folder does not change: card.json holds the digest of every file. What is drawn anew is a set of "
        "its own with a card of its own.",
    }


def _sorting(card: Mapping[str, Any]) -> str:
    """What became of the classes that images were drawn for."""
    if card["relabelled"]:
        return ", or the one that a judge gave it, which the same statement paid for."
    return (
        ", as a judge paid for by the same statement sorted it." if card["sorted"] else "; nobody looked at the images."
    )


def datasheet(card: Mapping[str, Any]) -> str:
    """Questions and answers, as Markdown."""
    about = answers(card)
    rows = zip(card["classes"], card["of_each_class"], strict=True)
    each = ", ".join(f"{name}: {number}" for name, number in rows)
    left_out = ", but for what the judge left out" if judged_by(card) == "filter" else ""
    sections: dict[str, list[tuple[str, str]]] = {
        "Motivation": [
            ("For what purpose was the set made?", card["purpose"] or BLANK),
            ("Who made it, and on whose behalf?", card["curator"] or BLANK),
        ],
        "Composition": [
            (
                "What is an instance?",
                f"An image, {card['shape'][1]}x{card['shape'][2]} pixels, {card['shape'][0]} channel(s), with a label.",
            ),
            ("How many are there?", f"{card['images']} {in_classes(card)}. {each}."),
            ("Is anything missing?", f"No; the set is all that was drawn for it{left_out}."),
            ("Are there splits?", "All is for training. Judge what you train on real images."),
            ("Does it say anything about identifiable persons?", about["personalSensitiveInformation"]),
            ("What is protected?", f"The unit is {card['unit']}. {card['statement']}"),
            ("Are there errors or noise?", about["dataLimitations"]),
        ],
        "Collection": [
            ("How was it made?", about["dataCollection"]),
            ("Did persons consent, was there a review?", BLANK),
        ],
        "Preprocessing and labels": [
            ("What was done to the images before?", about["dataPreprocessingProtocol"]),
            ("Where do the labels come from?", about["dataAnnotationProtocol"]),
        ],
        "Uses": [
            ("What is it good for?", about["dataUseCases"]),
            ("What may it distort?", about["dataBiases"]),
        ],
        "Distribution": [
            ("Under which licence?", card["licence"]),
            (
                "How is it marked?",
                "Each image file says that a model made it (IPTC trainedAlgorithmicMedia in XMP)"
                + (", and carries a signed C2PA manifest." if card["signed_images"] else "."),
            ),
            ("When?", card["date"] or BLANK),
        ],
        "Maintenance": [
            ("Who answers questions?", card["contact"] or BLANK),
            ("Will it change?", about["dataReleaseMaintenancePlan"]),
        ],
    }
    lines = [f"# Datasheet of {card['name']}", ""]
    for title, questions in sections.items():
        lines += [f"## {title}", ""]
        for question, answer in questions:
            lines += [f"**{question}** {answer}", ""]
    return "\n".join(lines)


def croissant(card: Mapping[str, Any], folder: Path) -> str:
    """The description of a published folder in Croissant 1.1, as JSON-LD; the images lie there already."""
    about = {f"rai:{name}": text for name, text in answers(card).items()}
    described = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "name": card["name"],
        "conformsTo": CROISSANT_VERSIONS,
        "description": f"{card['images']} synthetic images {in_classes(card)}. {card['statement']}",
        "license": licence_url(card["licence"]),
        "url": card["name"],
        "version": "1.0.0",
        **({"datePublished": card["date"]} if card["date"] else {}),
        "citeAs": f"{card['name']}, run {card['run']}, drawn by Sfumato {card['code_version']}",
        **({"creator": {"@type": "Organization", "name": card["curator"]}} if card["curator"] else {}),
        "keywords": ["synthetic", "differential privacy"],
        "isLiveDataset": False,
        **about,
        "distribution": distribution(card, folder),
        "recordSet": [] if card["form"] == "webdataset" else [record_set(card)],
    }
    return json.dumps(described, indent=1, ensure_ascii=False)


def licence_url(licence: str) -> str:
    """The page of SPDX on a licence; the expression itself where it is no single identifier."""
    single = " " not in licence and not licence.startswith(OWN_TERMS)
    return f"https://spdx.org/licenses/{licence}" if single else licence


def distribution(card: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The files that hold the images; of shards each one by itself, with its digest."""
    form, kind = FORMS[card["form"]], KINDS[card["form"]]
    if card["form"] != "webdataset":
        return [{"@type": "cr:FileSet", "@id": "files", "name": "files", "encodingFormat": kind, "includes": form.glob}]
    return [
        {
            "@type": "cr:FileObject",
            "@id": path.name,
            "name": path.name,
            "contentUrl": path.relative_to(folder).as_posix(),
            "contentSize": f"{path.stat().st_size} B",
            "encodingFormat": kind,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.glob(form.glob))
    ]


def record_set(card: Mapping[str, Any]) -> dict[str, Any]:
    """A record for each image: the picture and its class.

    There is none for shards: mlcroissant unpacks an archive into a cache under its relative name alone, and would give one set's pictures
    for another's.
    """
    inside = {"extract": {"fileProperty": "fullpath"}, "transform": {"regex": f"{DATA}/{SPLIT}/([^/]+)/"}}
    png = {"extract": {"column": "image"}, "transform": {"jsonPath": "bytes"}}
    of_form = {
        "folder": (
            ("image", "sc:ImageObject", {"extract": {"fileProperty": "content"}}, "The image."),
            ("label", "sc:Text", inside, "The class, as its folder is called."),
        ),
        "parquet": (
            ("image", "sc:ImageObject", png, "The image."),
            (
                "label",
                "sc:Integer",
                {"extract": {"column": "label"}},
                "The class, as a position in the classes of card.json.",
            ),
        ),
    }
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{RECORDS}/{name}",
            "name": name,
            "description": about,
            "dataType": kind,
            "source": {"fileSet": {"@id": "files"}, **source},
        }
        for name, kind, source, about in of_form[card["form"]]
    ]
    return {"@type": "cr:RecordSet", "@id": RECORDS, "name": RECORDS, "field": fields}
