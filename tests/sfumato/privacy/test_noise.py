"""What a price rests on comes from a cipher under the system's key, no seed reaches it, and digits tell nothing of the value."""

import copy
import math
import os
import pickle
import random

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from sfumato.errors import BadInput
from sfumato.privacy import noise
from sfumato.privacy.noise import GRID_SHARE, Source, grid, noised, reach, system_generator, system_source
from tests.seeded import Scripted, seeded_source


def draws(count=2000):
    return system_source().normal((count,))


# Where it comes from


def test_the_words_are_those_of_the_cipher_under_the_systems_key(monkeypatch):
    """A twister's words follow from 624 of them; these from a key that is in no file and no attribute."""
    given = []

    def entropy(count, real=os.urandom):
        given.append(real(count))
        return given[-1]

    monkeypatch.setattr(os, "urandom", entropy)
    source = system_source()
    (key,) = given
    assert len(key) == 32
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * 1500))
    expected = np.frombuffer(stream, "<u8")
    assert np.concatenate([source.words(n) for n in (1, 700, 0, 799)]).tolist() == expected.tolist()
    assert key not in map(lambda held: held if isinstance(held, bytes) else b"", vars(source).values())
    limits = Source(key).coins((1500,), 0.25)
    assert limits.tolist() == (expected < 2**62).tolist()


def test_two_sources_differ_and_no_seed_reaches_them():
    result = []
    for _ in range(2):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        result.append(draws())
    assert not (result[0] == result[1]).any()
    assert float((result[0] * result[1]).mean()) == pytest.approx(0, abs=6 / 2000**0.5)


def test_it_leaves_the_seeded_generator_alone():
    before = torch.random.get_rng_state()
    source = system_source()
    source.normal((10,)), source.order(5), source.generator()
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_source_is_never_saved_or_copied(way):
    with pytest.raises(TypeError, match="never saved or copied"):
        way(system_source())


def test_another_process_cannot_draw_the_same_words(monkeypatch):
    source = system_source()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="belongs to the process"):
        source.words(1)


def test_what_no_price_rests_on_has_a_generator_that_shares_nothing_with_it(monkeypatch):
    """All 624 words of its twister are the system's, and drawing from it takes no word of the stream."""
    given = []

    def entropy(count):
        given.append(os.urandom(count))
        return given[-1]

    source = Source(bytes(32), entropy=entropy)
    pairs = source.generator()
    key = np.frombuffer(given[-1], dtype=np.uint32)
    assert len(key) == 624
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}
    expected = twister.random_raw(1500).astype(np.int64) % 2**24
    assert torch.randint(0, 2**24, (1500,), generator=pairs).tolist() == expected.tolist()
    assert source.words(5).tolist() == Source(bytes(32)).words(5).tolist()
    one, two = (torch.randn(2000, generator=system_generator()) for _ in range(2))
    assert float(torch.isin(one, two).float().mean()) < 0.01


# Coins, orders, whole numbers


@pytest.mark.parametrize("rate", [1e-8, 2.0**-60, 0.1, 0.5, 1 - 2.0**-53])
def test_a_coin_is_64_bits_against_the_rate(rate):
    """float32 took a rate of 1e-8 for 6e-8, or for 0."""
    limit = math.floor(rate * 2**64)
    assert 0 < limit <= rate * 2**64
    assert Scripted(0, limit - 1, limit, 2**64 - 1).coins((4,), rate).tolist() == [True, True, False, False]


def test_at_the_rate_one_all_coins_fall_and_at_zero_none():
    assert Scripted(2**64 - 1, 0).coins((2,), 1.0).tolist() == [True, True]
    assert Scripted(2**64 - 1, 0).coins((2,), 0.0).tolist() == [False, False]
    assert system_source().coins((0,), 0.5).shape == (0,)


def test_an_order_holds_all_and_each_is_as_likely():
    source = seeded_source()
    counts: dict[tuple, int] = {}
    for _ in range(2400):
        order = tuple(source.order(4).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24 and stats.chisquare(list(counts.values())).pvalue > 1e-4
    assert Scripted(5, 5, 1, 9, 4, 7).order(3).tolist() == [1, 0, 2][:0] + np.argsort([9, 4, 7]).tolist()


def test_whole_numbers_below_a_bound_are_equally_likely():
    """The words at the top that would make the first numbers likelier are drawn anew."""
    assert Scripted(2**64 - 1, 5).below(torch.tensor([3])).tolist() == [5 % 3]
    assert Scripted(2**64 - 2).below(torch.tensor([3])).tolist() == [(2**64 - 2) % 3]
    assert Scripted(2**64 - 1).below(torch.tensor([8])).tolist() == [7]
    bounds = torch.tensor([1, 7, 10]).repeat(3000).view(-1, 3)
    result = seeded_source().below(bounds)
    assert result.shape == bounds.shape and (result < bounds).all() and result[:, 0].max() == 0
    assert stats.chisquare(torch.bincount(result[:, 1]).numpy()).pvalue > 1e-4


# Noise on a grid


@pytest.mark.parametrize("norm", [0.05, 1.0, 28.0, 3e-9])
@pytest.mark.parametrize("numbers", [1, 2, 64, 1_600_000])
def test_the_grid_is_the_largest_power_of_two_that_adds_a_thousandth_at_most(norm, numbers):
    step = grid(norm, numbers)
    assert math.frexp(step)[0] == 0.5 and math.sqrt(numbers) * step <= GRID_SHARE * norm < 2 * math.sqrt(numbers) * step
    assert norm < reach(norm, numbers) <= norm * (1 + GRID_SHARE)


def test_no_record_moves_the_rounded_sum_farther_than_its_reach(monkeypatch):
    """By brute force in two dimensions: sums of others anywhere, contributions of full norm in all directions; the bound is nearly met."""
    monkeypatch.setattr(Source, "steps", lambda source, shape, scale: torch.zeros(*shape, dtype=torch.float64))
    rng, norm, numbers = np.random.default_rng(0), 1.0, 2
    step, few = grid(norm, numbers), {"norm": norm, "numbers": numbers, "source": system_source()}

    def rounded(sums):
        return noised([torch.from_numpy(sums)], noise_multiplier=1.0, **few)[0].numpy()

    angle = np.concatenate([rng.uniform(0, 2 * np.pi, 50_000), np.full(50_000, np.pi / 4)])
    moved = norm * np.stack([np.cos(angle), np.sin(angle)], 1)
    others = rng.uniform(-3, 3, (len(angle), 2))
    others[-50_000:] = step * (0.5 - 1e-9 + rng.integers(-50, 50, (50_000, 2)))  # rounds down, and up with the record
    bound = reach(norm, numbers)
    one = np.linalg.norm(rounded(others + moved) - rounded(others), axis=1)
    exchanged = np.linalg.norm(rounded(others + moved) - rounded(others - moved), axis=1)
    assert norm < one.max() <= bound and exchanged.max() <= 2 * norm + math.sqrt(2) * step <= 2 * bound
    assert one.max() > norm + 0.3 * math.sqrt(2) * step, "rounding does move it farther than the clip"


def test_noise_is_whole_steps_of_the_grid_whatever_the_value():
    """float32 votes told 0 from 1 in 283 of 300, for the digits of the noise are finer near 0: here value and noise share a grid."""
    step = grid(1.0, 300)
    for value in (0.0, 1.0, 1 / 3, 1e3 + 1e-4):
        (result,) = noised(
            [torch.full((300,), value, dtype=torch.float64)],
            noise_multiplier=2.0,
            norm=1.0,
            numbers=300,
            source=system_source(),
        )
        assert ((result / step) == (result / step).round()).all()
    same = [
        noised(
            [torch.full((300,), value, dtype=torch.float64)],
            noise_multiplier=2.0,
            norm=1.0,
            numbers=300,
            source=seeded_source(),
        )[0]
        for value in (0.0, 512 * step)
    ]
    assert torch.equal(same[1] - same[0], torch.full((300,), 512 * step, dtype=torch.float64)), (
        "the noise knows nothing of the value"
    )


def test_the_noise_has_the_size_of_the_rounded_clip_and_the_shape_of_a_normal():
    values = [torch.zeros(200, 300), torch.full((4000,), 7.0)]
    numbers = 64_000
    result = noised(values, noise_multiplier=2.0, norm=0.5, numbers=numbers, source=seeded_source())
    assert [part.dtype for part in result] == [torch.float32] * 2
    errors = torch.cat([(part - value).flatten() for part, value in zip(result, values, strict=True)]).double()
    deviation = 2.0 * reach(0.5, numbers)
    assert deviation > 1.0, "more than noise multiplier times clip"
    assert stats.kstest(errors.numpy() / deviation, "norm").pvalue > 1e-4
    assert not values[0].any(), "the values stay as they are"


def test_the_samplers_normals_are_standard_normals():
    x = seeded_source().normal((200_000,))
    assert x.dtype == torch.float64 and stats.kstest(x.numpy(), "norm").pvalue > 1e-4
    assert float(x.mean()) == pytest.approx(0, abs=6 / 200_000**0.5)
    assert float(x.var()) == pytest.approx(1, abs=6 * (2 / 200_000) ** 0.5)
    pairs = x.view(2, -1)
    assert abs(float(torch.corrcoef(pairs)[0, 1])) < 6 / 100_000**0.5, "the two of a pair"


def test_noise_too_large_for_its_grid_is_refused():
    with pytest.raises(BadInput, match="cannot be drawn exactly"):
        noised([torch.zeros(3)], noise_multiplier=1e12, norm=1.0, numbers=3, source=system_source())


def test_the_entries_words_name_what_is_done():
    assert "AES-256" in noise.GENERATOR and "grid" in noise.ON_GRID and "discrete" in noise.DISCRETE


def test_noise_of_zero_leaves_the_rounded_value():
    value = torch.tensor([0.3, -1.7])
    (released,) = noised([value], noise_multiplier=0.0, norm=1.0, numbers=2, source=seeded_source())
    assert torch.allclose(released, value, atol=grid(1.0, 2)) and not torch.equal(released, value)
    assert system_source().discrete_gaussian((3,), 0).tolist() == [0, 0, 0]
