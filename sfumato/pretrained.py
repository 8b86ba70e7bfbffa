"""Public models that exist already: settings that follow from the folder of one, and its weights read in place of training.

A person who brings weights says why they count as public; nothing here can check that. Their training data is not part of any
promise.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.config import Latent, Network, Schedule
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import BadInput
from sfumato.images import shape_of
from sfumato.latents import CHUNK, MEASURED, Latents, scaled
from sfumato.methods import METHODS
from sfumato.methods.plan import BroughtModel
from sfumato.networks import diffusers_models
from sfumato.networks.diffusers_folder import (
    AUTOENCODERS,
    DENOISERS,
    ModelFolder,
    model_folder,
    multiples,
    schedule_of,
    scheduler_file,
)
from sfumato.networks.prediction import predicting
from sfumato.settings import Settings, written

NETWORK, LATENT = "network.from", "latent.from"
CHANGED = "its files changed since the plan was made: start again"


def with_pretrained(settings: Settings) -> Settings:
    """The settings completed from the folders of `network.from` and `latent.from`; unchanged without one.

    `BadInput` for a folder that cannot be read, a schedule other than the folder's, and weights without a reason why they count as
    public.
    """
    network, latent = settings.network, settings.latent
    if not (network.from_ or latent.from_):
        return settings
    if not settings.privacy.public_because.strip():
        name, place = (NETWORK, network.from_) if network.from_ else (LATENT, latent.from_)
        raise BadInput(
            f'{name}={place} brings weights from elsewhere: say in --public-because "..." why they count as public (source, licence, and '
            "that no private record was in their training)"
        )
    if latent.from_:
        settings = settings.model_copy(update={"latent": described_latent(latent)})
    elif network.from_ and latent.kind == "none":
        # A choice, which no recipe then makes: the weights know pixels, or the latents of an autoencoder that comes with them.
        settings = settings.model_copy(update={"latent": latent.model_copy(update={"kind": "none"})})
    if not network.from_:
        return settings
    if METHODS[settings.method.name].blueprint:
        raise BadInput(
            f"{NETWORK}={network.from_}: method.name={settings.method.name} trains a network of its own, and uses no other"
        )
    described, schedule = described_network(network, settings.schedule)
    return settings.model_copy(update={"network": described, "schedule": schedule})


def described_network(network: Network, schedule: Schedule) -> tuple[Network, Schedule]:
    """The sections of the denoiser in its folder, and of the schedule that it was trained with."""
    folder = model_folder(network.from_, NETWORK, DENOISERS)
    levels = scheduler_file(folder, NETWORK)
    its_own, prediction = schedule_of(levels)
    _refuse_other(schedule, its_own, levels)
    origin = {"from": network.from_, "config": plain(folder), "weights": folder.digest(levels)}
    described = Network.model_validate(_shape_of_denoiser(folder) | origin | {"prediction": prediction})
    _refuse_own(network, described, NETWORK)
    return described, its_own


def described_latent(latent: Latent) -> Latent:
    """The latent section of the autoencoder in its folder."""
    folder = model_folder(latent.from_, LATENT, AUTOENCODERS)
    config = folder.config
    channels = config.get("encoder_block_out_channels") or config["block_out_channels"]
    blocks = config.get("layers_per_block") or max(config.get("num_encoder_blocks", [1]))
    architecture = {
        "kind": "kl",
        "channels": diffusers_models.latent_channels(config),
        "width": channels[0],
        "multipliers": multiples(channels),
        "blocks": blocks,
    }
    origin = {"from": latent.from_, "bound": latent.bound, "config": plain(folder), "weights": folder.digest()}
    whole = Latent.model_validate(architecture | origin)
    _refuse_own(latent, whole, LATENT)
    return whole


def plain(folder: ModelFolder) -> str:
    """The settings of a model's class as JSON, without its former place."""
    settings = {
        name: value for name, value in folder.config.items() if not name.startswith("_") or name == "_class_name"
    }
    return json.dumps(settings, sort_keys=True)


def _shape_of_denoiser(folder: ModelFolder) -> dict[str, Any]:
    """Its size in terms of our settings, for estimates and reports."""
    config = folder.config
    if DENOISERS[folder.kind] == "unet":
        channels = config["block_out_channels"]
        sizes = {"width": channels[0], "multipliers": multiples(channels), "blocks": config["layers_per_block"]}
        return {"kind": "unet", "attention": (), **sizes}
    heads, each = config["num_attention_heads"], config["attention_head_dim"]
    sizes = {"width": heads * each, "heads": heads, "blocks": config["num_layers"], "patch": config["patch_size"]}
    return {"kind": "dit", **sizes}


def _refuse_own(settings: Any, described: Any, setting: str) -> None:
    """`BadInput` for a field that a person sets otherwise than the folder does."""
    for name in sorted(settings.model_fields_set - {"from_"}):
        if getattr(settings, name) != getattr(described, name):
            section = setting.partition(".")[0]
            raise BadInput(
                f"{section}.{name}={written(getattr(settings, name))} is not what {setting} brings ({written(getattr(described, name))}): leave it out"
            )


def _refuse_other(settings: Schedule, described: Schedule, place: Path) -> None:
    """`BadInput` for a schedule that a person sets otherwise than the weights were trained with."""
    for name in sorted(settings.model_fields_set):
        if getattr(settings, name) != getattr(described, name):
            raise BadInput(
                f"schedule.{name}={written(getattr(settings, name))} is not that of {place} ({written(getattr(described, name))}): leave it out"
            )


def brought(settings: Settings) -> tuple[BroughtModel, ...]:
    """The models from elsewhere, for plan, card and ledger."""
    because = settings.privacy.public_because
    return tuple(
        BroughtModel(
            setting=setting,
            folder=Path(section.from_).name,
            kind=json.loads(section.config)["_class_name"],
            digest=section.weights,
            because=because,
        )
        for setting, section in ((NETWORK, settings.network), (LATENT, settings.latent))
        if section.from_ and section.config
    )


def load_denoiser(
    settings: Network, schedule: Schedule, shape: tuple[int, int, int], classes: int, *, limit: float
) -> nn.Module:
    """The denoiser of `network.from` for images or latents of `shape`, with rows for `classes`; `BadInput` where its files changed."""
    folder = model_folder(settings.from_, NETWORK, DENOISERS)
    if folder.digest(scheduler_file(folder, NETWORK)) != settings.weights:
        raise BadInput(f"{NETWORK}={settings.from_}: {CHANGED}")
    model = diffusers_models.load_denoiser(settings, folder.path, shape, classes)
    return predicting(model, settings, make_schedule(schedule, limit).alpha_bar)


@torch.no_grad()
def load_latents(settings: Latent, images: Tensor, *, own_scale: bool) -> Latents:
    """The autoencoder of `latent.from` on public images `[n, c, h, w]` in [-1, 1].

    Its latents are scaled as its folder says where `own_scale`, for a denoiser that was trained on these, else to unit variance on the
    images. `BadInput` where its files changed.
    """
    folder = model_folder(settings.from_, LATENT, AUTOENCODERS)
    if folder.digest() != settings.weights:
        raise BadInput(f"{LATENT}={settings.from_}: {CHANGED}")
    shown, shape = images[:MEASURED].split(CHUNK), shape_of(images)
    network = diffusers_models.load_autoencoder(settings, folder.path, shape)
    network = network.to(images.device).eval().requires_grad_(False)
    if not own_scale:
        return scaled(network, settings, shape, shown)
    mean, spread = (part.to(images.device) for part in diffusers_models.own_scale(folder.config))
    means = torch.cat([network.posterior(part)[0] for part in shown])
    limit = float(((means - mean) / spread).abs().max())
    return Latents(network, settings, shape, mean, spread, limit)
