"""Stages that read public models from elsewhere in place of training them."""

from typing import Annotated

from artifacts import serialization
from artifacts.references import PublicAutoencoder, PublicImages, PublicModel
from sfumato import latents, pretrained
from sfumato.config import NOT_HASHED, Latent, Machine, Network, Schedule
from sfumato.held_out import held_out
from sfumato.images import pairs_picture, save_png, to_unit
from tasks.inputs import TrainingSet
from tasks.public import RECONSTRUCTIONS, SHOWN
from tasks.runtime.artifact import RunContext, device_of, draft_of
from tasks.runtime.caching import stage


@stage
def load_denoiser(context: RunContext, public: TrainingSet, schedule: Schedule, network: Network) -> PublicModel:
    """Read the denoiser of `network.from`, with rows for the public classes."""
    params = network.model_dump(include={"weights"})
    with draft_of(PublicModel, "public model from elsewhere", context, parents=public.refs(), params=params) as draft:
        images, device = serialization.load_images(draft.open(public.images)), device_of(public.machine)
        folder = draft.open(public.autoencoder) if public.autoencoder else None
        codec = serialization.load_codec(folder, device, trained_on=public.digests)
        channels, height, width = images.pixels.shape[1:]
        shape, classes = codec.shape((channels, height, width)), len(images.classes)
        model = pretrained.load_denoiser(network, schedule, shape, classes, limit=codec.limit)
        serialization.save_denoiser(draft.folder, model, network, shape, classes)
        serialization.save_curve(draft.folder, [])
    return draft.ref


@stage
def load_autoencoder(
    context: RunContext,
    images: PublicImages,
    latent: Latent,
    own_scale: bool,
    seed: int,
    machine: Annotated[Machine, NOT_HASHED],
) -> PublicAutoencoder:
    """Read the autoencoder of `latent.from`, and measure it on public images; its latents are scaled by its folder, or by these."""
    params = latent.model_dump(include={"weights"})
    with draft_of(PublicAutoencoder, "autoencoder from elsewhere", context, parents=[images], params=params) as draft:
        parted = held_out(serialization.load_images(draft.open(images)), seed)
        learnt, withheld = (to_unit(part.pixels).to(device_of(machine)) for part in (parted.learnt, parted.withheld))
        codec = pretrained.load_latents(latent, learnt, own_scale=own_scale)
        serialization.save_autoencoder(draft.folder, codec, images.digest)
        pairs = latents.reconstructions(codec, withheld, SHOWN)
        save_png(draft.folder / RECONSTRUCTIONS, pairs_picture(pairs))
        draft.files = [draft.folder / RECONSTRUCTIONS]
        draft.metrics = {"reconstruction_error": latents.reconstruction_error(codec, withheld)}
        draft.metrics["spread"] = latents.pixel_spread(withheld)
        serialization.save_curve(draft.folder, [])
    return draft.ref
