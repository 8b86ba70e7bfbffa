"""Products in full float32: inside the engine torch rounds no operand of a product.

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
"""Torch's name for the precision of operands that are not rounded."""
_lock = threading.Lock()
_inside: list[contextlib.ExitStack] = []


def _places() -> list[Any]:
    """Torch's settings of the precision of products, one by one; empty for versions that have one setting for all."""
    backends: Any = torch.backends
    if not hasattr(backends.cuda.matmul, "fp32_precision"):
        return []
    gpu = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    return [*gpu, backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Inside the block torch rounds no float32 operand of a product; afterwards its settings are as before."""
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
    """Switch rounding off; what it returns restores the settings as it is closed."""
    back, places = contextlib.ExitStack(), _places()
    for place in places:
        back.callback(setattr, place, "fp32_precision", place.fp32_precision)
    # The older settings are restored first: torch cannot read them while they disagree with the newer ones.
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
