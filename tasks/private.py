"""Stages that pay for private data: each opens the door through one mechanism, once, with the ledger's leave."""

import contextlib
from collections.abc import Sequence
from typing import Any

from artifacts import serialization
from artifacts.references import (
    CanaryImages,
    ClassCounts,
    ClassMoments,
    ClassVotes,
    MemberModel,
    NoisedImages,
    PaidJudge,
    PhaseOneModel,
    PublicAutoencoder,
    PublicBackbone,
    PublicMoments,
    TunedModel,
    WatchedSteps,
)
from sfumato.alignment import fitted
from sfumato.config import Judge, Machine, Section, Training
from sfumato.diffusion.objective import Corrupt
from sfumato.latents import Codec
from sfumato.methods import METHODS
from sfumato.methods.parts import Parts, begun, untuned
from sfumato.methods.plan import (
    STAGE_COUNTS,
    STAGE_JUDGE,
    STAGE_MOMENTS,
    STAGE_PHASE_ONE,
    STAGE_TRAINING,
    STAGE_TUNING,
    Blueprint,
    Facts,
    Members,
    PhaseOne,
)
from sfumato.networks.checkpointing import checkpoint_blocks
from sfumato.privacy import mechanisms, shards
from sfumato.privacy.accounting.events import (
    DiscreteHistogram,
    Gaussian,
    NoisedRecords,
    SubsampledGaussian,
    Uncertified,
)
from sfumato.privacy.door import PrivateSet
from sfumato.progress import silent
from sfumato.settings import Settings
from sfumato.training import denoiser_training, train_on_noised, unlabelled_losses
from tasks.inputs import PublicParts, load_parts
from tasks.runtime.artifact import Draft, RunContext, device_of, making
from tasks.runtime.caching import code_version, stage
from tasks.runtime.checkpoints import keeping
from tasks.runtime.distributed import gathering, refuse_company, team
from tasks.runtime.environment import where
from tasks.runtime.progress import CONSOLE
from tasks.terms import Terms, access, with_canaries


@stage
def count_classes(
    private: PrivateSet, terms: Terms, event: DiscreteHistogram, classes: tuple[str, ...], context: RunContext
) -> ClassCounts:
    """Count the private records of each class with noise, which may be published."""
    with making(ClassCounts, "class counts", context, params=event.model_dump()) as draft:
        code = code_version(count_classes.fn)
        with where().ledger() as ledger:
            asked = access(ledger, private, terms, STAGE_COUNTS, "class counts", [], context, code)
            paid = mechanisms.noisy_counts(asked, event, classes=len(classes))
        serialization.save(draft.folder, {"counts": paid.result}, {"classes": classes})
        draft.stands_on(paid)
    return draft.ref


@stage
def train_judge(
    backbone: PublicBackbone,
    private: PrivateSet,
    terms: Terms,
    event: Gaussian,
    settings: Judge,
    facts: Facts,
    machine: Machine,
    context: RunContext,
) -> PaidJudge:
    """Train a linear head that tells the private classes apart, with noise, on features of a backbone of public images."""
    with making(PaidJudge, "paid judge", context, parents=[backbone], params=event.model_dump()) as draft:
        code, device = code_version(train_judge.fn), device_of(machine)
        public = serialization.load_backbone(draft.open(backbone), device)
        with where().ledger() as ledger:
            asked = access(ledger, private, terms, STAGE_JUDGE, "paid judge", [backbone], context, code)
            paid = mechanisms.noisy_head(
                asked,
                event,
                public.whitening_reader(settings.directions),
                settings,
                classes=len(facts.classes),
                records=facts.records,
                device=device,
            )
        serialization.save_judge(draft.folder, paid.result, settings.scale, facts.classes)
        draft.stands_on(paid)
    return draft.ref


@stage
def take_moments(
    private: PrivateSet,
    terms: Terms,
    events: tuple[DiscreteHistogram, Gaussian, Gaussian],
    classes: tuple[str, ...],
    reference: PublicMoments,
    autoencoder: PublicAutoencoder | None,
    machine: Machine,
    context: RunContext,
    canaries: CanaryImages | None = None,
) -> ClassMoments:
    """Take noisy moments of each private class, and work out the maps between it and the public images."""
    parents = [ref for ref in (reference, autoencoder, canaries) if ref]
    counts, means, covariances = (event.noise_multiplier for event in (events[0], events[1], events[2]))
    noise = {"counts": counts, "means": means, "covariances": covariances}
    with making(ClassMoments, "class moments", context, parents=parents, params=noise) as draft:
        code, device = code_version(take_moments.fn), device_of(machine)
        public, codec = serialization.load_reference(draft.open(reference)), frozen_codec(draft, autoencoder, machine)
        with where().ledger() as ledger:
            asked = access(ledger, private, terms, STAGE_MOMENTS, "class moments", parents, context, code)
            paid = mechanisms.noisy_moments(
                with_canaries(asked, draft, canaries),
                events,
                public,
                classes=len(classes),
                codec=codec,
                device=device,
                progress=draft.show,
            )
        maps = fitted(paid.result, public)
        serialization.save_maps(draft.folder, paid.result, maps, classes)
        draft.metrics = {"classes": len(classes), "shared_covariances": len(maps.shared)}
        if maps.shared:
            CONSOLE.print(told_of_shared([classes[label] for label in maps.shared]))
        draft.stands_on(paid)
    return draft.ref


def told_of_shared(names: Sequence[str]) -> str:
    """Which classes have no covariance of their own; a noisy result, which may be told."""
    return (
        f"class moments: too few records, or too much noise, for a covariance of {', '.join(names[:MOST_NAMED])}"
        + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
        + ": what all classes have in common stands in"
    )


MOST_NAMED = 12
"""Classes that a line on the screen names."""


@stage
def take_votes(
    settings: Settings,
    facts: Facts,
    private: PrivateSet,
    terms: Terms,
    event: DiscreteHistogram,
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
        serialization.save(draft.folder, {"votes": paid.result}, {"classes": facts.classes})
        draft.stands_on(paid)
    return draft.ref


@stage
def noise_once(
    private: PrivateSet,
    terms: Terms,
    event: NoisedRecords,
    records: int,
    autoencoder: PublicAutoencoder | None,
    machine: Machine,
    context: RunContext,
    canaries: CanaryImages | None = None,
    moments: ClassMoments | None = None,
) -> NoisedImages:
    """Noise every private image once; nothing but the noised copies goes on from here."""
    parents = [ref for ref in (autoencoder, canaries, moments) if ref]
    with making(NoisedImages, "noised images", context, parents=parents, params=event.model_dump()) as draft:
        code = code_version(noise_once.fn)
        codec = frozen_codec(draft, autoencoder, machine)
        maps = serialization.load_maps(draft.open(moments)) if moments else None
        with where().ledger() as ledger:
            asked = access(ledger, private, terms, STAGE_PHASE_ONE, "noised images", parents, context, code)
            paid = mechanisms.noised_records(
                with_canaries(asked, draft, canaries),
                event,
                records=records,
                codec=codec,
                maps=maps,
                device=device_of(machine),
            )
        serialization.save(draft.folder, {"noised": paid.result}, {})
        draft.stands_on(paid)
    return draft.ref


def frozen_codec(draft: Draft, autoencoder: PublicAutoencoder | None, machine: Machine) -> Codec:
    """What turns images into what the denoisers work on, as its own run trained it."""
    folder = draft.open(autoencoder) if autoencoder else None
    own = draft.store.manifest(autoencoder)["parents"] if autoencoder else ()
    return serialization.load_codec(folder, device_of(machine), trained_on=own)


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
    moments: ClassMoments | None = None,
) -> PhaseOneModel:
    """Train the public denoiser on the large times: on the noised copies, which costs nothing more, or on the images themselves."""
    parents = [*public.refs(), *(ref for ref in (noised, canaries, moments) if ref)]
    shown: dict[str, Any] = {"params": phase.training.model_dump(), "images": phase.training.batch}
    with making(PhaseOneModel, "Phase I", context, parents=parents, **shown) as draft:
        parts, device = load_parts(draft, settings, facts, public, machine, moments=moments), device_of(machine)
        model, schedule = parts.public, parts.schedule
        if noised:
            images = serialization.load(draft.open(noised))[0]["noised"].to(device)
            choice: dict[str, Any] = {"boundary": phase.boundary, "seed": settings.seed, "progress": draft.show}
            trained, _ = train_on_noised(model, schedule, images, phase.training, **choice)
        elif isinstance(event, NoisedRecords):
            raise ValueError("Phase I was planned for images that are noised once: give these")
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
                    maps=parts.alignment,
                    progress=draft.show,
                )
            trained = paid.result
            draft.stands_on(paid)
        serialization.save_denoiser(draft.folder, trained, settings.network, parts.shape, facts.public_classes)
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
    moments: ClassMoments | None = None,
) -> TunedModel:
    """Fine-tune the denoiser on the private images by DP-SGD."""
    parents = [*public.refs(), *(ref for ref in (votes, canaries, started, moments) if ref)]
    title = "DP fine-tuning" + (" (canaries)" if canaries else " (baseline)" if terms.comparison else "")
    shown: dict[str, Any] = {"params": settings.fine_tuning.model_dump(), "images": event.sample_rate * facts.records}
    # No audit finds another one's canaries, so what it kept would never be found again.
    kept = contextlib.nullcontext() if canaries else keeping(context)
    with kept as keeper, making(TunedModel, title, context, parents=parents, **shown) as draft:
        code = code_version(fine_tune.fn)
        job = Tuning(
            settings=settings, facts=facts, private=private, terms=terms, event=event, public=public, votes=votes,
            machine=machine, context=context, canaries=canaries, started=started, title=title, code=code,
            moments=moments,
        )  # fmt: skip
        model, built, corrupt, parts = load_tuning(job, draft)
        if machine.watch:
            refuse_company("machine.watch")
        with where().ledger() as ledger:
            asked = access(ledger, private, terms, STAGE_TUNING, title, parents, context, code)
            paid = mechanisms.fine_tuned(
                with_canaries(asked, draft, canaries),
                event,
                model,
                corrupt,
                settings.fine_tuning,
                records=facts.records,
                device=device_of(machine),
                physical_batch=machine.physical_batch,
                codec=parts.codec,
                maps=parts.alignment,
                progress=draft.show,
                keeper=keeper,
                note=CONSOLE.print,
                watch=machine.watch,
                gather=gathering(job),
            )
        serialization.save_denoiser(draft.folder, paid.result, built.network, built.shape, built.classes)
        draft.stands_on(paid)
    if paid.watched:
        keep_watched(paid.watched, draft.ref, title, context)
    return draft.ref


class Tuning(Section):
    """What DP fine-tuning is given, as another process that helps must know it."""

    settings: Settings
    facts: Facts
    private: PrivateSet
    terms: Terms
    event: SubsampledGaussian
    public: PublicParts
    votes: ClassVotes | None
    machine: Machine
    context: RunContext
    canaries: CanaryImages | None
    started: PhaseOneModel | None
    title: str
    code: str
    reservation: str = ""
    moments: ClassMoments | None = None

    def under(self, reservation: str) -> "Tuning":
        """The same under a reservation."""
        return self.model_copy(update={"reservation": reservation})


def load_tuning(job: Tuning, draft: Draft) -> tuple[Any, Blueprint, Corrupt, Parts]:
    """The network that is trained, how it is built, how examples are made, and what else there is."""
    others: dict[str, Any] = {"started": job.started, "moments": job.moments}
    parts = load_parts(draft, job.settings, job.facts, job.public, job.machine, job.votes, **others)
    method = METHODS[job.settings.method.name]
    model, built = begun(method, job.settings, parts, job.facts)
    return checkpoint_blocks(model, job.machine.checkpointing), built, method.corrupt(job.settings, parts), parts


def fine_tune_beside(text: str) -> None:
    """Help another process with its DP fine-tuning; `text` is the `Tuning` that it tells."""
    job = Tuning.model_validate_json(text)
    store = where().store()
    draft: Draft[TunedModel] = Draft(store, store.root, silent)
    model, _, corrupt, parts = load_tuning(job, draft)
    with where().ledger() as ledger:
        asked = access(ledger, job.private, job.terms, STAGE_TUNING, job.title, [], job.context, job.code)
        mechanisms.fine_tuned_beside(
            with_canaries(asked, draft, job.canaries),
            job.event,
            model,
            corrupt,
            job.settings.fine_tuning,
            reservation=job.reservation,
            team=team(),
            device=device_of(job.machine),
            physical_batch=job.machine.physical_batch,
            codec=parts.codec,
            maps=parts.alignment,
        )


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
    moments: ClassMoments | None = None,
) -> TunedModel:
    """Train on the private images without clipping or noise, which has no certificate and stays INTERNAL."""
    parents = [*public.refs(), *([moments] if moments else [])]
    shown: dict[str, Any] = {"params": training.model_dump(), "images": training.batch}
    with making(TunedModel, "training", context, parents=parents, **shown) as draft:
        parts, device = load_parts(draft, settings, facts, public, machine, moments=moments), device_of(machine)
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
                maps=parts.alignment,
                progress=draft.show,
            )
        serialization.save_denoiser(draft.folder, paid.result, built.network, built.shape, built.classes)
        draft.stands_on(paid)
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
    moments: ClassMoments | None = None,
) -> MemberModel:
    """Train the public denoiser plainly on one shard of the private images; INTERNAL, for a priced drawing alone."""
    parents = [*public.refs(), *([moments] if moments else [])]
    title = f"member {shard + 1} of {members.count} (INTERNAL)"
    shown: dict[str, Any] = {"params": members.training.model_dump(), "images": members.training.batch}
    with making(MemberModel, title, context, parents=parents, **shown) as draft:
        parts, device = load_parts(draft, settings, facts, public, machine, moments=moments), device_of(machine)
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
                maps=parts.alignment,
            )
        serialization.save_denoiser(draft.folder, trained, settings.network, parts.shape, len(facts.classes))
    return draft.ref


def keep_watched(watched: mechanisms.Watched, model: TunedModel, title: str, context: RunContext) -> None:
    """Put what training saw without noise beside the model, INTERNAL, and say where."""
    with making(WatchedSteps, f"{title}, watched (INTERNAL)", context, parents=[model]) as draft:
        rows = [row.model_dump(mode="json") for row in watched.steps]
        serialization.save(draft.folder, {}, {"steps": rows})
        draft.entries = watched.entries
        draft.series = {name: [row[name] or 0.0 for row in rows] for name in WATCHED}
    CONSOLE.print(
        f"{title}: losses and norms (INTERNAL) are in {draft.open(draft.ref)} and in MLflow's internal experiment"
    )


WATCHED = ("loss", "median_norm", "clipped", "not_finite")
"""What is shown of watched steps as curves."""
