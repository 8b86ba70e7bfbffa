"""Small models as diffusers keeps them, with weights that do something; made by diffusers and written to a folder."""

from pathlib import Path

import diffusers
import torch

UNET = {
    "block_out_channels": (8, 16),
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "attention_head_dim": 8,
}
DIT = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "patch_size": 2}
AUTOENCODER = {
    "block_out_channels": (8, 16),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 4,
}


def made(kind: str, **settings):
    """A model of diffusers with other weights than those that begin at zero, the same each time."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = getattr(diffusers, kind)(**settings)
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return model.eval()


def unet(channels: int = 1, **changes):
    """For images or latents of sides that 2 divides."""
    return made("UNet2DModel", in_channels=channels, out_channels=channels, **(UNET | changes))


def dit(channels: int = 1, side: int = 8, classes: int = 4, **changes):
    """Whose outputs have a learnt variance."""
    own = {"in_channels": channels, "out_channels": 2 * channels, "sample_size": side, "num_embeds_ada_norm": classes}
    return made("DiTTransformer2DModel", **(DIT | own | changes))


def autoencoder(kind: str = "AutoencoderKL", channels: int = 1):
    """Of images that it halves once, to latents of two channels."""
    ends = {"in_channels": channels, "out_channels": channels, "latent_channels": 2}
    if kind == "AutoencoderTiny":
        widths = {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8)}
        blocks = {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}
        return made(kind, **ends, **widths, **blocks)
    return made(kind, **ends, **AUTOENCODER)


def save(folder: Path, model: torch.nn.Module, scheduler=None, part: str = "unet") -> Path:
    """A pipeline's folder: the model in its part, and its schedule."""
    model.save_pretrained(folder / part)
    if scheduler is not None:
        scheduler.save_pretrained(folder / "scheduler")
    return folder
