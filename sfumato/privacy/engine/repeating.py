"""Repeats a forward pass with the same dropout masks or none, and shows whether the network remembers the pass before.

Two passes that a survey or a spot check compares must differ in the other records alone, so torch's own random state, from
which networks draw their masks, is restored between them. Privacy noise never comes from that state
(`sfumato.privacy.noise`). Not covered: state that a network keeps outside itself, such as a global variable or a file, unless
it changes a result that is compared.
"""

import contextlib
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Luck = tuple[Tensor, ...]
"""Torch's random state on the CPU and, where there is one, on an accelerator."""
OWN = frozenset(vars(nn.Module()))
"""Attributes that every module has; its parameters and buffers are among them, and looked at by name."""
MOST_DEEP = 8
"""Depth to which a snapshot follows nested containers and objects."""
DROPOUTS: frozenset[Callable[..., Any]] = frozenset(
    [F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout]
    + [getattr(torch, name + end) for name in ("dropout", "alpha_dropout", "feature_dropout") for end in ("", "_")]
)
DROPOUT_PLACE = 4
"""Position of attention's dropout among its arguments."""


def luck(device: torch.device) -> Luck:
    """The random state now."""
    on_device = (torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()
    return torch.get_rng_state(), *on_device


def same_luck(device: torch.device, state: Luck) -> bool:
    """Whether nothing was drawn since."""
    return all(torch.equal(one, other) for one, other in zip(luck(device), state, strict=True))


def put_back(device: torch.device, state: Luck) -> None:
    """Restore the random state, so that the same numbers are drawn again."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


@contextlib.contextmanager
def unnoticed(device: torch.device) -> Iterator[Luck]:
    """Inside the block random draws leave no trace: the state before is yielded, and restored afterwards."""
    state = luck(device)
    try:
        yield state
    finally:
        put_back(device, state)


class Quiet(TorchFunctionMode):
    """Switches dropout off, in layers and in calls."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if function is F.scaled_dot_product_attention:
            args = (*args[:DROPOUT_PLACE], 0.0, *args[DROPOUT_PLACE + 1 :]) if len(args) > DROPOUT_PLACE else args
            kwargs = {**kwargs, "dropout_p": 0.0} if "dropout_p" in kwargs else kwargs
        return function(*args, **kwargs)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Name -> a copy of everything that the model holds: parameters, buffers, and plain attributes of its layers."""
    return _held(model, set())


def _held(model: nn.Module, seen: set[int]) -> dict[str, Any]:
    seen.update(map(id, model.modules()))
    state: dict[str, Any] = {}
    for path, module in model.named_modules():
        own = {key: value for key, value in vars(module).items() if key not in OWN}
        for name, value in {**module._parameters, **module._buffers, **own}.items():
            state[f"{path}.{name}".strip(".")] = _copied(value, seen)
    return state


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The first name under which two snapshots differ; empty where none does."""
    names = [*after, *(name for name in before if name not in after)]
    return next((name for name in names if not same(before.get(name), after.get(name))), "")


def _copied(value: Any, seen: set[int], deep: int = 0) -> Any:
    """A comparable copy: tensors, numbers and text inside tuples; for opaque objects, their type."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    kind = type(value).__name__
    if deep == MOST_DEEP or isinstance(value, type | types.ModuleType | types.FunctionType | types.MethodType):
        return kind
    if isinstance(value, nn.Module):  # one that its holder does not count among its layers, or holds a second time
        value = {} if id(value) in seen else _held(value, seen)
    elif hasattr(value, "tobytes"):  # an array
        return kind, value.tobytes()
    elif hasattr(value, "__dict__") and not isinstance(value, Mapping):
        value = vars(value)
    if isinstance(value, Mapping):
        pairs = value.items()
        return kind, *((_copied(key, seen, deep + 1), _copied(held, seen, deep + 1)) for key, held in pairs)
    if isinstance(value, list | tuple | set | frozenset | deque):
        return kind, *(_copied(held, seen, deep + 1) for held in value)
    return kind


def same(one: Any, other: Any) -> bool:
    """Whether two copies are equal, numbers that are none included."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor | tuple) or isinstance(other, Tensor | tuple):
        return False
    return one == other or (one != one and other != other)
