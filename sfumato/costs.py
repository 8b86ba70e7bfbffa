"""The cost of training from a fixed table: multiply-adds of a network, and seconds for them.

The table was measured once (`benchmarks/recipe.py` measures it again) and no run measures it, so that the recipe is the same on every
machine. Not covered: the time on *this* machine, which is `sfumato.recipe.estimate`.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sfumato.config import BackboneSettings, Latent, Network
from sfumato.networks.autoencoder import Shape, build_autoencoder, latent_shape
from sfumato.networks.backbone import BackboneNetwork
from sfumato.networks.build import build

TRAINING = 3.0
"""A training step in forward passes: forward, and backward for weights and inputs."""
PER_RECORD = 1.35
"""A step with gradients clipped record by record, in ordinary training steps."""
HEAD_FEATURES = 4
"""Features of the public network that a head of the ensemble sees, in numbers of an image; more in wide networks."""
BILLION = 1e9
MOST_NETWORKS = 256
"""Size of the cache of networks' work."""
ZEROS_UP_TO = 64
"""Largest side of an input, or most of its channels, that a network is given as zeros when its work is counted."""


@dataclass(frozen=True)
class Cost:
    """Seconds of one kind of work."""

    work: float
    """Seconds of a billion multiply-adds."""
    step: float = 0.0
    """Seconds of a step, however small."""
    weights: float = 0.0
    """Seconds of a billion weights that a step updates."""


COSTS = {
    "cpu": {
        "mlp": Cost(work=0.030, step=0.002, weights=5.0),
        "dit": Cost(work=0.045, step=0.010, weights=5.0),
        "unet": Cost(work=0.035, step=0.010, weights=5.0),
        "refinenet": Cost(work=0.040, step=0.010, weights=5.0),
        "kl": Cost(work=0.050, step=0.010, weights=5.0),
        "patch": Cost(work=0.050, step=0.010, weights=5.0),
        "backbone": Cost(work=0.024, step=0.010, weights=5.0),
        "classifier": Cost(work=0.050, step=0.002, weights=5.0),
        "extractor": Cost(work=0.060, step=0.010, weights=5.0),
    },
    "gpu": {
        "mlp": Cost(work=0.00003, step=0.005, weights=0.05),
        "dit": Cost(work=0.00005, step=0.022, weights=0.05),
        "unet": Cost(work=0.00005, step=0.014, weights=0.05),
        "refinenet": Cost(work=0.00005, step=0.011, weights=0.05),
        "kl": Cost(work=0.00012, step=0.010, weights=0.05),
        "patch": Cost(work=0.00002, step=0.007, weights=0.05),
        "backbone": Cost(work=0.00009, step=0.003, weights=0.05),
        "classifier": Cost(work=0.0001, step=0.004, weights=0.05),
        "extractor": Cost(work=0.0004, step=0.006, weights=0.05),
    },
}
"""Seconds on one quiet core of a server CPU, and on an H200, by kind of work (`benchmarks/results/gpu-costs.json`). Of the second were reckoned: what
updating weights takes, the extractor, and the work of `dit`, `refinenet` and `classifier`, which is too short there to be told from a step's own time."""


@dataclass(frozen=True)
class Work:
    """The work of a network for one input."""

    multiply_adds: float
    """Multiply-adds of a forward pass, in linear layers and convolutions."""
    weights: int
    numbers: float = 0.0
    """Numbers in the layers' outputs, held for the backward pass."""


def training_seconds(cost: Cost, work: Work, images: float, steps: float = 1.0) -> float:
    """Seconds of `steps` training steps of `images` inputs each."""
    giga = TRAINING * images * work.multiply_adds / BILLION
    return steps * (cost.step + giga * cost.work + work.weights / BILLION * cost.weights)


def drawing_seconds(cost: Cost, work: Work, evaluations: float) -> float:
    """Seconds of a number of evaluations of a network, each of one input."""
    return evaluations * work.multiply_adds / BILLION * cost.work


class _Undrawn(TorchFunctionMode):
    """Makes all weights zeros: drawing them takes no time and changes no random state."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            with torch.no_grad():
                return (keywords["tensor"] if "tensor" in keywords else args[0]).zero_()
        return func(*args, **keywords)


@contextlib.contextmanager
def without_numbers(shape: Shape) -> Iterator[None]:
    """Inside the block, building and calling networks for inputs of `shape` costs next to nothing; their outputs mean nothing.

    Large inputs have a shape and no numbers (torch's device "meta"). For small ones computing with zeros is quicker than loading
    torch's shape inference.
    """
    with torch.device("meta" if max(shape) > ZEROS_UP_TO else "cpu"), _Undrawn():
        yield


@functools.lru_cache(maxsize=MOST_NETWORKS)
def denoiser_work(network: Network, shape: Shape, classes: int) -> Work:
    """The work of a denoiser for one image or latent of `shape`; `BadInput` where the two do not fit."""
    # What its numbers stand for costs nothing; the velocity would need a schedule.
    network = network.model_copy(update={"prediction": "noise"})
    with without_numbers(shape):
        model = build(network, shape, classes)
        x, t = torch.zeros(1, *shape), torch.ones(1, dtype=torch.long)
        return counted(model, lambda: model(x, t, torch.zeros(1, dtype=torch.long)))


@functools.lru_cache(maxsize=MOST_NETWORKS)
def autoencoder_work(latent: Latent, image: Shape) -> Work:
    """The work of an autoencoder for one image, encoding and decoding; `BadInput` where the two do not fit."""
    with without_numbers(image):
        model = build_autoencoder(latent, image)
        x, noise = torch.zeros(1, *image), torch.zeros(1, *latent_shape(latent, image))
        return counted(model, lambda: model(x, noise))


@functools.lru_cache(maxsize=MOST_NETWORKS)
def backbone_work(backbone: BackboneSettings, image: Shape, classes: int) -> Work:
    """The work of the public backbone for one image."""
    with without_numbers(image):
        model = BackboneNetwork(image, classes, width=backbone.width)
        return counted(model, lambda: model(torch.zeros(1, *image)))


def counted(model: nn.Module, call: Callable[[], Any]) -> Work:
    """The work of the linear layers and convolutions that `call` passes through `model` with one input."""
    products: list[int] = []
    numbers: list[int] = []

    def linear(layer: nn.Linear, inputs: Any, output: torch.Tensor) -> None:
        products.append(output.numel() * layer.in_features)
        numbers.append(output.numel())

    def convolution(layer: nn.Conv2d, inputs: Any, output: torch.Tensor) -> None:
        products.append(output.numel() * layer.in_channels // layer.groups * math.prod(layer.kernel_size))
        numbers.append(output.numel())

    hooks = [
        layer.register_forward_hook(linear if isinstance(layer, nn.Linear) else convolution)
        for layer in model.modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    ]
    try:
        with torch.no_grad():
            call()
    finally:
        for hook in hooks:
            hook.remove()
    return Work(float(sum(products)), sum(parameter.numel() for parameter in model.parameters()), float(sum(numbers)))
