"""Stages that pay for private data: each opens the door through one mechanism, once, with the ledger's leave."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from artifacts import contents
from artifacts.kinds import (
    CanaryImages,
    ClassVotes,
    FeatureExtractor,
    MemberModel,
    NoisedImages,
    PhaseOneModel,
    PublicAutoencoder,
    PublicImages,
    PublicModel,
    Ref,
    Samples,
    Trajectories,
    TunedModel,
    WatchedSteps,
)
from sfumato.config import Machine, Relation, Section, Training
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import Refused
from sfumato.images import to_unit
from sfumato.methods import METHODS
from sfumato.methods.parts import Parts, add_votes, begun, untuned
from sfumato.methods.plan import STAGE_PHASE_ONE, STAGE_TRAINING, STAGE_TUNING, Facts, Members, PhaseOne
from sfumato.networks.checkpointing import checkpoint_blocks
from sfumato.privacy import mechanisms, shards
from sfumato.privacy.door import Access, PrivateSet, check_in
from sfumato.privacy.events import AnyEvent, Gaussian, NoisedRecords, SubsampledGaussian, Uncertified
from sfumato.privacy.ledger import Ledger
from sfumato.settings import Settings
from sfumato.training import denoiser_training, train_on_noised, unlabelled_losses
from tasks.caching import code_version, stage
from tasks.keeping import keeping
from tasks.making import Draft, RunContext, device_of, making
from tasks.progress import CONSOLE
from tasks.where import where


class Terms(Section):
    """In which terms a stage pays, and what for."""

    relation: Relation
    delta: float
    claim: dict | None = None
    comparison: bool = False
    """Serves an INTERNAL comparison: a look, which costs nothing and never leaves."""
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

    def refs(self) -> list[Ref]:
        """All that are there."""
        return [ref for ref in (self.model, self.autoencoder, self.extractor, self.base, self.images) if ref]


class Trained(Section):
    """References to what the private stages made before anything is drawn."""

    votes: ClassVotes | None = None
    tuned: TunedModel | None = None
    members: tuple[MemberModel, ...] = ()


def check_private(
    private: PrivateSet,
    terms: Terms,
    context: RunContext,
    images: PublicImages | None = None,
    new_version: bool = False,
) -> PrivateSet:
    """Decode the whole private set, compare it with what the ledger knows under its name, and refuse what cannot work.

    Public `images` among which there are private ones are refused too; an audit, which trains on no others than its run
    did, gives none. Returns the set with the version that the ledger counts.
    """
    purpose = "check that every image can be read" + (" and that none is among the public ones" if images else "")
    public = contents.load_images(where().store().folder(images)) if images else None
    with where().ledger() as ledger:
        asked = access(ledger, private, terms, "check", purpose, [images] if images else [], context, "0")
        check_in(asked, public, new_version=new_version)
        return private.model_copy(update={"version": ledger.version(private.name)})


def check_members(private: PrivateSet, terms: Terms, members: Members, context: RunContext) -> None:
    """Refuse shards that lack a class, before anything is trained."""
    with where().ledger() as ledger:
        asked = access(ledger, private, terms, "check", "check that every shard holds every class", [], context, "0")
        shards.check_shards(asked, members.count, members.key)


def over_budget(private: PrivateSet, events: Sequence[AnyEvent], terms: Terms) -> str:
    """Why the budget does not bear these events, or nothing."""
    with where().ledger() as ledger:
        try:
            ledger.check(private.name, events, terms.relation, terms.delta)
        except Refused as refusal:
            return str(refusal)
    return ""


@stage
def take_votes(
    settings: Settings,
    facts: Facts,
    private: PrivateSet,
    terms: Terms,
    event: Gaussian,
    public: PublicParts,
    machine: Machine,
    context: RunContext,
    canaries: CanaryImages | None = None,
) -> ClassVotes:
    """Let each private record vote for the public class that it resembles, and keep the noisy histogram."""
    parents = [*public.refs(), *([canaries] if canaries else [])]
    with making(ClassVotes, "class votes", context, parents=parents, params=event.model_dump()) as draft:
        parts = load_parts(draft, settings, facts, public, machine)
        code = code_version(take_votes.fn)
        with where().ledger() as ledger:
            asked = access(ledger, private, terms, "votes", "class votes", parents, context, code)
            paid = mechanisms.noisy_votes(
                with_canaries(asked, draft, canaries),
                event,
                METHODS[settings.method.name].ballot(parts),
                classes=len(facts.classes),
                options=facts.public_classes,
                device=device_of(machine),
            )
        contents.save(draft.folder, {"votes": paid.result}, {"classes": facts.classes})
        draft.entries = paid.entries
    return draft.ref


@stage
def noise_once(
    private: PrivateSet,
    terms: Terms,
    event: NoisedRecords,
    autoencoder: PublicAutoencoder | None,
    machine: Machine,
    context: RunContext,
    canaries: CanaryImages | None = None,
) -> NoisedImages:
    """Noise every private image once; nothing but the noised copies goes on from here."""
    parents = [ref for ref in (autoencoder, canaries) if ref]
    with making(NoisedImages, "noised images", context, parents=parents, params=event.model_dump()) as draft:
        code = code_version(noise_once.fn)
        folder = draft.open(autoencoder) if autoencoder else None
        own = draft.store.manifest(autoencoder)["parents"] if autoencoder else ()
        codec = contents.load_codec(folder, device_of(machine), trained_on=own)
        with where().ledger() as ledger:
            asked = access(ledger, private, terms, STAGE_PHASE_ONE, "noised images", parents, context, code)
            paid = mechanisms.noised_records(
                with_canaries(asked, draft, canaries), event, codec=codec, device=device_of(machine)
            )
        contents.save(draft.folder, {"noised": paid.result}, {})
        draft.entries = paid.entries
    return draft.ref


@stage
def train_phase_one(
    settings: Settings,
    facts: Facts,
    private: PrivateSet,
    terms: Terms,
    event: NoisedRecords | Uncertified,
    phase: PhaseOne,
    public: PublicParts,
    noised: NoisedImages | None,
    machine: Machine,
    context: RunContext,
    canaries: CanaryImages | None = None,
) -> PhaseOneModel:
    """Train the public denoiser on the large times: on the noised copies, which costs nothing more, or on the images themselves."""
    parents = [*public.refs(), *(ref for ref in (noised, canaries) if ref)]
    with making(PhaseOneModel, "Phase I", context, parents=parents, params=phase.training.model_dump()) as draft:
        parts, device = load_parts(draft, settings, facts, public, machine), device_of(machine)
        model, schedule = parts.public, parts.schedule
        if noised:
            images = contents.load(draft.open(noised))[0]["noised"].to(device)
            choice = {"boundary": phase.boundary, "seed": settings.seed, "progress": draft.show}
            trained, _ = train_on_noised(model, schedule, images, phase.training, **choice)
        else:
            code = code_version(train_phase_one.fn)
            with where().ledger() as ledger:
                asked = access(ledger, private, terms, STAGE_PHASE_ONE, "Phase I", parents, context, code)
                paid = mechanisms.unprotected(
                    with_canaries(asked, draft, canaries),
                    event,
                    model,
                    unlabelled_losses(schedule, phase.boundary),
                    phase.training,
                    sample_rate=phase.training.batch / facts.records,
                    device=device,
                    codec=parts.codec,
                    progress=draft.show,
                )
            trained, draft.entries = paid.result, paid.entries
        contents.save_denoiser(draft.folder, trained, settings.network, parts.shape, facts.public_classes)
    return draft.ref


@stage
def fine_tune(
    settings: Settings,
    facts: Facts,
    private: PrivateSet,
    terms: Terms,
    event: SubsampledGaussian,
    public: PublicParts,
    votes: ClassVotes | None,
    machine: Machine,
    context: RunContext,
    canaries: CanaryImages | None = None,
    started: PhaseOneModel | None = None,
) -> TunedModel:
    """Fine-tune the denoiser on the private images by DP-SGD."""
    parents = [*public.refs(), *(ref for ref in (votes, canaries, started) if ref)]
    title = "DP fine-tuning" + (" (canaries)" if canaries else " (baseline)" if terms.comparison else "")
    params = settings.fine_tuning.model_dump()
    # No audit finds another one's canaries, so what it kept would never be found again.
    kept = contextlib.nullcontext() if canaries else keeping(context)
    with kept as keeper, making(TunedModel, title, context, parents=parents, params=params) as draft:
        parts = load_parts(draft, settings, facts, public, machine, votes, started=started)
        code, method = code_version(fine_tune.fn), METHODS[settings.method.name]
        model, built = begun(method, settings, parts, facts)
        with where().ledger() as ledger:
            asked = access(ledger, private, terms, STAGE_TUNING, title, parents, context, code)
            paid = mechanisms.fine_tuned(
                with_canaries(asked, draft, canaries),
                event,
                checkpoint_blocks(model, machine.checkpointing),
                method.corrupt(settings, parts),
                settings.fine_tuning,
                records=facts.records,
                device=device_of(machine),
                physical_batch=machine.physical_batch,
                codec=parts.codec,
                progress=draft.show,
                keeper=keeper,
                note=CONSOLE.print,
                watch=machine.watch,
            )
        contents.save_denoiser(draft.folder, paid.result, built.network, built.shape, built.classes)
        draft.entries = paid.entries
    if paid.watched:
        keep_watched(paid.watched, draft.ref, title, context)
    return draft.ref


@stage
def train_plainly(
    settings: Settings,
    facts: Facts,
    private: PrivateSet,
    terms: Terms,
    event: Uncertified,
    training: Training,
    public: PublicParts,
    machine: Machine,
    context: RunContext,
) -> TunedModel:
    """Train on the private images without clipping or noise, which has no certificate and stays INTERNAL."""
    parents = public.refs()
    with making(TunedModel, "training", context, parents=parents, params=training.model_dump()) as draft:
        parts, device = load_parts(draft, settings, facts, public, machine), device_of(machine)
        method = METHODS[settings.method.name]
        model, built = begun(method, settings, parts, facts)
        with where().ledger() as ledger:
            asked = access(
                ledger, private, terms, STAGE_TRAINING, "training", parents, context, code_version(train_plainly.fn)
            )
            paid = mechanisms.unprotected(
                asked,
                event,
                model.to(device),
                method.loss(settings, parts),
                training,
                sample_rate=training.batch / facts.records,
                device=device,
                codec=parts.codec,
                progress=draft.show,
            )
        contents.save_denoiser(draft.folder, paid.result, built.network, built.shape, built.classes)
        draft.entries = paid.entries
    return draft.ref


@stage
def train_member(
    settings: Settings,
    facts: Facts,
    private: PrivateSet,
    terms: Terms,
    members: Members,
    shard: int,
    public: PublicParts,
    machine: Machine,
    context: RunContext,
) -> MemberModel:
    """Train the public denoiser plainly on one shard of the private images; INTERNAL, for a priced drawing alone."""
    parents, title = public.refs(), f"member {shard + 1} of {members.count} (INTERNAL)"
    with making(MemberModel, title, context, parents=parents, params=members.training.model_dump()) as draft:
        parts, device = load_parts(draft, settings, facts, public, machine), device_of(machine)
        with where().ledger() as ledger:
            asked = access(
                ledger, private, terms, STAGE_TRAINING, title, parents, context, code_version(train_member.fn)
            )
            trained, draft.entries = shards.shard_trained(
                asked,
                denoiser_training(
                    untuned(parts, facts), parts.schedule, members.training, seed=settings.seed, progress=draft.show
                ),
                shard=shard,
                shards=members.count,
                key=members.key,
                device=device,
                codec=parts.codec,
            )
        contents.save_denoiser(draft.folder, trained, settings.network, parts.shape, len(facts.classes))
    return draft.ref


def keep_watched(watched: mechanisms.Watched, model: TunedModel, title: str, context: RunContext) -> None:
    """Put what training saw without noise beside the model, INTERNAL, and say where."""
    with making(WatchedSteps, f"{title}, watched (INTERNAL)", context, parents=[model]) as draft:
        rows = [row.model_dump(mode="json") for row in watched.steps]
        contents.save(draft.folder, {}, {"steps": rows})
        draft.entries = watched.entries
        draft.series = {name: [row[name] or 0.0 for row in rows] for name in WATCHED}
    CONSOLE.print(
        f"{title}: losses and norms (INTERNAL) are in {draft.open(draft.ref)} and in MLflow's internal experiment"
    )


WATCHED = ("loss", "median_norm", "clipped", "not_finite")
"""What is shown of watched steps as curves."""


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
) -> Parts:
    """Everything that a method works with, read from the store.

    `BadInput` for an autoencoder that was trained on other images, or on images of another shape.
    """
    device = device_of(machine)
    folder = draft.open(public.autoencoder) if public.autoencoder else None
    codec = contents.load_codec(folder, device, trained_on=draft.store.manifest(public.model)["parents"])
    shown = contents.load_images(draft.open(public.images)) if public.images else None
    parts = Parts(
        schedule=make_schedule(settings.schedule, codec.limit),
        shape=codec.shape(facts.shape),
        facts=facts,
        codec=codec,
        public=contents.load_denoiser(draft.open(public.model), device),
        tuned=contents.load_denoiser(draft.open(tuned), device) if tuned else None,
        started=contents.load_denoiser(draft.open(started), device) if started else None,
        members=tuple(contents.load_denoiser(draft.open(member), device) for member in members),
        prototypes=contents.load_encoded(draft.open(prototypes), codec, device) if prototypes else None,
        encoder=contents.load_encoder(draft.open(public.extractor), device) if public.extractor else None,
        base=contents.load_base(draft.open(public.base), device) if public.base else None,
        images=codec.encode(to_unit(shown.pixels).to(device)) if shown else None,
    )
    if votes is None:
        return parts
    return add_votes(parts, contents.load(draft.open(votes))[0]["votes"], distinct=settings.method.distinct)


def with_canaries(asked: Access, draft: Draft, canaries: CanaryImages | None) -> Access:
    """The access with the canaries that join the training images, in an audit."""
    return replace(asked, canaries=contents.load_canaries(draft.open(canaries))[1]) if canaries else asked


def access(
    ledger: Ledger,
    private: PrivateSet,
    terms: Terms,
    stage_name: str,
    purpose: str,
    parents: list[Ref],
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
        comparison=terms.comparison,
        following=terms.following,
    )
