"""What a network costs: counted with shapes alone or with zeros, without a random number."""

import pytest
import torch

from sfumato import costs
from sfumato.config import BackboneSettings, Latent, Network
from sfumato.costs import autoencoder_work, backbone_work, denoiser_work


def each():
    """The work of a network of each kind."""
    for counted in (denoiser_work, autoencoder_work, backbone_work):
        counted.cache_clear()
    kinds = [Network(kind=kind, width=16) for kind in ("mlp", "unet", "dit", "refinenet")]
    yield from (denoiser_work(kind, (1, 16, 16), 10) for kind in kinds)
    yield autoencoder_work(Latent(kind="kl", width=16), (1, 32, 32))
    yield backbone_work(BackboneSettings(width=8), (1, 32, 32), 10)


def test_zeros_and_shapes_alone_count_the_same(monkeypatch):
    zeros = list(each())
    monkeypatch.setattr(costs, "ZEROS_UP_TO", 0)
    assert list(each()) == zeros and all(work.multiply_adds > 0 and work.weights > 0 for work in zeros)


@pytest.mark.parametrize("up_to", [0, 64])
def test_counting_draws_no_random_number(monkeypatch, up_to):
    monkeypatch.setattr(costs, "ZEROS_UP_TO", up_to)
    before = torch.random.get_rng_state()
    list(each())
    assert torch.equal(torch.random.get_rng_state(), before)
