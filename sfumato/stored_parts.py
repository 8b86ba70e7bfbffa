"""Reads the parts that a method works with from their folders (`sfumato.formats`).

One function reads both the store of a run and a released model. Not covered: whether a folder's content is genuine, which the caller
has checked.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from sfumato import formats
from sfumato.config import Matching
from sfumato.diffusion.schedule import make_schedule
from sfumato.fourier import class_means
from sfumato.latents import latents_of
from sfumato.methods import METHODS
from sfumato.methods.parts import Parts, Target, add_votes
from sfumato.methods.plan import Facts
from sfumato.settings import Settings


@dataclass(frozen=True)
class PartFolders:
    """The folder of each part; None, or empty, where the method does without."""

    public: Path
    """The denoiser of the public images."""
    own: Path | None = None
    """The method's own network, after public training."""
    autoencoder: Path | None = None
    extractor: Path | None = None
    base: Path | None = None
    images: Path | None = None
    """Public images that the drawing reads itself."""
    votes: Path | None = None
    moments: Path | None = None
    matching: Path | None = None
    """Noisy sums of features that drawn images are moved to."""
    started: Path | None = None
    warm: Path | None = None
    tuned: Path | None = None
    members: tuple[Path, ...] = ()
    heads: Path | None = None
    prototypes: Path | None = None


def _target(folder: Path, how: Matching) -> Target:
    """What drawn images are moved to, from noisy sums and the frequencies beside them."""
    tensors, facts = formats.load(folder)
    means = class_means(tensors["sums"], how.count_share, noise_multiplier=facts["noise_multiplier"])
    return Target(tensors["frequencies"], means, how)


def read_parts(settings: Settings, facts: Facts, folders: PartFolders, device: torch.device) -> Parts:
    """Read all parts that a method works with; `BadInput` for an autoencoder of images of another shape."""

    def denoiser(folder: Path | None) -> torch.nn.Module | None:
        return formats.load_denoiser(folder, device) if folder else None

    codec = formats.load_codec(folders.autoencoder, device)
    maps = formats.load_maps(folders.moments) if folders.moments else None
    shown = formats.load_images(folders.images) if folders.images else None
    drawn = folders.prototypes
    parts = Parts(
        schedule=make_schedule(settings.schedule, codec.limit),
        shape=codec.shape(facts.shape),
        facts=facts,
        codec=codec,
        alignment=maps,
        target=_target(folders.matching, settings.matching) if folders.matching else None,
        public=formats.load_denoiser(folders.public, device),
        own=denoiser(folders.own),
        tuned=denoiser(folders.tuned),
        started=denoiser(folders.started),
        warm=denoiser(folders.warm),
        members=tuple(formats.load_denoiser(member, device) for member in folders.members),
        heads=formats.load_heads(folders.heads, device) if folders.heads else None,
        prototypes=formats.load_prototypes(drawn, codec, device, maps) if drawn else None,
        encoder=formats.load_encoder(folders.extractor, device) if folders.extractor else None,
        base=formats.load_base(folders.base, device) if folders.base else None,
        images=latents_of(codec, shown.pixels, device) if shown else None,
        image_classes=torch.as_tensor(shown.labels).to(device) if shown else None,
    )
    if folders.votes is None:
        return parts
    votes = formats.load(folders.votes)[0]["votes"]
    distinct = METHODS[settings.method.name].distinct
    return add_votes(parts, votes, distinct=distinct(settings) if distinct else False)
