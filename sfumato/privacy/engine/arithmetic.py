"""float32 that is float32: inside the engine no product is taken of rounded operands.

TF32 keeps 10 bits of a number's 23. A norm of such a gradient may be smaller than that of the gradient which is summed, so
that a record crafted for it weighs more than the clip. Torch can switch it on for matrix products and for convolutions, on
a GPU and (as bfloat16) on some CPUs; here all of it is off, and afterwards as it was. Several threads may be inside at once:
the first switches off, the last back on. Not covered: what the driver forces on from outside (`NVIDIA_TF32_OVERRIDE=1`,
which is refused where the environment is read), and the compute mode of other libraries.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

EXACT = ("ieee", "none")
"""What torch calls the precision of operands that are not rounded."""
_lock = threading.Lock()
_inside: list[contextlib.ExitStack] = []


def _places() -> list[Any]:
    """Where torch keeps the precision of products, one by one; empty before it had a name for each."""
    backends: Any = torch.backends
    if not hasattr(backends.cuda.matmul, "fp32_precision"):
        return []
    gpu = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    return [*gpu, backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]


def rounds_operands() -> bool:
    """Whether torch may round the operands of some product now."""
    if places := _places():
        return any(place.fp32_precision not in EXACT for place in places)
    return torch.get_float32_matmul_precision() != "highest" or torch.backends.cudnn.allow_tf32


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """No product inside is taken of rounded float32 operands; afterwards torch is set as it was."""
    with _lock:
        _inside.append(_switched_off() if not _inside else contextlib.ExitStack())
    try:
        yield
    finally:
        with _lock:
            if len(_inside) == 1:
                _inside[0].close()
                _inside.clear()
            else:
                _inside.pop()


def _switched_off() -> contextlib.ExitStack:
    """Off, and how it is put back."""
    back, places = contextlib.ExitStack(), _places()
    for place in places:
        back.callback(setattr, place, "fp32_precision", place.fp32_precision)
    # Its older settings come back first. Torch does not tell them where they disagree with the newer ones.
    with contextlib.suppress(RuntimeError):
        back.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
    with contextlib.suppress(RuntimeError):
        back.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    for place in places:
        if place.fp32_precision not in EXACT:
            place.fp32_precision = EXACT[0]
    return back
