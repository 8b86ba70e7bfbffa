"""What a stage works with: references to what earlier stages made, and the parts read from the store behind them."""

from collections.abc import Sequence
from typing import Annotated, Any

from artifacts import serialization
from artifacts.references import (
    ClassCounts,
    ClassMoments,
    ClassVotes,
    FeatureExtractor,
    MemberModel,
    PaidJudge,
    PhaseOneModel,
    PublicAutoencoder,
    PublicBackbone,
    PublicImages,
    PublicModel,
    PublicMoments,
    Ref,
    Samples,
    Trajectories,
    TunedModel,
)
from sfumato.class_shares import shares_of
from sfumato.config import LATER, Machine, Section
from sfumato.diffusion.schedule import make_schedule
from sfumato.images import to_unit
from sfumato.methods.parts import Parts, add_votes
from sfumato.methods.plan import Facts, Plan
from sfumato.settings import Settings
from tasks.runtime.artifact import Draft, device_of


class PublicParts(Section):
    """References to what the public stages made."""

    model: PublicModel
    autoencoder: PublicAutoencoder | None = None
    """Where the denoisers work on latents."""
    extractor: FeatureExtractor | None = None
    base: Trajectories | None = None
    images: PublicImages | None = None
    """Where a drawing needs them beside the models."""
    moments: Annotated[PublicMoments | None, LATER] = None
    """Where private classes are aligned with them."""

    def refs(self) -> list[Ref]:
        """All that are there."""
        every = (self.model, self.autoencoder, self.extractor, self.base, self.images, self.moments)
        return [ref for ref in every if ref]


class RunDescription(Section):
    """Settings and plan of a run, which the samples keep beside them; never part of a cache key."""

    settings: dict[str, Any]
    """Without where the data lies, and without the seed."""
    plan: Plan


class Judging(Section):
    """References to a judge of drawn images, and to the public features that it sees."""

    backbone: PublicBackbone
    judge: PaidJudge

    def refs(self) -> list[Ref]:
        """Both."""
        return [self.backbone, self.judge]


class PrivateParts(Section):
    """References to what the private stages made before anything is drawn."""

    votes: ClassVotes | None = None
    tuned: TunedModel | None = None
    members: tuple[MemberModel, ...] = ()
    moments: Annotated[ClassMoments | None, LATER] = None
    """Where private classes are aligned with the public images."""
    counts: Annotated[ClassCounts | None, LATER] = None
    """Where the classes of the images follow what was counted."""
    judge: Annotated[Judging | None, LATER] = None
    """Where one labels, chooses or guides what is drawn."""


def load_shares(draft: Draft, settings: Settings, facts: Facts, counts: ClassCounts | None) -> tuple[float, ...]:
    """The share of each class among the images; none where there are as many of each."""
    noisy = serialization.load(draft.open(counts))[0]["counts"] if counts else None
    return shares_of(settings.generation, facts.classes, noisy)


def load_parts(
    draft: Draft,
    settings: Settings,
    facts: Facts,
    public: PublicParts,
    machine: Machine,
    votes: ClassVotes | None = None,
    tuned: TunedModel | None = None,
    started: PhaseOneModel | None = None,
    members: Sequence[MemberModel] = (),
    prototypes: Samples | None = None,
    moments: ClassMoments | None = None,
) -> Parts:
    """Everything that a method works with, read from the store.

    `BadInput` for an autoencoder that was trained on other images, or on images of another shape.
    """
    device = device_of(machine)
    folder = draft.open(public.autoencoder) if public.autoencoder else None
    codec = serialization.load_codec(folder, device, trained_on=draft.store.manifest(public.model)["parents"])
    maps = serialization.load_maps(draft.open(moments)) if moments else None
    shown = serialization.load_images(draft.open(public.images)) if public.images else None
    parts = Parts(
        schedule=make_schedule(settings.schedule, codec.limit),
        shape=codec.shape(facts.shape),
        facts=facts,
        codec=codec,
        alignment=maps,
        public=serialization.load_denoiser(draft.open(public.model), device),
        tuned=serialization.load_denoiser(draft.open(tuned), device) if tuned else None,
        started=serialization.load_denoiser(draft.open(started), device) if started else None,
        members=tuple(serialization.load_denoiser(draft.open(member), device) for member in members),
        prototypes=serialization.load_encoded(draft.open(prototypes), codec, device, maps) if prototypes else None,
        encoder=serialization.load_encoder(draft.open(public.extractor), device) if public.extractor else None,
        base=serialization.load_base(draft.open(public.base), device) if public.base else None,
        images=codec.encode(to_unit(shown.pixels).to(device)) if shown else None,
    )
    if votes is None:
        return parts
    return add_votes(
        parts, serialization.load(draft.open(votes))[0]["votes"], distinct=getattr(settings.method, "distinct", False)
    )
