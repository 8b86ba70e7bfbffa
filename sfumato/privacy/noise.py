"""Where privacy noise comes from: the operating system's entropy, and nowhere else.

A generator is made afresh for each mechanism, seeded by torch from the operating system, and never logged, saved or derived from
settings. A test may inject its own; the ledger entry then says `insecure` and everything made from it is INTERNAL. Not covered:
the generator itself is not cryptographic, and floating-point effects of the Gaussian are not defended against.
"""

import torch


def system_generator(device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` whose state comes from the operating system's entropy."""
    generator = torch.Generator(device)
    generator.seed()
    return generator
