"""Public training that is broken off goes on to the same weights, to the last bit."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sfumato.backbone import train_backbone
from sfumato.config import BackboneSettings, Latent, Network, Pretraining, Schedule
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import Stopped
from sfumato.images import ImageSet
from sfumato.latents import train_autoencoder
from sfumato.networks.build import build
from sfumato.resuming import TrainingState
from sfumato.retrieval.features import OneStep, train_extractor
from sfumato.retrieval.settings import Extractor
from sfumato.training import pretrain

STEPS, IMAGES = 12, 90
SCHEDULE = make_schedule(Schedule(timesteps=20))


@dataclass
class StopsAt:
    """A keeper that asks for a stop at a step, or for none, and keeps a state every three."""

    step: int = 0
    retained: TrainingState | None = None
    calls: int = -1

    def load(self):
        return self.retained

    def save(self, state):
        self.retained = TrainingState(state.step, {name: value.clone() for name, value in state.tensors.items()})

    def stretch(self, step):
        self.calls = step
        return 3

    def stopping(self):
        return bool(self.step) and self.calls >= self.step - self.step % 3


def digits():
    images, labels = load_digits(return_X_y=True)
    pixels = (images[:IMAGES] * 15).astype(np.uint8).reshape(-1, 1, 8, 8)
    return ImageSet(pixels, labels[:IMAGES].astype(np.int64), tuple("0123456789"))


def unit():
    result = digits()
    return torch.from_numpy(result.pixels).float() / 127.5 - 1, torch.from_numpy(result.labels)


def network():
    return build(Network(kind="mlp", width=16, blocks=1, condition=8), (1, 8, 8), 10, seed=0)


def pretrained(**how):
    return pretrain(network(), SCHEDULE, *unit(), Pretraining(steps=STEPS, batch=16), seed=1, **how)


def autoencoder(**how):
    latent = Latent(kind="kl", steps=STEPS, batch=16, width=8)
    result = train_autoencoder(latent, unit()[0], seed=1, **how)
    return result.codec.network, result.losses


def backbone(**how):
    result = train_backbone(BackboneSettings(steps=STEPS, batch=16, width=8), digits(), seed=1, **how)
    return result.backbone.network, result.losses


def extractor(**how):
    settings = Extractor(steps=STEPS, batch=16, width=8, features=8)
    return train_extractor(settings, OneStep(SCHEDULE, network()), *unit(), times=[10], seed=1, **how)


@pytest.mark.parametrize("train", [pretrained, autoencoder, backbone, extractor])
def test_it_goes_on_to_the_same_weights_and_losses(train):
    whole, losses = train()
    keeper = StopsAt(step=7)
    with pytest.raises(Stopped, match=f"after step . of {STEPS} and saved"):
        train(keeper=keeper)
    assert keeper.retained and 0 < keeper.retained.step < STEPS
    begun, reported = keeper.retained.step, []
    keeper.step = 0
    parts, again = train(keeper=keeper, progress=lambda done, total: reported.append(done))
    assert reported == list(range(begun + 1, STEPS + 1)), "steps that were kept are not done again"
    assert again == losses and len(losses) == STEPS
    for name, value in whole.state_dict().items():
        assert torch.equal(value, parts.state_dict()[name]), name


def test_a_crash_between_two_states_costs_the_steps_since_the_last_one_alone():
    whole, losses = pretrained()

    def crash(done, total):
        if done == 8:
            raise KeyboardInterrupt

    keeper = StopsAt()
    with pytest.raises(KeyboardInterrupt):
        pretrained(keeper=keeper, progress=crash)
    assert keeper.retained.step == 6
    parts, again = pretrained(keeper=keeper)
    assert again == losses
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_a_state_from_another_kind_of_device_is_left_alone():
    keeper = StopsAt(step=7)
    with pytest.raises(Stopped):
        pretrained(keeper=keeper)
    tensors = dict(keeper.retained.tensors)
    tensors["generator/cuda"] = tensors.pop("generator/cpu")
    _, losses = pretrained(keeper=StopsAt(retained=TrainingState(keeper.retained.step, tensors)))
    assert losses == pretrained()[1]
