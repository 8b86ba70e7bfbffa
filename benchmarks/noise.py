"""What exact noise from a cipher costs: beside the generators that were tried, and against a private step of 1.6M parameters.

    OMP_NUM_THREADS=1 python benchmarks/noise.py [--records 64] [--rounds 7]

Processor time on one thread, medians, all in turn. `randomgen` is shown where it is installed; nothing here needs it.
Last, how far rounding inside the float32 sum moves it, and how exact laws for a histogram cost.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from dp_step import ours, setting

from sfumato.privacy.noise import noised, system_source

NUMBERS = 1_600_000


def medians(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Name -> median seconds, all in turn, after one call that only warms up."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            start = time.process_time()
            way()
            taken[name] += [time.process_time() - start] if turn else []
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def keystreams() -> dict[str, Callable[[], object]]:
    """12.8 MB of random bytes from each generator that was tried."""
    zeros = bytes(8 * NUMBERS)
    aes = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
    chacha = Cipher(algorithms.ChaCha20(os.urandom(32), bytes(16)), None).encryptor()
    ways = {
        "AES-256-CTR (cryptography)": lambda: aes.update(zeros),
        "ChaCha20 (cryptography)": lambda: chacha.update(zeros),
    }
    try:
        from randomgen import AESCounter, ChaCha
    except ImportError:
        return ways
    counter, rounds = AESCounter(), ChaCha(rounds=20)
    return ways | {
        "AES counter (randomgen)": lambda: counter.random_raw(NUMBERS),
        "ChaCha20 (randomgen)": lambda: rounds.random_raw(NUMBERS),
        "normals of AES counter (randomgen, numpy)": lambda: np.random.Generator(counter).standard_normal(NUMBERS),
    }


def rounding(records: int) -> float:
    """By how much one more record moves a float32 sum beyond its exact contribution, in clips: sums of unit vectors."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(NUMBERS, generator=generator) for _ in range(records)]
    rows = [row / row.norm() for row in rows]
    one, more = torch.zeros(NUMBERS), rows[0].clone()
    for row in rows[1:]:
        one, more = one + row, more + row
    return float((more.double() - one.double() - rows[0].double()).norm())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    source = system_source()
    model, trainable, examples = setting("1.6m", arguments.records, 1, "cpu")
    total = {name: torch.zeros_like(value) for name, value in trainable.items()}
    size = sum(value.numel() for value in total.values())
    few = {"noise_multiplier": 1.0, "norm": 1.0, "numbers": size, "source": source}
    step = ours(model, trainable, examples)
    times = medians(
        {
            **keystreams(),
            "torch.randn, float32": lambda: [torch.randn(value.shape) for value in total.values()],
            "exact noise on the grid": lambda: noised(list(total.values()), **few),
            "a private step": step,
        },
        arguments.rounds,
    )
    print(f"{size:,} numbers, {arguments.records} records\n\n| what | ms | of a step |\n| --- | --- | --- |")
    for name, seconds in times.items():
        print(f"| {name} | {seconds * 1e3:.1f} | {seconds / times['a private step']:.1%} |")
    votes = medians({"votes": lambda: source.discrete_gaussian((62, 300), 6.0)}, arguments.rounds)["votes"]
    print(f"\n62 x 300 votes with discrete Gaussian noise: {votes * 1e3:.0f} ms")
    print(
        f"One record moves a float32 sum of {arguments.records} by {rounding(arguments.records):.1e} clips beyond its own"
    )


if __name__ == "__main__":
    main()
