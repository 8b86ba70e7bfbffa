"""Two real processes under torchrun do what one does: exactly where masks and noise are given, in distribution where they are drawn.

What one of the other processes draws is also looked at without torchrun, quickly.
"""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sfumato.diffusion.objective import Examples
from sfumato.privacy.engine import distributed, dp_sgd
from sfumato.privacy.engine.distributed import help_training
from tests import team
from tests.seeded import seeded_source

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What the first of two processes saw."""
    folder = tmp_path_factory.mktemp("team")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, "-m", "tests.team", str(folder)], cwd=ROOT, capture_output=True, timeout=150)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return load_file(folder / "found.safetensors")


@pytest.fixture
def one(monkeypatch):
    """The same in this process alone, with all records."""
    for module in (dp_sgd, distributed):
        monkeypatch.setattr(module, "poisson_sample", module.poisson_sample)
    monkeypatch.setattr(torch.optim, "Adam", torch.optim.Adam)
    return team.injected(None)


@pytest.mark.slow
def test_with_given_masks_and_noise_two_processes_are_one(one, two):
    assert one["gradients"].shape == two["gradients"].shape and len(one["gradients"]) == team.STEPS
    torch.testing.assert_close(two["gradients"], one["gradients"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(two["whole"], one["whole"], rtol=1e-4, atol=1e-5)
    assert not torch.equal(one["whole"], torch.nn.utils.parameters_to_vector(team.network().parameters()))


@pytest.mark.slow
def test_a_training_of_two_goes_on_where_it_stopped(one, two):
    torch.testing.assert_close(two["again"], two["whole"], rtol=0, atol=0)
    torch.testing.assert_close(one["again"], one["whole"], rtol=0, atol=0)


def check_poisson(took):
    """Whether records, a column each, took part in each step, independently of each other and at the stated rate."""
    rate, (steps, records) = team.DRAWN.sample_rate, took.shape
    spread = math.sqrt(rate * (1 - rate) / steps)
    assert set(took.unique().tolist()) == {0, 1}
    assert took.mean(0).tolist() == pytest.approx([rate] * records, abs=5 * spread)
    sizes = took.sum(1)
    assert float(sizes.mean()) == pytest.approx(records * rate, abs=5 * spread * records**0.5)
    assert float(sizes.var()) == pytest.approx(records * rate * (1 - rate), rel=5 * math.sqrt(2 / steps))
    assert torch.corrcoef(took.T).fill_diagonal_(0).abs().max() < 5.5 / steps**0.5


def test_another_process_draws_a_poisson_sample_of_its_records_in_each_step():
    x, y = team.records(30)
    took, steps = torch.zeros(team.DRAWN.steps, len(x), dtype=torch.float64), iter(range(team.DRAWN.steps))

    def spy(x, y, generator):
        took[next(steps), (x[:, 0, 0, 0] * 30).round().long()] = 1
        return Examples(x[:, None], torch.ones_like(y)[:, None], y[:, None], x[:, None])

    source = seeded_source(1)
    drawn = {"source": source, "pairs": source.generator(), "physical_batch": 32, "team": team.Led(team.DRAWN.steps)}
    help_training(team.network(), x, y, spy, team.DRAWN, **drawn)
    check_poisson(took)


@pytest.mark.slow
def test_the_union_of_the_parts_is_a_poisson_sample_at_the_stated_rate(two):
    """Also across the two parts: records with even numbers lie in one, those with odd numbers in the other."""
    took = two["took"].double()
    check_poisson(took)
    steps = len(took)
    parts = torch.stack([took[:, 0::2].sum(1), took[:, 1::2].sum(1)])
    assert abs(float(torch.corrcoef(parts)[0, 1])) < 5.5 / steps**0.5


@pytest.mark.slow
def test_the_noise_comes_once(two):
    """Two processes that each added it would give sqrt(2) times as much."""
    noise = two["noise"].double() / (2.0 * team.DRAWN.clip / team.EXPECTED)
    assert noise.numel() > 3000
    assert float(noise.mean()) == pytest.approx(0, abs=5 / noise.numel() ** 0.5)
    assert float(noise.square().mean()) == pytest.approx(1, abs=5.5 * math.sqrt(2 / noise.numel()))


def test_the_parts_are_disjoint_and_all():
    parts = [list(range(team.RECORDS))[distributed.Team(rank, 3).part] for rank in range(3)]
    assert sorted(number for part in parts for number in part) == list(range(team.RECORDS))
