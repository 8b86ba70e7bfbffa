"""Where privacy noise comes from: the operating system's entropy, and nowhere else.

A generator is made afresh for each mechanism from the operating system's entropy, and never logged, saved or derived
from settings. A test may inject its own; the ledger entry then says `insecure` and everything made from it is INTERNAL. Not covered:
the generator itself is not cryptographic (on a GPU it starts from 53 bits), and floating-point effects of the Gaussian
are not defended against.
"""

import os

import numpy as np
import torch

TWISTER_WORDS = 624
"""32-bit words of the Mersenne twister's state."""
TWISTER_AT = 24
"""Where they begin, as 64-bit numbers, in the bytes of a CPU generator's state."""


def system_generator(device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` whose state comes from the operating system's entropy.

    On a CPU all of it: torch would seed its twister with 32 bits, few enough to try every stream.
    """
    generator = torch.Generator(device)
    generator.seed()
    if generator.device.type == "cpu":
        words = np.frombuffer(os.urandom(4 * TWISTER_WORDS), dtype=np.uint32).astype(np.uint64)
        state = generator.get_state()
        state[TWISTER_AT : TWISTER_AT + 8 * TWISTER_WORDS] = torch.from_numpy(words.view(np.uint8))
        generator.set_state(state)
    return generator
