"""Classes of Sfumato that were aligned with public images, taken back, as a model of diffusers."""

from types import SimpleNamespace
from typing import Any

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config

from sfumato.alignment import ClassMaps


class SfumatoAlignment(ModelMixin, ConfigMixin):
    """One affine map for each class and cell."""

    @register_to_config
    def __init__(self, classes=1, cells=1, numbers=1):
        super().__init__()
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("centres", torch.zeros(classes, cells, numbers))
        self.register_buffer("back", torch.zeros(classes, numbers, numbers))
        self.register_buffer("weights", torch.zeros(classes, cells))

    def to_private(self, x, y, generator):
        """Images drawn for the classes y `[b]`, mapped back to these classes."""
        unused = torch.empty(0)
        reference: Any = SimpleNamespace(mean=self.mean)
        maps = ClassMaps(reference, self.centres, unused, self.back, self.weights, unused)
        return maps.to_private(x, y, generator)
