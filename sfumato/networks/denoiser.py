"""The interface of a denoiser, ours or another: one prediction, class rows, named groups of parameters.

All code that reads class rows or the group of a parameter does so through this file, so that a network from elsewhere needs three
methods and no names of ours. Not covered: how such a network is built and stored (`sfumato.networks.build`,
`artifacts.serialization`).
"""

from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from sfumato.config import ParameterGroup

Group = ParameterGroup | Literal["frozen"]
"""A group, or `frozen` beside a low-rank adapter."""
FROZEN, ADAPTERS = ".frozen.weight", (".down.weight", ".up.weight")
"""Suffixes of the names of a layer with an adapter, and of its adapter."""


@runtime_checkable
class Denoiser(Protocol):
    """A class-conditional network; in all but this an `nn.Module`."""

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """The noise in x `[b, c, h, w]` at times t `[b]` for classes y `[b]`, where a negative one stands for no class."""

    def class_rows(self) -> Tensor:
        """`[classes, width]`, the embedding of each class; their mean stands for no class."""

    def exchange_rows(self, rows: Tensor) -> None:
        """Replace its own rows by `rows` `[classes, width]`, possibly of another number of classes; all of them can learn."""

    def group_of(self, name: str) -> ParameterGroup:
        """The group of the parameter of this name."""


def as_denoiser(model: nn.Module) -> Denoiser:
    """The network as a denoiser; `TypeError` where it is none."""
    if not isinstance(model, Denoiser):
        raise TypeError(f"{type(model).__name__} is no Denoiser: give it class_rows, exchange_rows and group_of")
    return model


def class_rows(model: nn.Module) -> Tensor:
    """`[classes, width]`, the embedding of each class."""
    return as_denoiser(model).class_rows()


def with_classes(model: nn.Module, rows: Tensor) -> nn.Module:
    """Exchange, in place, the class rows by a copy of `rows` `[classes, width]` and return the model.

    Only the private classes' rows remain, so that every row can receive gradient and no noise is spent on one that
    cannot.
    """
    as_denoiser(model).exchange_rows(rows.detach().clone())
    return model


def groups_of(model: nn.Module) -> Callable[[str], Group]:
    """From a parameter's name to its group; in a network that is no `Denoiser` all are `rest`.

    An adapter belongs to the group of the layer that it stands beside, which is `frozen` itself.
    """
    adapted = {name.removesuffix(FROZEN) for name, _ in model.named_parameters() if name.endswith(FROZEN)}

    def group(name: str) -> Group:
        owner = name.rpartition(".")[0]
        if owner.removesuffix(".frozen") in adapted:
            return "frozen"
        for end in ADAPTERS:
            if name.endswith(end) and name.removesuffix(end) in adapted:
                name = f"{name.removesuffix(end)}.weight"
        return model.group_of(name) if isinstance(model, Denoiser) else "rest"

    return group


def parameters_by_group(model: nn.Module) -> dict[str, int]:
    """Number of parameters in each group."""
    sizes: dict[str, int] = {}
    group_of = groups_of(model)
    for name, parameter in model.named_parameters():
        group = group_of(name)
        sizes[group] = sizes.get(group, 0) + parameter.numel()
    return sizes
