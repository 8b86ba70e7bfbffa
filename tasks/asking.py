"""What a stage brings to the door: in which terms it asks, and the parts that it works with, read from the store."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from artifacts import contents
from artifacts.kinds import (
    CanaryImages,
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
from sfumato.config import LATER, Machine, Relation, Section
from sfumato.diffusion.schedule import make_schedule
from sfumato.images import to_unit
from sfumato.methods.parts import Parts, add_votes
from sfumato.methods.plan import Facts, Plan
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.events import AnyEvent
from sfumato.privacy.ledger import Ledger
from sfumato.settings import Settings
from tasks.making import Draft, RunContext, device_of


class Terms(Section):
    """In which terms a stage pays, and what for."""

    relation: Relation
    delta: float
    claim: dict | None = None
    comparison: bool = False
    """Serves an INTERNAL comparison: a look, which costs nothing and never leaves."""
    reason: str = ""
    """Why so large an epsilon is wanted, where it is; written into the ledger. Not part of a cache key."""
    following: tuple[AnyEvent, ...] = ()
    """What later stages of the run will pay; the budget must bear it too. Not part of a cache key."""


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


class Told(Section):
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


class Trained(Section):
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
    noisy = contents.load(draft.open(counts))[0]["counts"] if counts else None
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
    codec = contents.load_codec(folder, device, trained_on=draft.store.manifest(public.model)["parents"])
    maps = contents.load_maps(draft.open(moments)) if moments else None
    shown = contents.load_images(draft.open(public.images)) if public.images else None
    parts = Parts(
        schedule=make_schedule(settings.schedule, codec.limit),
        shape=codec.shape(facts.shape),
        facts=facts,
        codec=codec,
        alignment=maps,
        public=contents.load_denoiser(draft.open(public.model), device),
        tuned=contents.load_denoiser(draft.open(tuned), device) if tuned else None,
        started=contents.load_denoiser(draft.open(started), device) if started else None,
        members=tuple(contents.load_denoiser(draft.open(member), device) for member in members),
        prototypes=contents.load_encoded(draft.open(prototypes), codec, device, maps) if prototypes else None,
        encoder=contents.load_encoder(draft.open(public.extractor), device) if public.extractor else None,
        base=contents.load_base(draft.open(public.base), device) if public.base else None,
        images=codec.encode(to_unit(shown.pixels).to(device)) if shown else None,
    )
    if votes is None:
        return parts
    return add_votes(
        parts, contents.load(draft.open(votes))[0]["votes"], distinct=getattr(settings.method, "distinct", False)
    )


def with_canaries(asked: Access, draft: Draft, canaries: CanaryImages | None) -> Access:
    """The access with the canaries that join the training images, in an audit."""
    return replace(asked, canaries=contents.load_canaries(draft.open(canaries))[1]) if canaries else asked


def access(
    ledger: Ledger,
    private: PrivateSet,
    terms: Terms,
    stage_name: str,
    purpose: str,
    parents: Sequence[Ref],
    context: RunContext,
    code: str,
) -> Access:
    """What a stage asks of the door."""
    return Access(
        ledger=ledger,
        private=private,
        run=context.run,
        stage=stage_name,
        purpose=purpose,
        code_version=code,
        relation=terms.relation,
        delta=terms.delta,
        parents=tuple(ref.digest for ref in parents),
        claim=terms.claim,
        reason=terms.reason,
        comparison=terms.comparison,
        following=terms.following,
    )
