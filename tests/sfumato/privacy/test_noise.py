"""Privacy noise comes from the system's entropy, all of it, and no seed reaches it."""

import os
import random

import numpy as np
import pytest
import torch

from sfumato.privacy.noise import system_generator


def draws(generator, count=2000):
    return torch.randn(count, generator=generator)


def test_two_generators_differ():
    one, two = draws(system_generator()), draws(system_generator())
    assert float(torch.isin(one, two).float().mean()) < 0.01  # float32 numbers meet now and then
    assert float((one * two).mean()) == pytest.approx(0, abs=6 / 2000**0.5)


def test_no_seed_reaches_it():
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        found.append(draws(system_generator()))
    assert not torch.equal(*found)


def test_it_leaves_the_seeded_generator_alone():
    before = torch.random.get_rng_state()
    draws(system_generator())
    assert torch.equal(before, torch.random.get_rng_state())


def test_its_state_holds_more_than_the_32_bits_that_torch_seeds_a_cpu_with():
    """torch's Mersenne twister uses the low 32 bits of its seed: 2^32 streams can be found by trying them all."""
    one, two = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5 + 2**32)
    assert torch.equal(draws(one), draws(two)), "torch seeds with more bits now: simplify system_generator"
    generator = system_generator()
    replayed = torch.Generator().manual_seed(generator.initial_seed())
    assert float(torch.isin(draws(generator), draws(replayed)).float().mean()) < 0.01


def test_the_whole_state_is_the_systems_entropy(monkeypatch):
    """The same stream as numpy's Mersenne twister with the bytes that the system gave as its state."""
    given = []

    def entropy(count, real=os.urandom):
        given.append(real(count))
        return given[-1]

    monkeypatch.setattr(os, "urandom", entropy)
    generator = system_generator()
    key = np.frombuffer(given[-1], dtype=np.uint32)
    assert len(key) == 624
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}
    expected = twister.random_raw(1500).astype(np.int64) % 2**24
    assert torch.randint(0, 2**24, (1500,), generator=generator).tolist() == expected.tolist()


def test_the_noise_is_standard_normal():
    x = draws(system_generator(), 200_000).double()
    assert float(x.mean()) == pytest.approx(0, abs=6 / 200_000**0.5)
    assert float(x.var()) == pytest.approx(1, abs=6 * (2 / 200_000) ** 0.5)
    assert float((x.abs() > 3).double().mean()) == pytest.approx(0.0027, abs=6 * (0.0027 / 200_000) ** 0.5)
