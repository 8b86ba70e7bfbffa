"""A denoiser of Sfumato as a model of diffusers."""

from types import SimpleNamespace
from typing import Any

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import nn

from sfumato.networks.build import BUILDERS
from sfumato.networks.prediction import predicting


class SfumatoDenoiser(ModelMixin, ConfigMixin):
    """Predicts the noise in a sample; a negative class label stands for no class."""

    @register_to_config
    def __init__(self, settings, shape, classes, timesteps):
        super().__init__()
        fields: Any = SimpleNamespace(**{"refine": (), **settings})  # which is written where it is not empty
        network = BUILDERS[fields.kind](fields, tuple(shape), classes)
        self.network: nn.Module = predicting(network, fields, torch.zeros(timesteps + 1))

    def forward(self, sample, timestep, class_labels=None, return_dict=True):
        """The noise in `sample` `[b, c, h, w]` at times from 0 on, `[b]` or one for all, for classes `[b]`."""
        times = torch.as_tensor(timestep, device=sample.device).expand(len(sample)) + 1
        labels = torch.full_like(times, -1) if class_labels is None else class_labels
        noise = self.network(sample, times, labels)
        return {"sample": noise} if return_dict else (noise,)
