"""Captures the inputs of each trainable layer and the gradients of its outputs, from one forward and one backward pass.

While `Capture` is active, every call of a known function (linear, convolution, ...) with a trainable parameter is done
with the parameter held constant, so that its ordinary gradient is never computed; instead the layer's input stays in memory
until the gradient of its output arrives, and `take` receives both. Parameters are identified by object, so a layer called
twice and a tied weight are two uses of one parameter. Any other use of a trainable parameter (other arithmetic, a merged
weight, a packed projection) raises `Unknown` with its name: nothing is differentiated silently.

Not covered: functions that mix records, which `sfumato.privacy.engine.validation` looks for before training.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sfumato.privacy.engine.layers import Conv, Embed, Entrywise, GroupNorm, Layer, LayerNorm, Linear, Saved

Take = Callable[["Use", Saved, Tensor], None]
"""Called with a use, what its layer saved, and the gradient of its output."""


class Unknown(Exception):
    """A trainable parameter is used in a way for which there is no rule; the message names it and the way."""


@dataclass(frozen=True, eq=False)
class Use:
    """One call of a layer: its kind and its parameters."""

    layer: Layer
    weight: str | None
    """Name of the trainable weight, or none where it is frozen."""
    bias: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The trainable parameters of this call."""
        return tuple(name for name in (self.weight, self.bias) if name)


class Capture(TorchFunctionMode):
    """Active around a forward pass over `rows` rows (records times copies) of a model with `trainable` parameters.

    `uses` lists the calls so far; `leaves` the tensors from which a backward pass must start to reach them all. With
    `recomputed`, autograd holds the layers' inputs, so that a checkpointed block need not; blocks must then be recomputed
    while this is active, too.
    """

    def __init__(self, trainable: Mapping[str, Tensor], rows: int, take: Take, *, recomputed: bool = False):
        super().__init__()
        self.names = {id(parameter): name for name, parameter in trainable.items()}
        self.rows, self.take, self.recomputed = rows, take, recomputed
        self.uses: list[Use] = []
        self.leaves: list[Tensor] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._touches(args) and not self._touches(kwargs.values()):
            return function(*args, **kwargs)
        if function in QUESTIONS:
            return function(*args, **kwargs)
        if function in READERS:
            return self._call(*READERS[function](*args, **kwargs))
        if function in ENTRYWISE and not kwargs and all(isinstance(value, Tensor) for value in args):
            x, weight = args if id(args[1]) in self.names else args[::-1]
            return self._call(Entrywise(tuple(weight.shape), function in ADDED), x, weight, None)
        raise Unknown(f"{self._touched(args, kwargs)} is used by {getattr(function, '__name__', function)}")

    def _touches(self, values: Iterable[Any]) -> bool:
        for value in values:
            if isinstance(value, Tensor):
                if id(value) in self.names:
                    return True
            elif isinstance(value, (list, tuple)) and self._touches(value):
                return True
        return False

    def _touched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        flat = [*args, *kwargs.values()]
        return next(self.names[id(value)] for value in leaves_of(flat) if id(value) in self.names)

    def _call(self, layer: Layer, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        names = self.names.get(id(weight)), self.names.get(id(bias))
        name = names[0] or names[1]
        if id(x) in self.names:
            raise Unknown(f"{self.names[id(x)]} is the input of a layer")
        if x.dim() < layer.least_dim or x.shape[0] % self.rows:
            raise Unknown(f"{name} meets an input of shape {list(x.shape)}, whose first axis is not that of the batch")
        if not torch.is_grad_enabled():
            raise Unknown(f"{name} is used where gradients are switched off")
        # A layer knows which of the two it may lack.
        parameters: Any = (part if part is None else part.detach() for part in (weight, bias))
        out, saved = layer.forward(x, *parameters)
        if not out.requires_grad:
            self.leaves.append(out.detach().requires_grad_())
            out = self.leaves[-1].clone()  # so that what follows may work in place
        use = Use(layer, *names)
        self.uses.append(use)
        saved, version = tuple(part.detach() for part in saved), x._version
        if self.recomputed:
            return Tap.apply(out, lambda *arrived: self.take(use, *arrived), *saved)

        def arrived(gradient: Tensor) -> None:
            if x._version != version:
                raise RuntimeError(f"the input of {name} was changed in place after the layer had used it")
            self.take(use, saved, gradient)

        out.register_hook(arrived)
        return out


class Tap(torch.autograd.Function):
    """Identity whose backward pass hands over the saved or recomputed inputs and the output's gradient."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, take: Callable[[Saved, Tensor], None], *saved: Tensor) -> Tensor:
        """A copy of `out` `[...]`, so that what follows may work in place; keeps `saved`."""
        ctx.save_for_backward(*saved)
        ctx.take = take
        return out.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient `[...]` as it is, and None for everything else."""
        saved = ctx.saved_tensors  # may be asked for once: this is where a block is computed again
        ctx.take(saved, gradient)
        return gradient, *[None] * (1 + len(saved))


def leaves_of(values: Iterable[Any]) -> list[Tensor]:
    """All tensors `[...]` in nested lists and tuples, in order."""
    leaves = []
    for value in values:
        if isinstance(value, Tensor):
            leaves.append(value)
        elif isinstance(value, (list, tuple)):
            leaves += leaves_of(value)
    return leaves


EPS = 1e-5
"""Default of torch's `group_norm` and `layer_norm`, whose place the readers below take."""
Call = tuple[Layer, Tensor, Tensor | None, Tensor | None]
"""A layer, its input, weight and bias."""


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
    return Linear(), x, weight, bias


def _matmul(x: Tensor, weight: Tensor) -> Call:
    if weight.dim() != 2:
        raise Unknown(f"a parameter of shape {list(weight.shape)} is used by matmul")
    return Linear(turned=True), x, weight, None


def _embedding(
    x: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Call:
    """A table of rows, read by index.

    Many parameters: each is an argument of the function of torch whose place it takes.
    """
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise Unknown("a table with max_norm, scale_grad_by_freq or sparse is used by embedding")
    padding = -1 if padding_idx is None else padding_idx % len(weight)
    return Embed(len(weight), padding), x, weight, None


def _group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = EPS
) -> Call:
    return GroupNorm(num_groups, eps), x, weight, bias


def _layer_norm(
    x: Tensor,
    normalized_shape: Iterable[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = EPS,
) -> Call:
    return LayerNorm(tuple(normalized_shape), eps), x, weight, bias


def _conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call:
    """A convolution in one to three dimensions.

    Many parameters: each is an argument of the function of torch whose place it takes.
    """
    axes = weight.dim() - 2
    stride, dilation = each(stride, axes), each(dilation, axes)
    if padding == "same":
        reach = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
        if any(total % 2 for total in reach):
            raise Unknown("a kernel of even size with padding='same' is used by convolution")
        padding = [total // 2 for total in reach]
    padding = each(0 if padding == "valid" else padding, axes)
    return Conv(tuple(weight.shape), stride, padding, dilation, False, (0,) * axes, groups), x, weight, bias


def _conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Call:
    """A transposed convolution in one to three dimensions.

    Many parameters: each is an argument of the function of torch whose place it takes.
    """
    axes = weight.dim() - 2
    stride, padding, dilation = each(stride, axes), each(padding, axes), each(dilation, axes)
    return (
        Conv(tuple(weight.shape), stride, padding, dilation, True, each(output_padding, axes), groups),
        x,
        weight,
        bias,
    )


def each(value: Any, axes: int) -> tuple[int, ...]:
    """One number per axis."""
    return (value,) * axes if isinstance(value, int) else tuple(value) * (axes // len(value))


READERS: dict[Callable[..., Any], Callable[..., Call]] = {
    F.linear: _linear,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    Tensor.matmul: _matmul,
    Tensor.mm: _matmul,
    Tensor.__matmul__: _matmul,
    F.embedding: _embedding,
    F.group_norm: _group_norm,
    F.layer_norm: _layer_norm,
    **dict.fromkeys([F.conv1d, F.conv2d, F.conv3d], _conv),
    **dict.fromkeys([F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d], _conv_transpose),
}
"""Readers of the arguments of each known function."""
ADDED = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
ENTRYWISE = ADDED | {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__}
"""Functions of an input and a free scale or shift, in either order."""
ATTRIBUTES = ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "is_cuda", "is_sparse", "data")
QUESTIONS = {getattr(Tensor, name).__get__ for name in ATTRIBUTES} | {
    Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.is_floating_point, Tensor.is_contiguous,
    Tensor.detach, Tensor.__len__, Tensor.element_size,
}  # fmt: skip
"""Functions that read a parameter without differentiating it."""
