"""An autoencoder of Sfumato as a model of diffusers."""

from types import SimpleNamespace
from typing import Any

from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config

from sfumato.networks.autoencoder import Autoencoder


class SfumatoAutoencoder(ModelMixin, ConfigMixin):
    """Images to latents, the means of their posteriors, and back."""

    @register_to_config
    def __init__(self, settings, image):
        super().__init__()
        fields: Any = SimpleNamespace(**settings)
        self.network = Autoencoder(fields, tuple(image))

    def encode(self, x, return_dict=True):
        """Latents `[b, z, h', w']` of images `[b, c, h, w]` in [-1, 1]."""
        mean = self.network.posterior(x)[0]
        return {"latents": mean} if return_dict else (mean,)

    def decode(self, z, return_dict=True):
        """Images `[b, c, h, w]` of latents."""
        image = self.network.decoder(z)
        return {"sample": image} if return_dict else (image,)
