"""Models of diffusers behind our contracts: denoisers that take class rows, autoencoders that encode by their mean.

A denoiser's times are ours less one, since theirs begin at 0. In place of its class embedding stand rows that any number of classes may
have; they are zero where it knew no classes, and those of no class, or the mean of its own, where it knew others. Of outputs with a
learnt variance the mean's half is used. Not covered: text, time embeddings by Fourier features, class embeddings that are no table.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from sfumato.config import Latent, Network, ParameterGroup
from sfumato.errors import BadInput, first_line
from sfumato.networks.diffusers_folder import diffusers, quiet
from sfumato.networks.layers import rows_of
from sfumato.networks.prediction import NoisePrediction, Prediction

Shape = tuple[int, int, int]
"""Channels, height and width."""
UNET, DIT = "UNet2DModel", "DiTTransformer2DModel"
ROWS = ".rows.weight"
"""Suffix of the names of class rows."""
TIME = ("inner.time_embedding.", ".timestep_embedder.")
FILM = (".time_emb_proj.", ".norm1.linear.", "inner.proj_out_1.")
ATTENTION = (".attentions.", ".attn1.", ".attn2.")
"""What the names of parameters of each group hold: modulation is what the condition is turned into, block by block."""


class ClassRows(nn.Module):
    """A table of class rows in place of a class embedding."""

    def __init__(self, rows: Tensor):
        super().__init__()
        self.rows = nn.Embedding.from_pretrained(rows, freeze=False)

    def forward(self, y: Tensor) -> Tensor:
        """The rows `[b, width]` of classes y `[b]`; of a negative one their mean."""
        return rows_of(self.rows.weight, y)


class DiffusersDenoiser(nn.Module):
    """A `UNet2DModel` or `DiTTransformer2DModel` as a `sfumato.networks.denoiser.Denoiser`."""

    def __init__(self, inner: nn.Module, channels: int, classes: int):
        super().__init__()
        self.inner, self.channels = inner, channels
        self.tables = [place for place in _tables(inner)]
        for place in self.tables:
            rows = _rows(inner, place, classes)
            owner, _, name = place.rpartition(".")
            setattr(inner.get_submodule(owner), name, ClassRows(rows))
        self.prediction: Prediction = NoisePrediction()

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """The noise in x `[b, c, h, w]` at times t `[b]`, from 1, for classes y `[b]`."""
        out = self.inner(self.prediction.scaled(x, t), t - 1, class_labels=y, return_dict=False)[0]
        return self.prediction(out[:, : self.channels], x, t)

    def class_rows(self) -> Tensor:
        """`[classes, width]`; where each block has a table of its own, these side by side."""
        return torch.cat([self._table(place).rows.weight for place in self.tables], 1)

    def exchange_rows(self, rows: Tensor) -> None:
        """Rows `[classes, width]` in place of its own."""
        tables = [self._table(place) for place in self.tables]
        for table, part in zip(tables, rows.split([t.rows.embedding_dim for t in tables], 1), strict=True):
            table.rows = nn.Embedding.from_pretrained(part.contiguous(), freeze=False)

    def group_of(self, name: str) -> ParameterGroup:
        """The group of the parameter of this name."""
        if name.endswith(ROWS):
            return "rows"
        if any(part in name for part in TIME):
            return "time"
        if any(part in name for part in FILM):
            return "film"
        return "attention" if any(part in name for part in ATTENTION) else "rest"

    def _table(self, place: str) -> ClassRows:
        table = self.inner.get_submodule(place)
        assert isinstance(table, ClassRows)
        return table


def _tables(inner: nn.Module) -> Iterator[str]:
    """The modules with a model's class embedding; a DiT has one in every block."""
    if type(inner).__name__ == UNET:
        yield "class_embedding"
        return
    for number in range(sum(1 for _ in inner.get_submodule("transformer_blocks").children())):
        yield f"transformer_blocks.{number}.norm1.emb.class_embedder"


def _rows(inner: nn.Module, place: str, classes: int) -> Tensor:
    """The rows `[classes, width]` to begin with: its own of as many classes, else those of no class, or of the mean of its own, or zero."""
    config: Any = inner.config
    if type(inner).__name__ == UNET:
        if inner.class_embedding is None:
            like = inner.get_parameter("time_embedding.linear_2.bias").detach()
            return torch.zeros(classes, len(like), device=like.device)
        own = inner.get_parameter("class_embedding.weight").detach()
        return own.clone() if len(own) == classes else own.mean(0).repeat(classes, 1)
    own = inner.get_submodule(place).get_parameter("embedding_table.weight").detach()
    known = config.num_embeds_ada_norm
    if known == classes:
        return own[:known].clone()
    nobody = own[known] if len(own) > known else own.mean(0)
    return nobody.repeat(classes, 1)


def build_denoiser(settings: Network, shape: Shape, classes: int) -> nn.Module:
    """A freshly initialised denoiser by the settings of its folder; `BadInput` where it does not fit images or latents of `shape`."""
    config = json.loads(settings.config)
    refuse_misfit(config, shape)
    with quiet():
        return DiffusersDenoiser(_class_of(config).from_config(config), shape[0], classes)


def load_denoiser(settings: Network, folder: Path, shape: Shape, classes: int) -> nn.Module:
    """The denoiser in a folder with its weights, in float32; `BadInput` where it does not fit images or latents of `shape`."""
    config = json.loads(settings.config)
    refuse_misfit(config, shape)
    return DiffusersDenoiser(_loaded(config, folder), shape[0], classes)


def exported_tables(model: DiffusersDenoiser) -> list[str]:
    """The names of the tables of classes in diffusers' own class."""
    own = type(model.inner).__name__ == UNET
    return [place if own else f"{place}.embedding_table" for place in model.tables]


@torch.no_grad()
def exported(model: DiffusersDenoiser) -> nn.Module:
    """The denoiser as diffusers' own class, with a table of its class rows and, after them, one of no class, their mean."""
    inner: Any = model.inner
    rows = len(model.class_rows())
    embeds = {"num_class_embeds": rows + 1} if type(inner).__name__ == UNET else {"num_embeds_ada_norm": rows}
    config = dict(inner.config) | embeds
    with quiet():
        plain = type(inner).from_config(config)
    tensors = inner.state_dict()
    for place, there in zip(model.tables, exported_tables(model), strict=True):
        table = tensors.pop(f"{place}{ROWS}")
        whole = torch.cat([table, rows_of(table, torch.tensor([-1], device=table.device))])
        tensors[f"{there}.weight"] = whole
    plain.load_state_dict(tensors)
    done: nn.Module = plain.eval()
    return done


def refuse_misfit(config: Mapping[str, Any], shape: Shape) -> None:
    """`BadInput` for a denoiser of other channels or sides than `shape`, or of a kind for which there is no rule."""
    kind, (channels, height, width) = config["_class_name"], shape
    what = f"network.from holds a {kind}"
    size = f"{height}x{width}"
    outputs = config.get("out_channels") or config["in_channels"]
    if config["in_channels"] != channels or outputs not in (channels, 2 * channels):
        raise BadInput(
            f"{what} of {config['in_channels']} channels in and {outputs} out, and what it is to denoise has {channels} ({size}): bring the "
            "autoencoder that it was trained with (latent.from=PATH), or set data.channels"
        )
    if kind == DIT:
        side = config["sample_size"]
        if (side, side) != (height, width):
            raise BadInput(
                f"{what} for {side}x{side} positions, and what it is to denoise has {size}: set data.size to fit it"
            )
        return
    if config["time_embedding_type"] == "fourier" or config["class_embed_type"] is not None:
        raise BadInput(
            f"{what} with time_embedding_type={config['time_embedding_type']} and class_embed_type={config['class_embed_type']}, for which "
            "there is no rule: bring one with positional or learned times, and a table of classes or none"
        )
    factor = 2 ** (len(config["block_out_channels"]) - 1)
    if height % factor or width % factor:
        raise BadInput(
            f"{what} that halves its input {len(config['block_out_channels']) - 1} times, which {size} do not allow: in pixels use "
            f"data.size={max(1, height // factor) * factor}"
        )


class DiffusersAutoencoder(nn.Module):
    """An `AutoencoderKL`, `AutoencoderTiny` or `VQModel` with the methods of `sfumato.networks.autoencoder.Autoencoder`."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance, both `[b, z, h', w']`, of the latents of images x; without a posterior the log variance is 0."""
        encoder: Any = self.inner
        latents = encoder.encode(x, return_dict=False)[0]
        return (latents.mean, latents.logvar) if hasattr(latents, "logvar") else (latents, torch.zeros_like(latents))

    def decoder(self, z: Tensor) -> Tensor:
        """Images `[b, c, h, w]` of latents `[b, z, h', w']`."""
        inner: Any = self.inner
        return inner.decode(z, return_dict=False)[0]

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As of our own: reconstruction `[b, c, h, w]` of x from a latent drawn with `noise` `[b, z, h', w']`, and the posterior's mean and log
        variance."""
        mean, log_variance = self.posterior(x)
        return self.decoder(mean + (log_variance / 2).exp() * noise), mean, log_variance


def build_autoencoder(settings: Latent, image: Shape) -> DiffusersAutoencoder:
    """A freshly initialised autoencoder by the settings of its folder; `BadInput` for images of other channels."""
    config = json.loads(settings.config)
    refuse_channels(config, image)
    with quiet():
        return DiffusersAutoencoder(_class_of(config).from_config(config))


def load_autoencoder(settings: Latent, folder: Path, image: Shape) -> DiffusersAutoencoder:
    """The autoencoder in a folder with its weights, in float32; `BadInput` for images of other channels."""
    config = json.loads(settings.config)
    refuse_channels(config, image)
    return DiffusersAutoencoder(_loaded(config, folder))


def refuse_channels(config: Mapping[str, Any], image: Shape) -> None:
    """`BadInput` for an autoencoder of other colours than the images."""
    ends = config["in_channels"], config["out_channels"]
    if ends != (image[0], image[0]):
        raise BadInput(
            f"latent.from holds a {config['_class_name']} of {ends[0]} channels in and {ends[1]} out, and the images have {image[0]}: use "
            f"--set data.channels={ends[0]}, or another autoencoder"
        )


def own_scale(config: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Mean and spread `[z, 1, 1]` by which the models trained on an autoencoder's latents scale them, as its settings say."""
    channels = latent_channels(config)
    mean, spread = config.get("latents_mean"), config.get("latents_std")
    if mean is None or spread is None:
        mean = [config.get("shift_factor") or 0.0] * channels
        spread = [1 / (config.get("scaling_factor") or 1.0)] * channels
    return torch.tensor(mean)[:, None, None], torch.tensor(spread)[:, None, None]


def latent_channels(config: Mapping[str, Any]) -> int:
    """Channels of a latent; of a VQ model those of its codes."""
    return int(config.get("vq_embed_dim") or config["latent_channels"])


def _class_of(config: Mapping[str, Any]) -> Any:
    return getattr(diffusers(), config["_class_name"])


def _loaded(config: Mapping[str, Any], folder: Path) -> nn.Module:
    """The model of a folder; `BadInput` where the weights are not those of its settings."""
    with quiet():
        try:
            model, report = _class_of(config).from_pretrained(
                folder, use_safetensors=True, local_files_only=True, output_loading_info=True, low_cpu_mem_usage=False
            )
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            raise BadInput(f"{folder} cannot be loaded by diffusers: {first_line(error)}") from None
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[problem]:
            raise BadInput(
                f"{folder}: the weights are not those of its config.json ({problem}: {sorted(report[problem])[0]})"
            )
    loaded: nn.Module = model.float().eval()
    return loaded
