"""Writes each kind of artifact to its folder and reads it.

Parts of a model have the library's formats (`sfumato.formats`), so that a recipient of a released model reads it with the library
alone; artifacts that only the store holds have theirs here.
"""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sfumato import formats
from sfumato.errors import SHOWN_DIGITS, BadInput
from sfumato.evolution import Population
from sfumato.formats import (
    FACTS,
    TENSORS,
    TRAINED_ON,
    load,
    load_backbone,
    load_base,
    load_denoiser,
    load_encoded,
    load_encoder,
    load_images,
    load_judge,
    load_maps,
    load_reference,
    save,
    save_autoencoder,
    save_backbone,
    save_base,
    save_denoiser,
    save_encoder,
    save_heads,
    save_images,
    save_judge,
    save_maps,
    save_reference,
)
from sfumato.images import ImageSet
from sfumato.latents import Codec
from sfumato.privacy.auditing.canaries import Canaries
from sfumato.rehearsal_findings import RetrievalFindings

__all__ = [
    "FACTS",
    "TENSORS",
    "copy_denoiser",
    "load",
    "load_backbone",
    "load_base",
    "load_canaries",
    "load_codec",
    "load_curve",
    "load_denoiser",
    "load_drawn",
    "load_encoded",
    "load_encoder",
    "load_images",
    "load_judge",
    "load_maps",
    "load_population",
    "load_reference",
    "load_retrieval",
    "refuse_other_images",
    "save",
    "save_autoencoder",
    "save_averages",
    "save_backbone",
    "save_base",
    "save_canaries",
    "save_curve",
    "save_denoiser",
    "save_encoder",
    "save_heads",
    "save_images",
    "save_judge",
    "save_maps",
    "save_population",
    "save_reference",
    "save_relabelled",
    "save_retrieval",
    "with_average",
]
CURVE, RETRIEVAL, AVERAGES = "curve.json", "retrieval.json", "averages.safetensors"
DRAWN = "drawn"
"""Labels that images were drawn for, where a judge gave them others."""


def load_codec(folder: Path | None, device: torch.device, *, trained_on: Collection[str]) -> Codec:
    """A frozen autoencoder, or, where there is no folder, none: pixels as they are; `BadInput` as `refuse_other_images`."""
    refuse_other_images(folder, trained_on)
    return formats.load_codec(folder, device)


def refuse_other_images(folder: Path | None, trained_on: Collection[str]) -> None:
    """`BadInput` for an autoencoder that was trained on other public images than those of the digests `trained_on`."""
    if folder is None:
        return
    digest = json.loads((folder / FACTS).read_text(encoding="utf-8"))[TRAINED_ON]
    if digest not in trained_on:
        raise BadInput(
            f"the autoencoder {folder.name[:SHOWN_DIGITS]} was trained on the public images {digest[:SHOWN_DIGITS]}, not on those of this run: "
            "train one on these, which a run with latent.kind=kl does by itself"
        )


def save_averages(folder: Path, averages: Mapping[float, nn.Module]) -> None:
    """Write further moving averages of a denoiser beside it, by their decay; nothing where there are none."""
    tensors = {
        f"{decay!r}/{name}": value.detach().cpu().contiguous().clone()
        for decay, model in averages.items()
        for name, value in model.state_dict().items()
    }
    if tensors:
        save_file(tensors, folder / AVERAGES)


def with_average(folder: Path, model: nn.Module, decay: float) -> nn.Module:
    """The denoiser of a folder, as it was read from there, with the weights of its further average of this decay."""
    before = f"{decay!r}/"
    tensors = load_file(folder / AVERAGES)
    own = {name.removeprefix(before): value for name, value in tensors.items() if name.startswith(before)}
    model.load_state_dict(own)
    return model


def copy_denoiser(source: Path, folder: Path) -> None:
    """Copy a denoiser and its further averages, if there are any."""
    for path in (source / name for name in (TENSORS, FACTS, AVERAGES)):
        if path.is_file():
            shutil.copyfile(path, folder / path.name)


def save_relabelled(folder: Path, images: ImageSet, drawn: np.ndarray) -> None:
    """Write images with their final labels, and beside these the labels that they were drawn for, int64 `[n]`."""
    save_images(folder, images)
    tensors, facts = load(folder)
    save(folder, tensors | {DRAWN: torch.from_numpy(drawn)}, facts)


def load_drawn(folder: Path) -> np.ndarray | None:
    """The labels that images were drawn for, where a judge changed them; None without a judge."""
    labels = load(folder)[0].get(DRAWN)
    return None if labels is None else labels.numpy()


def save_canaries(folder: Path, canaries: Canaries, classes: Sequence[str]) -> None:
    """Pixels, labels and coins."""
    tensors = {name: torch.from_numpy(getattr(canaries, name)) for name in ("pixels", "labels", "included")}
    save(folder, tensors, {"classes": list(classes)})


def load_canaries(folder: Path) -> tuple[Canaries, ImageSet]:
    """The canaries, and those of them that joined the private set."""
    tensors, facts = load(folder)
    canaries = Canaries(**{name: value.numpy() for name, value in tensors.items()})
    return canaries, canaries.joined(facts["classes"])


def save_population(folder: Path, population: Population, classes: Sequence[str]) -> None:
    """Candidates, class by class, as the denoisers work on them."""
    save(folder, {"x": population.x.cpu()}, {"classes": list(classes)})


def load_population(folder: Path, device: torch.device) -> Population:
    """Read what `save_population` wrote."""
    return Population(load(folder)[0]["x"].to(device))


def save_retrieval(folder: Path, findings: Sequence[RetrievalFindings]) -> None:
    """Write the accuracy of retrieval at each measured time beside a knowledge base."""
    (folder / RETRIEVAL).write_text(json.dumps([one.model_dump(mode="json") for one in findings]), encoding="utf-8")


def load_retrieval(folder: Path) -> tuple[RetrievalFindings, ...]:
    """Read what `save_retrieval` wrote."""
    return tuple(map(RetrievalFindings.model_validate, json.loads((folder / RETRIEVAL).read_text(encoding="utf-8"))))


def save_curve(folder: Path, losses: Sequence[float]) -> None:
    """Write the training curve of a public stage beside its result."""
    (folder / CURVE).write_text(json.dumps(losses), encoding="utf-8")


def load_curve(folder: Path) -> list[float]:
    """Read what `save_curve` wrote."""
    return json.loads((folder / CURVE).read_text(encoding="utf-8"))
