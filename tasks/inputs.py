"""What a stage works with: references to what earlier stages made, and the parts read from the store behind them."""

from collections.abc import Sequence
from pathlib import Path
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
from sfumato.methods.parts import Parts
from sfumato.methods.plan import Facts, Plan
from sfumato.settings import Settings
from sfumato.stored_parts import PartFolders, read_parts
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

    def there(ref: Ref | None) -> Path | None:
        return draft.open(ref) if ref else None

    folders = PartFolders(
        public=draft.open(public.model),
        autoencoder=there(public.autoencoder),
        extractor=there(public.extractor),
        base=there(public.base),
        images=there(public.images),
        votes=there(votes),
        moments=there(moments),
        started=there(started),
        tuned=there(tuned),
        members=tuple(draft.open(member) for member in members),
        prototypes=there(prototypes),
    )
    serialization.refuse_other_images(folders.autoencoder, draft.store.manifest(public.model)["parents"])
    return read_parts(settings, facts, folders, device_of(machine))
