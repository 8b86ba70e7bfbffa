"""File formats of a model's parts, a folder each: safetensors for numbers, JSON for the rest.

Nothing is unpickled or evaluated, so a folder from a stranger can hold wrong numbers but no program. The store writes its artifacts
in these formats, and a released model consists of the same folders (`sfumato.released`).
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sfumato import config
from sfumato.adapters import HeadStack
from sfumato.alignment import ClassMaps, Moments, Reference, encoded
from sfumato.backbone import Backbone
from sfumato.config import Latent, Network
from sfumato.images import Drawn, ImageSet
from sfumato.judge import LinearJudge
from sfumato.latents import PIXELS, Codec, Latents
from sfumato.networks.autoencoder import build_autoencoder
from sfumato.networks.backbone import BackboneNetwork
from sfumato.networks.build import build
from sfumato.networks.prediction import LEVELS
from sfumato.retrieval.features import make_encoder
from sfumato.retrieval.knowledge_base import KnowledgeBase
from sfumato.retrieval.settings import Extractor

Module = TypeVar("Module", bound=nn.Module)
OF_REFERENCE, OF_MAPS = ("mean", "covariance", "inner", "centroids"), ("centres", "there", "back", "weights", "own")
"""Tensors of a reference and of maps."""
TENSORS, FACTS = "tensors.safetensors", "facts.json"
"""The two files of a folder."""
POINTS = "points"
"""Tensor of the points that more images branch from, beside the images of a priced drawing."""
TRAINED_ON = "trained_on"
"""Field of an autoencoder with the digest of the public images that it was trained on."""


def save(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors of any shape by name, and JSON facts; `OSError` where the disk is full."""
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    try:
        save_file(plain, folder / TENSORS)
    except SafetensorError as error:  # it tells the operating system's errors in words alone
        if not (code := re.search(r"os error (\d+)", str(error))):
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(folder / TENSORS)) from error
    (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote: tensors of any shape by name, on the CPU, and facts."""
    return load_file(folder / TENSORS), json.loads((folder / FACTS).read_text(encoding="utf-8"))


def save_images(folder: Path, images: ImageSet) -> None:
    """uint8 pixels `[n, c, h, w]`, labels `[n]`, class names; and the sampler's points, where the images have them."""
    tensors = {"pixels": torch.from_numpy(images.pixels), "labels": torch.from_numpy(images.labels)}
    if isinstance(images, Drawn):
        tensors[POINTS] = torch.from_numpy(images.points)
    save(folder, tensors, {"classes": list(images.classes)})


def load_images(folder: Path) -> ImageSet:
    """Read what `save_images` wrote."""
    tensors, facts = load(folder)
    return ImageSet(tensors["pixels"].numpy(), tensors["labels"].numpy(), tuple(facts["classes"]))


def load_encoded(folder: Path, codec: Codec, device: torch.device, maps: ClassMaps | None = None) -> Tensor:
    """Images that `save_images` wrote, as the denoisers see them, `[n, c, h, w]`."""
    return encoded(load_images(folder), codec, maps, device)[0]


def load_prototypes(folder: Path, codec: Codec, device: torch.device, maps: ClassMaps | None = None) -> Tensor:
    """What any number of images is drawn from, `[n, c, h, w]`: the points of a priced sampler, or else its images as the denoisers see them."""
    points = load(folder)[0].get(POINTS)
    return load_encoded(folder, codec, device, maps) if points is None else points.to(device)


def save_autoencoder(folder: Path, codec: Latents, trained_on: str) -> None:
    """Write weights, the scale of the latents, and the arguments to build it again; `trained_on` is the digest of the public images."""
    tensors = {"mean": codec.mean, "spread": codec.spread}
    tensors |= {f"network.{name}": value for name, value in codec.network.state_dict().items()}
    latent = codec.settings.model_dump(mode="json", exclude={"from_"})
    save(folder, tensors, {"latent": latent, "image": codec.image, "limit": codec.limit, TRAINED_ON: trained_on})


def load_codec(folder: Path | None, device: torch.device) -> Codec:
    """A frozen autoencoder, or, where there is no folder, none: pixels as they are."""
    if folder is None:
        return PIXELS
    tensors, facts = load(folder)
    settings, image = Latent.model_validate(facts["latent"]), tuple(facts["image"])
    network = build_autoencoder(settings, image)
    network = _frozen(network, tensors, device)
    mean, spread = (tensors[name].to(device) for name in ("mean", "spread"))
    return Latents(network, settings, image, mean, spread, limit=facts["limit"])


def _frozen(network: Module, tensors: Mapping[str, Tensor], device: torch.device) -> Module:
    """The network with the weights among these tensors, in evaluation mode."""
    prefix = "network."
    network.load_state_dict({n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)})
    return network.to(device).eval().requires_grad_(False)


def save_backbone(folder: Path, backbone: Backbone) -> None:
    """Write weights, the whitening of the features, and the arguments to build the network again."""
    tensors = {name: getattr(backbone, name) for name in ("mean", "directions", "deviations")}
    tensors |= {f"network.{name}": value for name, value in backbone.network.state_dict().items()}
    facts = {
        "backbone": backbone.settings.model_dump(mode="json"),
        "shape": backbone.shape,
        "classes": backbone.classes,
    }
    save(folder, tensors, facts)


def load_backbone(folder: Path, device: torch.device) -> Backbone:
    """A frozen backbone in evaluation mode; gradients flow through it to the images."""
    tensors, facts = load(folder)
    settings, shape = config.BackboneSettings.model_validate(facts["backbone"]), tuple(facts["shape"])
    network = BackboneNetwork(shape, facts["classes"], width=settings.width)
    network = _frozen(network, tensors, device)
    whitening = {name: tensors[name].to(device) for name in ("mean", "directions", "deviations")}
    return Backbone(network, settings, shape, facts["classes"], **whitening)


def save_judge(folder: Path, head: Tensor, scale: float, noise: float, classes: Sequence[str]) -> None:
    """Write the head `[classes, directions + 1]`, the scale of its logits and the noise that it learnt under; the backbone is an artifact of its own."""
    save(folder, {"head": head}, {"scale": scale, "noise": noise, "classes": list(classes)})


def load_judge(folder: Path, backbone: Path, device: torch.device) -> LinearJudge:
    """Read what `save_judge` wrote, with the backbone from its folder."""
    tensors, facts = load(folder)
    return LinearJudge(
        load_backbone(backbone, device), tensors["head"].to(device), facts["scale"], facts.get("noise", math.inf)
    )


def save_reference(folder: Path, reference: Reference) -> None:
    """Write the reference of the public images."""
    tensors = {name: getattr(reference, name) for name in OF_REFERENCE}
    facts = {"radius": reference.radius, "residual": reference.residual, "shape": list(reference.shape)}
    save(folder, tensors, facts)


def load_reference(folder: Path) -> Reference:
    """Read what `save_reference` wrote."""
    tensors, facts = load(folder)
    fields: dict[str, Any] = {**tensors, **facts, "shape": tuple(facts["shape"])}
    return Reference(**fields)


def save_maps(folder: Path, moments: Moments, maps: ClassMaps, classes: Sequence[str]) -> None:
    """Write the noisy moments, the maps computed from them, and the classes that have no covariance of their own."""
    tensors = {name: getattr(moments, name) for name in ("counts", "sums", "seconds", "distances", "rounds")}
    tensors |= {f"maps.{name}": getattr(maps, name) for name in OF_MAPS}
    tensors |= {f"reference.{name}": getattr(maps.reference, name) for name in OF_REFERENCE}
    reference = {"radius": maps.reference.radius, "residual": maps.reference.residual, "classes": list(classes)}
    noise = {"count_noise": moments.count_noise, "mean_noise": moments.mean_noise, "second_noise": moments.second_noise}
    noise |= {"round_noise": moments.round_noise, "within": moments.residual}
    save(folder, tensors, reference | noise | {"shared": [classes[label] for label in maps.shared]})


def load_maps(folder: Path) -> ClassMaps:
    """Read the maps that `save_maps` wrote."""
    tensors, facts = load(folder)
    fields: dict[str, Any] = {name: tensors[f"reference.{name}"] for name in OF_REFERENCE}
    reference = Reference(**fields, radius=facts["radius"], residual=facts["residual"])
    return ClassMaps(reference, **{name: tensors[f"maps.{name}"] for name in OF_MAPS})


def save_denoiser(folder: Path, model: nn.Module, network: Network, shape: tuple[int, int, int], classes: int) -> None:
    """Write weights, and the arguments to build the network again."""
    facts = {"network": network.model_dump(mode="json", exclude={"from_"}), "shape": list(shape), "classes": classes}
    save(folder, dict(model.state_dict()), facts)


def load_denoiser(folder: Path, device: torch.device) -> nn.Module:
    """A frozen denoiser in evaluation mode."""
    tensors, facts = load(folder)
    network = Network.model_validate(facts["network"])
    model = build(network, tuple(facts["shape"]), facts["classes"], alpha_bar=tensors.get(LEVELS))
    model.load_state_dict(tensors)
    return model.to(device).eval().requires_grad_(False)


def save_heads(folder: Path, heads: HeadStack) -> None:
    """Write the weights of all members; their sizes follow from the weights, but for the shape of an image."""
    save(folder, dict(heads.state_dict()), {"shape": list(heads.shape)})


def load_heads(folder: Path, device: torch.device) -> HeadStack:
    """Frozen heads in evaluation mode."""
    tensors, facts = load(folder)
    (count, features, width), classes = tensors["down"].shape, tensors["rows"].shape[1]
    heads = HeadStack(count, features, tuple(facts["shape"]), classes, width)
    heads.load_state_dict(tensors)
    return heads.to(device).eval().requires_grad_(False)


def save_encoder(folder: Path, encoder: nn.Module, settings: Extractor, shape: tuple[int, int, int]) -> None:
    """Write weights, and the arguments to build the extractor again."""
    save(folder, dict(encoder.state_dict()), {"extractor": settings.model_dump(mode="json"), "shape": list(shape)})


def load_encoder(folder: Path, device: torch.device) -> nn.Module:
    """A frozen feature extractor in evaluation mode."""
    tensors, facts = load(folder)
    encoder = make_encoder(Extractor.model_validate(facts["extractor"]), tuple(facts["shape"]))
    encoder.load_state_dict(tensors)
    return encoder.to(device).eval().requires_grad_(False)


def save_base(folder: Path, base: KnowledgeBase) -> None:
    """Write keys, images, noise and labels; loading builds the indices again, which takes .4 s for a million keys."""
    tensors = {"keys": base.keys, "images": base.images, "noise": base.noise, "labels": base.labels}
    save(folder, tensors, {"by_class": base.by_class, "time": base.time})


def load_base(folder: Path, device: torch.device) -> KnowledgeBase:
    """Read what `save_base` wrote."""
    tensors, facts = load(folder)
    placed = {name: value.to(device) for name, value in tensors.items()}
    return KnowledgeBase(**placed, by_class=facts["by_class"], time=facts.get("time", 0))
