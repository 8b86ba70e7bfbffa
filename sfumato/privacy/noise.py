"""The only source of the randomness that prices rest on: AES in counter mode under a key from the operating system.

Each mechanism makes a new `Source`, in each process. Its key is 32 bytes of the system's entropy, lives inside the cipher alone,
and is never logged, saved or derived from settings. All randomness that a price rests on is drawn from it: noise, the coins of
sampling, the order of released records, the record that represents a group. Other randomness (times, and the noise of training
pairs, about which a trained model may reveal much) comes from an ordinary generator that shares nothing with it.

A test may inject a source of its own; the ledger entry then says `insecure` and everything made from it is INTERNAL.

Released numbers and sums of gradients get their noise on a grid (`noised`), so that no digit tells anything of the value
before the noise: floating-point noise leaves gaps that do (Mironov 2012).

Not covered: rounding inside the sums that are noised, which are float32 and depend on the order of addition, and of the samplers' steps,
whose noise is exact but whose sum with the image is float32; who can read this process's memory.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from sfumato.privacy import exact

KEY_BYTES = 32
GENERATOR = "AES-256 in counter mode, keyed by the system"
INJECTED = "a source that a test injected"
ON_GRID = "normal rounded exactly to a power-of-two grid, to which the value is rounded too"
DISCRETE = "discrete Gaussian sampled exactly, whole numbers"
OF_SAMPLER = "normal rounded exactly to 2^-28, added in float32"
GRID_SHARE = 1e-3
"""Largest share of a record's norm that rounding to the grid may add to it."""
ROUNDED_UP = 1 + 2.0**-40
"""Factor on the noise's deviation, so that rounding in float64 cannot bring it below the stated one."""
FINE = 2.0**28
"""Steps of a standard deviation in a sampler's noise; float32 keeps 24 bits of it."""
TWISTER_WORDS = 624
"""32-bit words of the Mersenne twister's state."""
TWISTER_AT = 24
"""Their offset, in 64-bit numbers, in the bytes of a CPU generator's state."""


class Source:
    """A stream of random words by AES-256 in counter mode, and draws from it; on the CPU, whatever device computes.

    It cannot be copied, saved or used in another process, which would draw the same words again.
    """

    def __init__(self, key: bytes, *, entropy: Callable[[int], bytes] = os.urandom):
        """`key`: 32 bytes. `entropy` fills the ordinary generators that stand beside it."""
        self._stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        self._process, self._entropy = os.getpid(), entropy

    def __reduce__(self) -> NoReturn:
        raise TypeError("a source of noise is never saved or copied")

    def words(self, count: int) -> np.ndarray:
        """The next 64-bit words, uint64 `[count]`."""
        if os.getpid() != self._process:
            raise RuntimeError("a source of noise belongs to the process that made it")
        return np.frombuffer(bytearray(self._stream.update(bytes(8 * count))), dtype="<u8")

    def coins(self, shape: Sequence[int], rate: float) -> Tensor:
        """Independent coins, bool `[*shape]`, that fall True with probability floor(rate 2^64) / 2^64, 0 <= `rate` <= 1.

        Never above `rate`, which is what is paid for, and below it by less than 2^-64; at 1 always True.
        """
        limit = math.floor(rate * exact.WORD)
        if limit >= exact.WORD:
            return torch.ones(*shape, dtype=torch.bool)
        return torch.from_numpy(self.words(math.prod(shape)) < np.uint64(limit)).view(*shape)

    def below(self, bounds: Tensor) -> Tensor:
        """Whole numbers from 0 to below each of the `bounds` `[...]` (1 or more), all equally likely, int64 of the same shape."""
        numbers = exact.below(self.words, bounds.flatten().cpu().numpy().astype(np.uint64))
        return torch.from_numpy(numbers.astype(np.int64)).view(bounds.shape)

    def order(self, count: int) -> Tensor:
        """0 to `count` - 1 in random order, all orders equally likely, int64 `[count]`."""
        while len(np.unique(words := self.words(count))) < count:
            pass  # two equal words have no order
        return torch.from_numpy(np.argsort(words))

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normals, exactly rounded to multiples of 2^-28, float64 `[*shape]`."""
        return self.steps(shape, FINE) / FINE

    def steps(self, shape: Sequence[int], scale: float) -> Tensor:
        """Normals of standard deviation `scale` rounded to the nearest whole number, exactly; float64 `[*shape]`."""
        return exact.rounded_normals(self.words, math.prod(shape), scale).view(*shape)

    def discrete_gaussian(self, shape: Sequence[int], sigma: float) -> Tensor:
        """Whole numbers of the discrete Gaussian law with parameter `sigma`, sampled exactly; int64 `[*shape]`, zeros where `sigma` is 0."""
        if not sigma:
            return torch.zeros(*shape, dtype=torch.int64)
        return torch.from_numpy(exact.discrete_gaussian(self.words, math.prod(shape), sigma)).view(*shape)

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """An ordinary generator for what no price rests on, which shares nothing with this stream.

        On a CPU all of its state is entropy: torch would seed its twister with 32 bits, few enough to try every stream.
        """
        generator = torch.Generator(device)
        generator.seed()
        if generator.device.type == "cpu":
            words = np.frombuffer(self._entropy(4 * TWISTER_WORDS), dtype=np.uint32).astype(np.uint64)
            state = generator.get_state()
            state[TWISTER_AT : TWISTER_AT + 8 * TWISTER_WORDS] = torch.from_numpy(words.view(np.uint8))
            generator.set_state(state)
        return generator


def system_source() -> Source:
    """A source whose key comes from the operating system's entropy."""
    return Source(os.urandom(KEY_BYTES))


def system_generator(device: torch.device | str = "cpu") -> torch.Generator:
    """An ordinary generator from the operating system's entropy, for what no price rests on."""
    return system_source().generator(device)


def grid(norm: float, numbers: int) -> float:
    """The grid for vectors of so many numbers to which one record adds at most `norm`: a power of two g, sqrt(numbers) g <= norm / 1000.

    `norm` > 0, `numbers` >= 1.
    """
    return 2.0 ** math.floor(math.log2(GRID_SHARE * norm / math.sqrt(numbers)))


def reach(norm: float, numbers: int) -> float:
    """The largest distance by which one record moves such a vector after rounding to the grid: norm + sqrt(numbers) g.

    Two vectors v and w that lie `norm` apart are rounded by g / 2 at most in each of their numbers, so the rounded ones differ by at
    most |v - w| + g in each, and by norm + sqrt(numbers) g in all. This is so whatever the sum of all other records is, and where
    the *sum* is rounded once; records that were rounded each by itself would need half as much. An exchange of two records moves the
    sum by 2 norm + sqrt(numbers) g, which is less than two of these.
    """
    return norm + math.sqrt(numbers) * grid(norm, numbers)


def noised(
    values: Sequence[Tensor], *, noise_multiplier: float, norm: float, numbers: int, source: Source
) -> list[Tensor]:
    """Values rounded to the grid for `norm` and `numbers`, plus noise of deviation `noise_multiplier` times `reach` on each number.

    `values` are tensors `[...]` of `numbers` numbers in all, or of many records with that many each, and come back in their shapes and types.
    The noise is a normal rounded to the grid, and a rounded value plus a rounded normal is their sum rounded: post-processing of the Gaussian mechanism on the rounded
    values, of sensitivity `reach`. Both are whole multiples of g and are added exactly; the result, float32 like the values, is
    their sum rounded once more, whatever the value was.
    """
    step = grid(norm, numbers)
    scale = noise_multiplier * reach(norm, numbers) * ROUNDED_UP / step
    noisy = []
    for value in values:
        steps = value.detach().to("cpu", torch.float64, copy=True).mul_(1 / step).round_()
        noisy.append(steps.add_(source.steps(value.shape, scale)).mul_(step).to(value))
    return noisy
