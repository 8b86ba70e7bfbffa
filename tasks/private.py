"""Stages that pay for private data: each opens the door through one mechanism, once, with the ledger's permission."""

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from artifacts import serialization
from artifacts.references import (
    ClassCounts,
    ClassMoments,
    ClassVotes,
    MemberHeads,
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
from sfumato import adapters
from sfumato.alignment import fitted
from sfumato.config import Alignment, Judge, Machine, Section, Training
from sfumato.diffusion.objective import Corrupt
from sfumato.latents import Codec
from sfumato.marks import JUDGE_TRAINING, TAKING_MOMENTS
from sfumato.methods import METHODS
from sfumato.methods.algorithm import begun
from sfumato.methods.parts import Parts, planned, unlearnt, untuned
from sfumato.methods.plan import (
    STAGE_COUNTS,
    STAGE_JUDGE,
    STAGE_MOMENTS,
    STAGE_PHASE_ONE,
    STAGE_TRAINING,
    STAGE_TUNING,
    STAGE_VOTES,
    Blueprint,
    Facts,
    Members,
    PhaseOne,
    noise_of_mean,
)
from sfumato.networks.checkpointing import checkpoint_blocks
from sfumato.privacy import mechanisms, shards
from sfumato.privacy.accounting.events import (
    DiscreteHistogram,
    Gaussian,
    MomentEvents,
    NoisedRecords,
    SubsampledGaussian,
    Uncertified,
)
from sfumato.progress import silent
from sfumato.training import denoiser_training, train_on_noised, unlabelled_losses
from tasks.inputs import Inputs, ModelInputs, TuningInputs, load_parts
from tasks.runtime.artifact import Draft, RunContext, device_of, draft_of
from tasks.runtime.caching import code_version, stage
from tasks.runtime.checkpoints import stored_state
from tasks.runtime.distributed import helpers_of, refuse_company, team
from tasks.runtime.environment import where
from tasks.runtime.narrowing import Narrowed, sections, seen_by
from tasks.runtime.progress import CONSOLE
from tasks.terms import FreeOrder, Order, SharedOrder, with_canaries


def without_images(inputs: Inputs) -> Inputs:
    """The inputs without the public images, which no member sees."""
    return inputs.model_copy(update={"public": inputs.public.model_copy(update={"images": None})})


MemberInputs = Annotated[ModelInputs, Narrowed(without_images)]
"""The inputs that a member's training reads."""


@stage
def count_classes(
    context: RunContext, order: SharedOrder, event: DiscreteHistogram, classes: tuple[str, ...]
) -> ClassCounts:
    """Count the private records of each class with noise, which may be published."""
    with draft_of(ClassCounts, "class counts", context, params=event.model_dump()) as draft:
        code = code_version(count_classes.fn)
        with where().ledger() as ledger:
            access = order.access(ledger, context, stage=STAGE_COUNTS, purpose="class counts", code=code)
            paid = mechanisms.noisy_counts(access, event, classes=len(classes))
        serialization.save(draft.folder, {"counts": paid.result}, {"classes": classes})
        draft.stands_on(paid)
    return draft.ref


@stage
def train_judge(
    context: RunContext,
    order: SharedOrder,
    event: Gaussian,
    backbone: PublicBackbone,
    settings: Annotated[Judge, seen_by(JUDGE_TRAINING)],
    facts: Facts,
) -> PaidJudge:
    """Train a linear head that tells the private classes apart, with noise, on features of a backbone of public images."""
    with draft_of(PaidJudge, "paid judge", context, parents=[backbone], params=event.model_dump()) as draft:
        code, device = code_version(train_judge.fn), device_of(order.machine)
        public = serialization.load_backbone(draft.open(backbone), device)
        with where().ledger() as ledger:
            access = order.access(
                ledger, context, stage=STAGE_JUDGE, purpose="paid judge", code=code, parents=[backbone]
            )
            paid = mechanisms.noisy_head(
                access,
                event,
                public.whitening_reader(settings.directions),
                settings,
                classes=len(facts.classes),
                records=facts.records,
                device=device,
            )
        noise = noise_of_mean(event.noise_multiplier, facts.records, tuple(paid.result.shape))
        serialization.save_judge(draft.folder, paid.result, settings.scale, noise, facts.classes)
        draft.stands_on(paid)
    return draft.ref


@stage
def take_moments(
    context: RunContext,
    order: SharedOrder,
    events: MomentEvents,
    settings: Annotated[Alignment, seen_by(TAKING_MOMENTS)],
    classes: tuple[str, ...],
    reference: PublicMoments,
    autoencoder: PublicAutoencoder | None,
) -> ClassMoments:
    """Release noisy moments of each private class, and compute the maps between it and the public images."""
    parents = [ref for ref in (reference, autoencoder, order.canaries) if ref]
    noise = {name: event["noise_multiplier"] for name, event in events.model_dump().items() if event}
    with draft_of(ClassMoments, "class moments", context, parents=parents, params=noise) as draft:
        code, device = code_version(take_moments.fn), device_of(order.machine)
        public = serialization.load_reference(draft.open(reference))
        codec = frozen_codec(draft, autoencoder, order.machine)
        with where().ledger() as ledger:
            access = order.access(
                ledger, context, stage=STAGE_MOMENTS, purpose="class moments", code=code, parents=parents
            )
            paid = mechanisms.noisy_moments(
                with_canaries(access, draft, order),
                events,
                public,
                settings,
                classes=len(classes),
                codec=codec,
                device=device,
                progress=draft.show,
            )
        maps = fitted(paid.result, public)
        serialization.save_maps(draft.folder, paid.result, maps, classes)
        draft.metrics = {"classes": len(classes), "shared_covariances": len(maps.shared)}
        if maps.shared:
            draft.lines = [shared_note([classes[label] for label in maps.shared])]
        draft.stands_on(paid)
    return draft.ref


def shared_note(names: Sequence[str]) -> str:
    """A line that names the classes without a covariance of their own; where there is noise, it may be shown."""
    return (
        f"class moments: too few records, or too much noise, for a covariance of {', '.join(names[:MOST_NAMED])}"
        + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
        + ": they share that of all classes, each at its own level and colours"
    )


MOST_NAMED = 12
"""Classes that a line on the screen names."""


@stage
def take_votes(context: RunContext, order: Order, event: DiscreteHistogram, inputs: TuningInputs) -> ClassVotes:
    """Let each private record vote for the public class that it resembles, and store the noisy histogram."""
    parents, facts = [*inputs.refs(), *order.refs()], inputs.facts
    with draft_of(ClassVotes, "class votes", context, parents=parents, params=event.model_dump()) as draft:
        parts = load_parts(draft, inputs, order.machine)
        code = code_version(take_votes.fn)
        with where().ledger() as ledger:
            access = order.access(ledger, context, stage=STAGE_VOTES, purpose="class votes", code=code, parents=parents)
            paid = mechanisms.noisy_votes(
                with_canaries(access, draft, order),
                event,
                planned(METHODS[inputs.settings.method.name].ballot)(parts),
                classes=len(facts.classes),
                options=facts.learnt_classes,
                device=device_of(order.machine),
            )
        serialization.save(draft.folder, {"votes": paid.result}, {"classes": facts.classes})
        draft.stands_on(paid)
    return draft.ref


@stage
def noise_once(
    context: RunContext,
    order: SharedOrder,
    event: NoisedRecords,
    records: int,
    autoencoder: PublicAutoencoder | None,
    moments: ClassMoments | None = None,
) -> NoisedImages:
    """Noise every private image once; only the noised copies leave the stage."""
    parents = [ref for ref in (autoencoder, order.canaries, moments) if ref]
    with draft_of(NoisedImages, "noised images", context, parents=parents, params=event.model_dump()) as draft:
        code = code_version(noise_once.fn)
        codec = frozen_codec(draft, autoencoder, order.machine)
        maps = serialization.load_maps(draft.open(moments)) if moments else None
        with where().ledger() as ledger:
            access = order.access(
                ledger, context, stage=STAGE_PHASE_ONE, purpose="noised images", code=code, parents=parents
            )
            paid = mechanisms.noised_records(
                with_canaries(access, draft, order),
                event,
                records=records,
                codec=codec,
                maps=maps,
                device=device_of(order.machine),
            )
        serialization.save(draft.folder, {"noised": paid.result}, {})
        draft.stands_on(paid)
    return draft.ref


def frozen_codec(draft: Draft[Any], autoencoder: PublicAutoencoder | None, machine: Machine) -> Codec:
    """The codec between images and the denoisers' space, as its own run trained it."""
    folder = draft.open(autoencoder) if autoencoder else None
    own = draft.store.manifest(autoencoder)["parents"] if autoencoder else ()
    return serialization.load_codec(folder, device_of(machine), trained_on=own)


@stage
def train_phase_one(
    context: RunContext,
    order: Order,
    phase: PhaseOne,
    inputs: ModelInputs,
    source: NoisedImages | Uncertified,
) -> PhaseOneModel:
    """Train the public denoiser on the large times: on noised copies, which costs nothing more, or on the images themselves as `source` prices it."""
    parents = [*inputs.refs(), *([source] if isinstance(source, NoisedImages) else []), *order.refs()]
    settings, facts, training, title = inputs.settings, inputs.facts, phase.training, "Phase I"
    params = training.model_dump()
    with draft_of(PhaseOneModel, title, context, parents=parents, params=params, images=training.batch) as draft:
        parts, device = load_parts(draft, inputs, order.machine), device_of(order.machine)
        model, schedule = parts.public, parts.schedule
        if isinstance(source, NoisedImages):
            images = serialization.load(draft.open(source))[0]["noised"].to(device)
            trained, _ = train_on_noised(
                model,
                schedule,
                images,
                training,
                boundary=phase.boundary,
                seed=settings.seed,
                fixed=phase.fixed,
                progress=draft.show,
            )
        else:
            code = code_version(train_phase_one.fn)
            with where().ledger() as ledger:
                access = order.access(ledger, context, stage=STAGE_PHASE_ONE, purpose=title, code=code, parents=parents)
                paid = mechanisms.unprotected(
                    with_canaries(access, draft, order),
                    source,
                    model,
                    unlabelled_losses(schedule, phase.boundary),
                    training,
                    sample_rate=training.batch / facts.records,
                    device=device,
                    codec=parts.codec,
                    maps=parts.alignment,
                    fixed=phase.fixed,
                    progress=draft.show,
                )
            trained = paid.result
            draft.stands_on(paid)
        serialization.save_denoiser(draft.folder, trained, settings.network, parts.shape, facts.learnt_classes)
    return draft.ref


@stage
def fine_tune(context: RunContext, order: Order, event: SubsampledGaussian, inputs: TuningInputs) -> TunedModel:
    """Fine-tune the denoiser on the private images by DP-SGD."""
    parents, settings, records = [*inputs.refs(), *order.refs()], inputs.settings, inputs.facts.records
    title = "DP fine-tuning" + (" (canaries)" if order.canaries else " (baseline)" if order.terms.comparison else "")
    params, images = settings.fine_tuning.model_dump(), event.sample_rate * records
    # No audit finds another one's canaries, so nothing would ever read the state that it stores.
    states = contextlib.nullcontext() if order.canaries else stored_state(context)
    with states as keeper, draft_of(TunedModel, title, context, parents=parents, params=params, images=images) as draft:
        machine, code = order.machine, code_version(fine_tune.fn)
        job = Tuning(context=context, order=order, event=event, inputs=inputs, title=title, code=code)
        loaded = load_tuning(job, draft)
        if machine.watch:
            refuse_company("machine.watch")
        with where().ledger() as ledger:
            access = order.access(ledger, context, stage=STAGE_TUNING, purpose=title, code=code, parents=parents)
            paid = mechanisms.fine_tuned(
                with_canaries(access, draft, order),
                event,
                loaded.model,
                loaded.corrupt,
                settings.fine_tuning,
                records=records,
                device=device_of(machine),
                physical_batch=machine.physical_batch,
                codec=loaded.parts.codec,
                maps=loaded.parts.alignment,
                progress=draft.show,
                keeper=keeper,
                note=CONSOLE.print,
                watch=machine.watch,
                gather=helpers_of(job),
            )
        built = loaded.built
        serialization.save_denoiser(draft.folder, paid.result, built.network, built.shape, built.classes)
        serialization.save_averages(draft.folder, paid.averages)
        draft.stands_on(paid)
    if paid.watched:
        keep_watched(paid.watched, draft.ref, title, context)
    return draft.ref


class Tuning(Section):
    """Everything that a helping process needs for DP fine-tuning: the stage's arguments, and the reservation under which it pays."""

    context: RunContext
    order: Order
    event: SubsampledGaussian
    inputs: Inputs
    title: str
    code: str
    reservation: str = ""

    def under(self, reservation: str) -> "Tuning":
        """The same under a reservation."""
        return self.model_copy(update={"reservation": reservation})


class LoadedTuning(NamedTuple):
    """What DP fine-tuning trains with."""

    model: Any
    """The network to train."""
    built: Blueprint
    corrupt: Corrupt
    """Makes the examples."""
    parts: Parts


def load_tuning(job: Tuning, draft: Draft[TunedModel]) -> LoadedTuning:
    """What a DP fine-tuning trains with, from the store."""
    settings, machine = job.inputs.settings, job.order.machine
    parts = load_parts(draft, job.inputs, machine)
    method = METHODS[settings.method.name]
    model, built = begun(method, settings, parts)
    model = checkpoint_blocks(model, machine.checkpointing)
    return LoadedTuning(model, built, planned(method.corrupt)(settings, parts), parts)


def fine_tune_beside(text: str) -> None:
    """Help another process with its DP fine-tuning; `text` is its `Tuning` as JSON."""
    job = Tuning.model_validate_json(text)
    store, machine = where().store(), job.order.machine
    draft: Draft[TunedModel] = Draft(store, store.root, silent)
    loaded = load_tuning(job, draft)
    with where().ledger() as ledger:
        access = job.order.access(ledger, job.context, stage=STAGE_TUNING, purpose=job.title, code=job.code)
        mechanisms.fine_tuned_beside(
            with_canaries(access, draft, job.order),
            job.event,
            loaded.model,
            loaded.corrupt,
            job.inputs.settings.fine_tuning,
            reservation=job.reservation,
            team=team(),
            device=device_of(machine),
            physical_batch=machine.physical_batch,
            codec=loaded.parts.codec,
            maps=loaded.parts.alignment,
        )


@stage
def train_plainly(
    context: RunContext,
    order: Order,
    event: Uncertified,
    training: Training,
    inputs: Annotated[Inputs, sections("privacy", "schedule", "network", "method", "seed")],
) -> TunedModel:
    """Train on the private images without clipping or noise, which has no certificate and stays INTERNAL."""
    parents, settings, facts = [*inputs.refs(), *order.refs()], inputs.settings, inputs.facts
    params, title = training.model_dump(), "training"
    with draft_of(TunedModel, title, context, parents=parents, params=params, images=training.batch) as draft:
        parts, device = load_parts(draft, inputs, order.machine), device_of(order.machine)
        method, code = METHODS[settings.method.name], code_version(train_plainly.fn)
        model, built = begun(method, settings, parts)
        with where().ledger() as ledger:
            paid = mechanisms.unprotected(
                order.access(ledger, context, stage=STAGE_TRAINING, purpose=title, code=code, parents=parents),
                event,
                model.to(device),
                planned(method.loss)(settings, parts),
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
    context: RunContext, order: FreeOrder, members: Members, shard: int, inputs: MemberInputs
) -> MemberModel:
    """Train the public denoiser, or one from scratch, plainly on one shard of the private images; INTERNAL, for a priced drawing alone."""
    parents, settings, facts = [*inputs.refs(), *order.refs()], inputs.settings, inputs.facts
    training, title = members.training, f"member {shard + 1} of {members.count} (INTERNAL)"
    params = training.model_dump()
    with draft_of(MemberModel, title, context, parents=parents, params=params, images=training.batch) as draft:
        parts, device = load_parts(draft, inputs, order.machine), device_of(order.machine)
        code = code_version(train_member.fn)
        model = unlearnt(parts, settings.network, settings.seed) if members.scratch else untuned(parts)
        with where().ledger() as ledger:
            trained, draft.entries = shards.shard_trained(
                order.access(ledger, context, stage=STAGE_TRAINING, purpose=title, code=code, parents=parents),
                denoiser_training(
                    model, parts.schedule, training, seed=settings.seed, idle=untuned(parts), progress=draft.show
                ),
                shard=shard,
                shards=members.count,
                key=members.key,
                device=device,
                codec=parts.codec,
                maps=parts.alignment,
            )
        draft.show(training.steps, training.steps)  # an empty shard takes none, which nobody may see
        serialization.save_denoiser(draft.folder, trained, settings.network, parts.shape, len(facts.classes))
    return draft.ref


@stage
def train_heads(context: RunContext, order: FreeOrder, members: Members, inputs: MemberInputs) -> MemberHeads:
    """Train all members at once, as heads on the public denoiser, each on its own shard; INTERNAL, for a priced drawing alone."""
    parents, settings, facts = [*inputs.refs(), *order.refs()], inputs.settings, inputs.facts
    training, title = members.training, f"{members.count} members (INTERNAL)"
    params, images = training.model_dump(), training.batch  # a step is that of one member
    with draft_of(MemberHeads, title, context, parents=parents, params=params, images=images) as draft:
        parts, device = load_parts(draft, inputs, order.machine), device_of(order.machine)
        code = code_version(train_heads.fn)

        def train(own: Sequence[adapters.Shard]) -> adapters.HeadStack:
            return adapters.heads_trained(
                adapters.Trunk(parts.public),
                parts.schedule,
                own,
                training,
                classes=len(facts.classes),
                width=members.adapters,
                seed=settings.seed,
                progress=draft.show,
            )

        with where().ledger() as ledger:
            access = order.access(ledger, context, stage=STAGE_TRAINING, purpose=title, code=code, parents=parents)
            trained, draft.entries = shards.shards_trained(
                access,
                train,
                shards=members.count,
                key=members.key,
                device=device,
                codec=parts.codec,
                maps=parts.alignment,
            )
        serialization.save_heads(draft.folder, trained)
    return draft.ref


def keep_watched(watched: mechanisms.Watched, model: TunedModel, title: str, context: RunContext) -> None:
    """Store the diagnostics of training without noise beside the model, INTERNAL, and print their place."""
    with draft_of(WatchedSteps, f"{title}, watched (INTERNAL)", context, parents=[model]) as draft:
        rows = [row.model_dump(mode="json") for row in watched.steps]
        serialization.save(draft.folder, {}, {"steps": rows})
        draft.entries = watched.entries
        draft.series = {name: [row[name] or 0.0 for row in rows] for name in WATCHED}
    CONSOLE.print(
        f"{title}: losses and norms (INTERNAL) are in {draft.open(draft.ref)} and in MLflow's internal experiment"
    )


WATCHED = ("loss", "median_norm", "clipped", "not_finite")
"""Numbers of watched steps that are shown as curves."""
