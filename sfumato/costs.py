"""The cost of training from a fixed table: multiply-adds of a network, and seconds for them.

The table was measured once (`benchmarks/recipe.py` measures it again) and no run measures it, so that the recipe is the same on every
machine. Not covered: the time on *this* machine, which is `sfumato.recipe.estimate`.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
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
INPUTS = 2
"""Inputs of a network whose work is counted: a normalisation may refuse a single one."""
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
def without_weights() -> Iterator[None]:
    """Inside the block, building networks costs next to nothing: they have shapes and no numbers (torch's device "meta")."""
    with torch.device("meta"), _Undrawn():
        yield


@contextlib.contextmanager
def without_numbers(shape: Shape) -> Iterator[None]:
    """Inside the block, building and calling networks for inputs of `shape` costs next to nothing; their outputs mean nothing.

    Large inputs have a shape and no numbers (torch's device "meta"). For small ones computing with zeros is quicker than loading
    torch's shape inference.
    """
    with torch.device("meta" if max(shape) > ZEROS_UP_TO else "cpu"), _Undrawn():
        yield


def weights_of(make: Callable[[], nn.Module]) -> int:
    """The number of weights of the network that `make` builds."""
    with without_weights():
        return sum(parameter.numel() for parameter in make().parameters())


@functools.lru_cache(maxsize=MOST_NETWORKS)
def denoiser_work(network: Network, shape: Shape, classes: int) -> Work:
    """The work of a denoiser for one image or latent of `shape`; `BadInput` where the two do not fit."""
    # What its numbers stand for costs nothing; the velocity would need a schedule.
    network = network.model_copy(update={"prediction": "noise"})

    def inputs() -> tuple[torch.Tensor, ...]:
        t, y = torch.ones(INPUTS, dtype=torch.long), torch.zeros(INPUTS, dtype=torch.long)
        return torch.zeros(INPUTS, *shape), t, y

    return _work(lambda: build(network, shape, classes), shape, inputs)


@functools.lru_cache(maxsize=MOST_NETWORKS)
def autoencoder_work(latent: Latent, image: Shape) -> Work:
    """The work of an autoencoder for one image, encoding and decoding; `BadInput` where the two do not fit."""
    noise = latent_shape(latent, image)
    return _work(
        lambda: build_autoencoder(latent, image),
        image,
        lambda: (torch.zeros(INPUTS, *image), torch.zeros(INPUTS, *noise)),
    )


@functools.lru_cache(maxsize=MOST_NETWORKS)
def backbone_work(backbone: BackboneSettings, image: Shape, classes: int) -> Work:
    """The work of the public backbone for one image."""
    return _work(
        lambda: BackboneNetwork(image, classes, width=backbone.width), image, lambda: (torch.zeros(INPUTS, *image),)
    )


def _work(make: Callable[[], nn.Module], shape: Shape, inputs: Callable[[], tuple[torch.Tensor, ...]]) -> Work:
    """The work of the network that `make` builds for one of `INPUTS` inputs of `shape`."""
    with without_weights():
        model = make()
    with without_numbers(shape):
        # A single zero stands for each tensor, so that a network of any size takes no memory.
        tensors = itertools.chain(model.named_parameters(), model.named_buffers())
        zeros = {name: torch.zeros((), dtype=one.dtype).expand(one.shape) for name, one in tensors}
        whole = counted(model, lambda: functional_call(model, zeros, inputs()))
    return Work(whole.multiply_adds / INPUTS, whole.weights, whole.numbers / INPUTS)


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
