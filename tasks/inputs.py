"""Inputs of stages: references to the artifacts of earlier stages, and the parts read from the store behind them."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from artifacts import serialization
from artifacts.references import (
    ClassCounts,
    ClassMoments,
    ClassVotes,
    EmbeddingSums,
    FeatureExtractor,
    MemberHeads,
    MemberModel,
    PaidJudge,
    PhaseOneModel,
    PublicAutoencoder,
    PublicBackbone,
    PublicClassifier,
    PublicClusters,
    PublicImages,
    PublicModel,
    PublicMoments,
    PublicStart,
    Ref,
    Samples,
    Trajectories,
    TunedModel,
    WarmModel,
)
from sfumato.class_shares import shares_of
from sfumato.config import LATER, NOT_HASHED, Generation, Machine, Section
from sfumato.methods.parts import Parts
from sfumato.methods.plan import Facts, Plan
from sfumato.settings import Settings
from sfumato.stored_parts import PartFolders, read_parts
from tasks.runtime.artifact import Draft, device_of
from tasks.runtime.narrowing import sections


class TrainingSet(Section):
    """Public images as the denoisers see them: their encoding and split, and the machine that holds them."""

    images: PublicImages
    autoencoder: PublicAutoencoder | None
    seed: int
    machine: Annotated[Machine, NOT_HASHED]
    whole: Annotated[PublicImages | None, LATER] = None
    """All public images, where `images` are a choice of them."""

    @property
    def every(self) -> PublicImages:
        """All public images, chosen or not."""
        return self.whole or self.images

    @property
    def digests(self) -> list[str]:
        """What the autoencoder may have learnt from: all public images, or the choice."""
        return [self.every.digest, self.images.digest]

    def refs(self) -> list[Ref]:
        """All that are there."""
        return [ref for ref in (self.images, self.autoencoder, self.whole) if ref]


class ClusterSearch(Section):
    """A search for public images of the clusters that private records vote for."""

    images: PublicImages
    clusters: PublicClusters
    votes: ClassVotes
    noise: float
    """Standard deviation of the noise on a vote."""
    threshold: float
    """Deviations that a winner has more than."""
    kinds: int
    """Classes of what is found."""
    candidates: int
    """Further images that may be drawn, at most."""


class FeatureSpaces(Section):
    """Models in whose features images are compared beside their pixels."""

    classifier: PublicClassifier | None = None
    """The CNN of public images; Inception without one."""
    autoencoder: PublicAutoencoder | None = None
    backbone: PublicBackbone | None = None

    def refs(self) -> list[Ref]:
        """All that are there."""
        return [ref for ref in (self.classifier, self.autoencoder, self.backbone) if ref]


class PublicParts(Section):
    """References to the artifacts of the public stages."""

    model: PublicModel
    autoencoder: PublicAutoencoder | None = None
    """The autoencoder, where the denoisers work on latents."""
    extractor: FeatureExtractor | None = None
    base: Trajectories | None = None
    images: PublicImages | None = None
    """Public images, where a drawing needs them beside the models."""
    moments: Annotated[PublicMoments | None, LATER] = None
    """Reference of the public images, where private classes are aligned with them."""
    backbone: Annotated[PublicBackbone | None, LATER] = None
    """Where private records are compared with drawn images in its features."""
    own: Annotated[PublicStart | None, LATER] = None
    """A network of the method's own, from which private training starts."""

    def refs(self) -> list[Ref]:
        """All that are there."""
        shown = (self.images, self.moments, self.backbone, self.own)
        every = (self.model, self.autoencoder, self.extractor, self.base, *shown)
        return [ref for ref in every if ref]


class RunDescription(Section):
    """Settings and plan of a run, which are stored beside the samples; never part of a cache key."""

    settings: dict[str, Any]
    """All settings but the place of the data and the seed."""
    plan: Plan


class Judging(Section):
    """References to a judge of drawn images, and to the public features that it sees."""

    backbone: PublicBackbone
    judge: PaidJudge

    def refs(self) -> list[Ref]:
        """Both."""
        return [self.backbone, self.judge]


class PrivateParts(Section):
    """References to the artifacts of the private stages before drawing."""

    votes: ClassVotes | None = None
    tuned: TunedModel | None = None
    members: tuple[MemberModel, ...] = ()
    heads: Annotated[MemberHeads | None, LATER] = None
    """All members, where they are heads on the public denoiser."""
    moments: Annotated[ClassMoments | None, LATER] = None
    """Noisy moments, where private classes are aligned with the public images."""
    matching: Annotated[EmbeddingSums | None, LATER] = None
    """Noisy sums of features, where drawn images are moved to the classes' mean embeddings."""
    counts: Annotated[ClassCounts | None, LATER] = None
    """Noisy class counts, where the shares of the classes follow them."""
    judge: Annotated[Judging | None, LATER] = None
    """The judge, where one labels, chooses or guides drawn images."""


class Inputs(Section):
    """Inputs of a stage that trains or draws: settings, public facts, and references to the artifacts of earlier stages."""

    settings: Settings
    facts: Facts
    public: PublicParts
    votes: ClassVotes | None = None
    moments: ClassMoments | None = None
    started: PhaseOneModel | None = None
    """The public denoiser after a first phase."""
    warm: Annotated[WarmModel | None, LATER] = None
    """The denoiser so far after a warm-up on central images."""
    matching: Annotated[EmbeddingSums | None, LATER] = None
    """Noisy sums of features that drawn images are moved to."""
    tuned: TunedModel | None = None
    average: Annotated[float | None, LATER] = None
    """Decay of the further average of `tuned` that stands in its place; None for that which the run draws from."""
    members: tuple[MemberModel, ...] = ()
    """INTERNAL, for a priced drawing alone."""
    heads: Annotated[MemberHeads | None, LATER] = None
    """All members, where they are heads on the public denoiser; INTERNAL too."""
    prototypes: Samples | None = None

    @property
    def behind(self) -> list[Ref]:
        """The members, which stand behind a price."""
        return [*self.members, *([self.heads] if self.heads else [])]

    def refs(self) -> list[Ref]:
        """All that are there, but for the members."""
        own = (self.votes, self.moments, self.started, self.warm, self.matching, self.tuned, self.prototypes)
        return [*self.public.refs(), *(ref for ref in own if ref)]


TuningInputs = Annotated[Inputs, sections("schedule", "network", "method", "fine_tuning")]
"""The inputs that private training reads."""
MethodInputs = Annotated[Inputs, sections("schedule", "network", "method", "seed")]
"""The inputs that the training of a method's own network reads."""
ModelInputs = Annotated[Inputs, sections("schedule", "network", "seed")]
"""The inputs that training the public denoiser further reads."""


class Wanted(Section):
    """The requested number of images, and the share of each class."""

    generation: Generation
    facts: Facts
    images: int
    counts: ClassCounts | None = None
    """Noisy class counts, where the shares follow them."""


def load_shares(
    draft: Draft[Any], generation: Generation, facts: Facts, counts: ClassCounts | None
) -> tuple[float, ...]:
    """The share of each class among the images; none where every class gets equally many."""
    noisy = serialization.load(draft.open(counts))[0]["counts"] if counts else None
    return shares_of(generation, facts.classes, noisy)


def load_parts(draft: Draft[Any], inputs: Inputs, machine: Machine) -> Parts:
    """Read everything that a method works with from the store.

    `BadInput` for an autoencoder that was trained on other images, or on images of another shape.
    """
    public = inputs.public

    def there(ref: Ref | None) -> Path | None:
        return draft.open(ref) if ref else None

    folders = PartFolders(
        public=draft.open(public.model),
        own=there(public.own),
        autoencoder=there(public.autoencoder),
        extractor=there(public.extractor),
        base=there(public.base),
        images=there(public.images),
        votes=there(inputs.votes),
        moments=there(inputs.moments),
        matching=there(inputs.matching),
        started=there(inputs.started),
        warm=there(inputs.warm),
        tuned=there(inputs.tuned),
        members=tuple(draft.open(member) for member in inputs.members),
        heads=there(inputs.heads),
        prototypes=there(inputs.prototypes),
    )
    serialization.refuse_other_images(folders.autoencoder, draft.store.manifest(public.model)["parents"])
    parts = read_parts(inputs.settings, inputs.facts, folders, device_of(machine))
    if inputs.average is None or folders.tuned is None or parts.tuned is None:
        return parts
    return replace(parts, tuned=serialization.with_average(folders.tuned, parts.tuned, inputs.average))
