"""Steps that are timed, and those that the fixed table stands in for."""

import pytest

from sfumato.config import Latent, Network
from sfumato.costs import COSTS, Work
from sfumato.evaluation.classifier import Classifier
from sfumato.networks.autoencoder import build_autoencoder, latent_shape
from sfumato.networks.build import build
from sfumato.recipe import probe as module
from sfumato.recipe.probe import Probe, autoencoder_step, denoiser_step, measured, reading_step
from sfumato.settings import resolve


def test_what_is_too_large_for_the_probe_is_taken_from_the_table(monkeypatch):
    monkeypatch.setattr(module, "measured", lambda *_: pytest.fail("it was timed"))
    timer = Probe(COSTS["cpu"])
    huge = Work(multiply_adds=1e12, weights=10, numbers=1e3)
    assert timer.per_image("unet", huge, lambda n: None) == pytest.approx(3e3 * COSTS["cpu"]["unet"].work)
    wide = Work(multiply_adds=1e3, weights=10, numbers=1e9)
    assert timer.per_image("unet", wide, lambda n: None) > 0, "nor what holds too much"
    heavy = Work(multiply_adds=1e3, weights=30_000_000, numbers=1e3)
    assert timer.per_image("unet", heavy, lambda n: None) > 0, "nor a network whose weights alone do"
    late = Probe(COSTS["cpu"], started=module.time.perf_counter() - 2 * module.PROBE_SECONDS)
    assert late.per_image("mlp", Work(1e3, 10), lambda n: None) > 0, "nor anything once the time is over"


@pytest.mark.parametrize(
    ("fitting", "together", "images"), [(100, 32, 96), (100, 1, 100), (20, 32, 20), (1e9, 100, 200)]
)
def test_a_step_has_whole_records_or_part_of_one(monkeypatch, fitting, together, images):
    """A record of 32 noised copies was timed as a whole where two copies fitted, and for the time of two."""
    monkeypatch.setattr(module, "measured", lambda step, images: step() or 1.0)
    numbers, sizes = module.PROBE_BYTES / (module.HELD * module.BYTES * fitting), []
    Probe(COSTS["cpu"]).per_image("unet", Work(1.0, 0, numbers), sizes.append, together=together)
    assert sizes == [images]


@pytest.mark.parametrize("step", ["denoiser", "autoencoder", "reading"])
def test_gradients_are_not_held_once_a_step_has_been_timed(step):
    """Several networks are timed one after the other: each would keep as much as its weights."""
    shape, latent = (1, 8, 8), Latent(kind="patch", patch=2, channels=2, multipliers=(1,))
    network = {
        "denoiser": lambda: build(Network(kind="mlp", width=8), shape, 2),
        "autoencoder": lambda: build_autoencoder(latent, shape),
        "reading": lambda: Classifier(1, 2, side=8),
    }[step]()
    {
        "denoiser": lambda: denoiser_step(network, resolve("dp-sgd", "digits", []), shape, 2),
        "autoencoder": lambda: autoencoder_step(network, 2, shape, latent_shape(latent, shape)),
        "reading": lambda: reading_step(network, 2, shape),
    }[step]()
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_slow_first_round_is_not_what_a_step_takes(monkeypatch):
    """The first round of a step looks at the network and may take seconds; those that follow are what a run consists of."""
    clock = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(module.time, "process_time", lambda: clock[0])
    rounds = iter([2.0, 0.004, 0.004, 0.004])

    def step():
        clock[0] += next(rounds)

    assert measured(step, images=4) == pytest.approx(0.001)
