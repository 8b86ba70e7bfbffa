"""The model in a published folder: every part that the samples were drawn with, where a certificate covers any number of images.

Parts come from the store by the addresses that the samples name as their parents, so that the certificate of the samples covers each
part; an INTERNAL part is refused, whatever a record says. Files are copied unchanged. Parts that hold public images leave where their licence is named.
"""

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from artifacts.for_diffusers import write
from artifacts.labels import Label
from artifacts.record import RunRecord, judge_went_by_its_own
from artifacts.references import (
    ChosenImages,
    ChosenModel,
    ClassCounts,
    ClassMoments,
    ClassVotes,
    EmbeddingSums,
    FeatureExtractor,
    PaidJudge,
    PublicAutoencoder,
    PublicBackbone,
    PublicImages,
    PublicModel,
    Ref,
    Samples,
    Trajectories,
    TunedModel,
)
from artifacts.serialization import FACTS, TENSORS
from artifacts.store import Store
from sfumato.errors import SHOWN_DIGITS, Refused
from sfumato.methods.plan import ANY_NUMBER
from sfumato.released import BACKBONE, COUNTS, DESCRIPTION, JUDGE, LEFT_OUT, MODEL, WITHOUT, description, read_model

FOR_DIFFUSERS = "diffusers"
"""Field of the card that names the pipeline for diffusers, or says why there is none."""
PARTS: dict[str, type[Ref]] = {
    "public": PublicModel,
    "autoencoder": PublicAutoencoder,
    "extractor": FeatureExtractor,
    "base": Trajectories,
    "images": PublicImages,
    "votes": ClassVotes,
    "moments": ClassMoments,
    "matching": EmbeddingSums,
    "tuned": TunedModel,
    "prototypes": Samples,
    COUNTS: ClassCounts,
    JUDGE: PaidJudge,
    BACKBONE: PublicBackbone,
}
"""Kind of artifact of each part of a model; the names are those of `sfumato.stored_parts.PartFolders`, and a few more."""
WITH_IMAGES = ("base", "images")
"""Parts that hold public images as they are."""
UNLICENSED = (
    "it holds public images, and nobody named a licence under which they may be passed on (sfumato publish "
    "--public-licence, release.public_licence)"
)


def write_model(folder: Path, store: Store, record: RunRecord, public_licence: str = "") -> dict[str, Any]:
    """Write `model/` where it may leave, and return its fields of the card: parts and bytes, or the reason why there is none.

    Without a `public_licence` parts that hold public images stay here, and the card says that the model cannot draw without them.
    """
    if why := lacking(record):
        return {LEFT_OUT: why}
    lacks = {} if public_licence else dict.fromkeys(with_images(store, record), UNLICENSED)
    parts = write_parts(folder, store, record, without=tuple(lacks))
    if not parts:
        return {LEFT_OUT: "the samples do not say what they were drawn with"}
    held = [name for name in WITH_IMAGES if name in parts]
    return {
        "bytes": sum(one["bytes"] for one in parts.values()),
        "parts": parts,
        **({"public_images": {"parts": held, "licence": public_licence}} if held else {}),
        **({WITHOUT: lacks} if lacks else {}),
        FOR_DIFFUSERS: "none: the model cannot draw" if lacks else write_for_diffusers(folder, record),
    }


def with_images(store: Store, record: RunRecord) -> tuple[str, ...]:
    """The parts of a run's model that hold public images; none where no model may leave."""
    return () if lacking(record) else tuple(name for name in WITH_IMAGES if name in parts_of(store, record))


def write_parts(
    folder: Path, store: Store, record: RunRecord, without: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Write all that drawing needs, but for the parts named in `without`, into `model/`, and return the facts of each part; none where
    the samples do not name them."""
    digests, place = parts_of(store, record), folder / MODEL
    if "public" not in digests:
        return {}
    digests = {name: digest for name, digest in digests.items() if name not in without}
    parts = {name: _written(place / name, store, name, digest) for name, digest in sorted(digests.items())}
    what = description(record.settings, record.plan.facts, digests, own_classes=judge_went_by_its_own(record))
    text = json.dumps(what, indent=1)
    (place / DESCRIPTION).write_text(text, encoding="utf-8")
    return parts


def write_for_diffusers(folder: Path, record: RunRecord) -> str:
    """Write the same for diffusers, and return its file, or why there is none."""
    assert record.certificate is not None  # `lacking` has asked
    model = read_model(folder / MODEL, record.certificate, torch.device("cpu"))
    parts = json.loads((folder / MODEL / DESCRIPTION).read_text(encoding="utf-8"))["parts"]
    if why := write.lacking(model.settings, parts):
        return f"none: {why}"
    networks = {name: folder / MODEL / name for name in parts}
    write.write_pipeline(folder, model.settings, model.parts, networks, model.shares)
    return write.PIPELINE


def lacking(record: RunRecord) -> str:
    """The reason why no model may leave with the samples of a run; empty where it may."""
    certificate = record.certificate
    if record.label == Label.INTERNAL or certificate is None:
        return "there is no certificate, so that images alone left, for which someone answers"
    if certificate.images != ANY_NUMBER:
        return f"the certificate covers {certificate.images} images, each of which was paid for, and a model would draw more"
    return ""


def parts_of(store: Store, record: RunRecord) -> dict[str, str]:
    """The name of each part that the samples of a run were drawn with -> its address.

    Images that a judge labelled or chose have the drawn images as parents, and these have the parts.
    """
    names = {kind.__name__: name for name, kind in PARTS.items()}
    names |= {ChosenImages.__name__: "images", ChosenModel.__name__: "tuned"}

    def made_of(samples: str) -> dict[str, str]:
        kinds = [(digest, store.manifest(digest)["kind"]) for digest in store.manifest(samples)["parents"]]
        return {names[kind]: digest for digest, kind in kinds if kind in names}

    digests = made_of(record.samples_artifact)
    judge = record.plan.judge
    if judge and judge.use != "guide" and "prototypes" in digests:
        digests = made_of(digests.pop("prototypes")) | digests
    return digests


def _written(folder: Path, store: Store, name: str, digest: str) -> dict[str, Any]:
    """Copy one part, and return its facts; `Refused` for an INTERNAL one."""
    label, manifest = store.label_of(digest), store.manifest(digest)
    if Label.INTERNAL in (label, manifest["label"]):
        raise Refused(
            f"the part {name!r} of the model ({manifest['kind']} {digest[:SHOWN_DIGITS]}) is INTERNAL: it must not leave"
        )
    folder.mkdir(parents=True)
    files = [store.folder(digest) / name for name in (TENSORS, FACTS)]
    for path in files:
        shutil.copyfile(path, folder / path.name)
    facts = {"kind": manifest["kind"], "label": label, "artifact": digest}
    return {**facts, "bytes": sum(path.stat().st_size for path in files)}
