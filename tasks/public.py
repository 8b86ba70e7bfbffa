"""Stages that see public images alone."""

from typing import Annotated, Any

from artifacts import classifiers, serialization
from artifacts.references import (
    FeatureExtractor,
    PublicAutoencoder,
    PublicBackbone,
    PublicClassifier,
    PublicImages,
    PublicModel,
    PublicMoments,
    PublicStart,
    Rehearsal,
    Trajectories,
)
from artifacts.reports.rehearsal import REHEARSAL
from sfumato import latents, rehearsal, sources
from sfumato.alignment import measured
from sfumato.backbone import train_backbone as train_classes
from sfumato.config import (
    LATER,
    NOT_HASHED,
    Alignment,
    BackboneSettings,
    Data,
    Generation,
    Latent,
    Machine,
    Network,
    Pretraining,
    Schedule,
)
from sfumato.degraded import degraded
from sfumato.diffusion.schedule import make_schedule
from sfumato.evaluation.classifier import classifier_of, features_and_classes
from sfumato.held_out import held_out
from sfumato.images import ImageSet, captioned, enlargement, pairs_picture, save_png, to_unit
from sfumato.label_rows import start_learnt
from sfumato.marks import EXTRACTOR, MEASURING, PUBLIC_IMAGES, REHEARSING
from sfumato.methods.plan import OwnStart, Retrieval
from sfumato.networks.build import build
from sfumato.networks.checkpointing import checkpoint_blocks
from sfumato.progress import Progress, part_of
from sfumato.rehearsal_findings import RetrievalFindings
from sfumato.retrieval import accuracy, features, knowledge_base, split
from sfumato.training import pretrain as train_denoiser
from sfumato.turns import training_name
from tasks.inputs import TrainingSet
from tasks.runtime.artifact import Draft, RunContext, device_of, draft_of
from tasks.runtime.caching import stage
from tasks.runtime.checkpoints import stored_state
from tasks.runtime.narrowing import seen_by

SHOWN = 20
"""Held-out public images in the picture of reconstructions."""
RECONSTRUCTIONS = "reconstructions.png"
COLUMNS = 12
"""Images in a row of the picture of a rehearsal."""


@stage
def load_public(
    context: RunContext, data: Annotated[Data, seen_by(PUBLIC_IMAGES)], size: int, seed: int, content: str
) -> PublicImages:
    """Read or render the public images, `size` pixels square (0: as they are).

    `content` is the fingerprint of their files: the images of a name or a folder are read again when these have changed.
    """
    with draft_of(PublicImages, "public images", context) as draft:
        images = read_public(data, size, seed, draft.show)
        serialization.save_images(draft.folder, images)
        draft.metrics = {"images": len(images), "classes": len(images.classes)}
    return draft.ref


@stage
def train_autoencoder(
    context: RunContext,
    images: PublicImages,
    latent: Latent,
    seed: int,
    machine: Annotated[Machine, NOT_HASHED],
    backbone: PublicBackbone | None = None,
) -> PublicAutoencoder:
    """Train the autoencoder whose latents the denoisers work on, and measure it on public images that it did not learn from.

    The backbone is for a `latent.perceptual` above 0; with it, its accuracy before and after the round trip is measured too.
    """
    parents, params = [ref for ref in (images, backbone) if ref], latent.model_dump()
    title, batch = "autoencoder", latent.batch
    with (
        stored_state(context) as keeper,
        draft_of(PublicAutoencoder, title, context, parents=parents, params=params, images=batch) as draft,
    ):
        public, device = serialization.load_images(draft.open(images)), device_of(machine)
        reader = serialization.load_backbone(draft.open(backbone), device) if backbone else None
        pixels = to_unit(public.pixels).to(device)
        trained = latents.train_autoencoder(
            latent, pixels, seed=seed, backbone=reader, progress=draft.show, keeper=keeper
        )
        serialization.save_autoencoder(draft.folder, trained.codec, images.digest)
        pairs = latents.reconstructions(trained.codec, trained.held_out, SHOWN)
        save_png(draft.folder / RECONSTRUCTIONS, pairs_picture(pairs))
        draft.files = [draft.folder / RECONSTRUCTIONS]
        draft.metrics = {"reconstruction_error": latents.reconstruction_error(trained.codec, trained.held_out)}
        draft.metrics["spread"] = latents.pixel_spread(trained.held_out)
        if reader:
            withheld = held_out(public, seed).withheld
            read = latents.read_after(trained.codec, reader, to_unit(withheld.pixels).to(device), withheld.labels)
            draft.metrics |= {"read_before": read.before, "read_after": read.after}
        draft.series = {"loss": split.thinned(trained.losses)}
        serialization.save_curve(draft.folder, draft.series["loss"])
    return draft.ref


@stage
def train_backbone(
    context: RunContext,
    images: PublicImages,
    backbone: BackboneSettings,
    seed: int,
    machine: Annotated[Machine, NOT_HASHED],
) -> PublicBackbone:
    """Train the classifier of public images in whose features images are judged, and measure it on those that it did not learn from."""
    params, batch = backbone.model_dump(), backbone.batch
    with (
        stored_state(context) as keeper,
        draft_of(PublicBackbone, "backbone", context, parents=[images], params=params, images=batch) as draft,
    ):
        public = serialization.load_images(draft.open(images))
        trained = train_classes(
            backbone, public, seed=seed, device=device_of(machine), progress=draft.show, keeper=keeper
        )
        serialization.save_backbone(draft.folder, trained.backbone)
        draft.metrics = {"accuracy": trained.accuracy, "classes": len(public.classes)}
        draft.series = {"loss": split.thinned(trained.losses)}
        serialization.save_curve(draft.folder, draft.series["loss"])
    return draft.ref


def dealt(draft: Draft[Any], public: TrainingSet, reference: float) -> split.PublicSplit:
    """The public images as the denoisers see them, in their parts."""
    device = device_of(public.machine)
    folder = draft.open(public.autoencoder) if public.autoencoder else None
    codec = serialization.load_codec(folder, device, trained_on=public.digests)
    return split.split_public(
        serialization.load_images(draft.open(public.images)), reference, public.seed, device, codec
    )


@stage
def measure(
    context: RunContext, public: TrainingSet, alignment: Annotated[Alignment, seen_by(MEASURING)]
) -> PublicMoments:
    """Measure the reference of the public images, to which private classes are aligned."""
    params = alignment.model_dump()
    with draft_of(PublicMoments, "public moments", context, parents=public.refs(), params=params) as draft:
        parts = dealt(draft, public, 0.0)
        reference = measured(*parts.pre, alignment, seed=public.seed)
        serialization.save_reference(draft.folder, reference)
        draft.metrics = {"radius": reference.radius, "numbers": len(reference.mean)}
    return draft.ref


@stage
def pretrain(
    context: RunContext,
    public: TrainingSet,
    schedule: Schedule,
    network: Network,
    pretraining: Pretraining,
    reference: float,
    start: Annotated[PublicModel | None, LATER] = None,
) -> PublicModel:
    """Train the denoiser on D_pre, the public images outside the reference share; or train a given one further from `start`."""
    params, seed, machine = pretraining.model_dump(), public.seed, public.machine
    parents = [*public.refs(), *([start] if start else [])]
    title, batch = "public pretraining", pretraining.batch
    with (
        stored_state(context) as keeper,
        draft_of(PublicModel, title, context, parents=parents, params=params, images=batch) as draft,
    ):
        parts = dealt(draft, public, reference)
        levels = make_schedule(schedule, parts.codec.limit)
        model = build(network, parts.shape, parts.classes, seed=seed, alpha_bar=levels.alpha_bar)
        if start:
            model = serialization.load_denoiser(draft.open(start), device_of(machine)).requires_grad_(True)
        model = checkpoint_blocks(model.to(device_of(machine)), machine.checkpointing)
        trained, losses = train_denoiser(
            model, levels, *parts.pre, pretraining, seed=seed, progress=draft.show, keeper=keeper
        )
        serialization.save_denoiser(draft.folder, trained, network, parts.shape, parts.classes)
        draft.series = {"loss": split.thinned(losses)}
        serialization.save_curve(draft.folder, draft.series["loss"])
    return draft.ref


@stage
def train_start(context: RunContext, public: TrainingSet, schedule: Schedule, start: OwnStart) -> PublicStart:
    """Train a method's own network on the public images with the rows of their labels."""
    params, title, batch = start.training.model_dump(), "public start of the method's network", start.training.batch
    with (
        stored_state(context) as keeper,
        draft_of(PublicStart, title, context, parents=public.refs(), params=params, images=batch) as draft,
    ):
        parts, own = dealt(draft, public, 0.0), start.blueprint
        levels = make_schedule(schedule, parts.codec.limit)
        trained, losses = start_learnt(start, levels, *parts.pre, seed=public.seed, progress=draft.show, keeper=keeper)
        serialization.save_denoiser(draft.folder, trained, own.network, own.shape, own.classes)
        draft.series = {"loss": split.thinned(losses)}
        serialization.save_curve(draft.folder, draft.series["loss"])
    return draft.ref


@stage
def train_extractor(
    context: RunContext,
    public: TrainingSet,
    model: PublicModel,
    schedule: Schedule,
    retrieval: Annotated[Retrieval, seen_by(EXTRACTOR)],
) -> FeatureExtractor:
    """Train the contrastive feature extractor on D_ref."""
    parents, params, batch = [*public.refs(), model], retrieval.model_dump(), retrieval.extractor.batch
    with (
        stored_state(context) as keeper,
        draft_of(FeatureExtractor, "feature extractor", context, parents=parents, params=params, images=batch) as draft,
    ):
        parts = dealt(draft, public, retrieval.reference)
        denoise = serialization.load_denoiser(draft.open(model), device_of(public.machine))
        levels = make_schedule(schedule, parts.codec.limit)
        encoder, losses = features.train_extractor(
            retrieval.extractor,
            features.OneStep(levels, denoise, retrieval.conditional),
            parts.reference_images,
            parts.reference[1],
            times=retrieval.measured_times,
            seed=public.seed,
            codec=parts.codec,
            progress=draft.show,
            keeper=keeper,
        )
        serialization.save_encoder(draft.folder, encoder, retrieval.extractor, parts.shape)
        draft.series = {"loss": split.thinned(losses)}
        serialization.save_curve(draft.folder, draft.series["loss"])
    return draft.ref


@stage
def train_classifier(
    context: RunContext, images: PublicImages, source: str, seed: int, machine: Annotated[Machine, NOT_HASHED]
) -> PublicClassifier:
    """Train the small CNN in whose features images are compared, on the public images of the name `source` alone."""
    with draft_of(PublicClassifier, "public classifier", context, parents=[images]) as draft:
        public = held_out(serialization.load_images(draft.open(images)), seed).learnt
        model = classifier_of(public, seed=seed, device=device_of(machine), progress=draft.show)
        shape = public.pixels.shape[1:]
        source, _ = training_name(source, len(public.classes), shape)
        classifiers.save_classifier(draft.folder, model, shape, source)
        draft.metrics = {"classes": len(public.classes)}
    return draft.ref


@stage
def build_knowledge_base(
    context: RunContext,
    public: TrainingSet,
    model: PublicModel,
    extractor: FeatureExtractor | None,
    schedule: Schedule,
    retrieval: Retrieval,
) -> Trajectories:
    """Build the trajectories of D_ref, and measure at each time of the plan how well retrieval separates classes; where several are
    measured, the base is that of the chosen one. Without an extractor trajectories are taken at random."""
    parents = [*public.refs(), model, *([extractor] if extractor else [])]
    with draft_of(Trajectories, "knowledge base", context, parents=parents) as draft:
        device, seed = device_of(public.machine), public.seed
        parts = dealt(draft, public, retrieval.reference)
        levels = make_schedule(schedule, parts.codec.limit)
        measured: tuple[RetrievalFindings, ...] = ()
        recall = 1.0
        if extractor:
            denoise = serialization.load_denoiser(draft.open(model), device)
            encoder = serialization.load_encoder(draft.open(extractor), device)
            one_step = features.OneStep(levels, denoise, retrieval.conditional)
            seen = features.FeatureMap(one_step, encoder)
            bases = [
                knowledge_base.build_knowledge_base(
                    seen,
                    *parts.reference,
                    time=time,
                    by_class=retrieval.by_class,
                    seed=seed,
                    most=retrieval.trajectories,
                    query=retrieval.query,
                    progress=part_of(draft.show, number, len(retrieval.measured_times)),
                )
                for number, time in enumerate(retrieval.measured_times)
            ]
            measured = tuple(accuracy.measured(one, seen, *parts.queries, seed=seed) for one in bases)
            base = accuracy.chosen(bases, measured) if retrieval.times else bases[0]
            recall = knowledge_base.search_recall(base, seen, parts.queries[0], seed=seed)
        else:
            base = knowledge_base.base_without_keys(
                *parts.reference, by_class=retrieval.by_class, seed=seed, most=retrieval.trajectories
            )
        serialization.save_base(draft.folder, base)
        serialization.save_retrieval(draft.folder, measured)
        draft.metrics = {"keys": len(base.keys), "search_recall": recall, "query_time": base.time}
        draft.metrics |= accuracy.numbers(base, measured)
    return draft.ref


@stage
def rehearse(
    context: RunContext,
    public: TrainingSet,
    model: PublicModel | None,
    base: Trajectories | None,
    classifier: PublicClassifier,
    schedule: Schedule,
    generation: Annotated[Generation, seen_by(REHEARSING)],
) -> Rehearsal:
    """Test the public half on public images that no stage learnt from: samples beside them, the autoencoder, retrieval.

    Without a `model` nothing is drawn, else at most `generation.images`. The rehearsal costs nothing; its caller decides whether
    the results are good enough.
    """
    parents = [*public.refs(), *(ref for ref in (model, base, classifier) if ref)]
    with draft_of(Rehearsal, "rehearsal", context, parents=parents, images=1) as draft:
        device = device_of(public.machine)
        parted = held_out(serialization.load_images(draft.open(public.images)), public.seed)
        folder = draft.open(public.autoencoder) if public.autoencoder else None
        eyes, _ = classifiers.load_classifier(draft.open(classifier), device)
        codec = serialization.load_codec(folder, device, trained_on=public.digests)
        findings, shown = rehearsal.rehearse(
            make_schedule(schedule, codec.limit),
            generation,
            parted,
            codec,
            serialization.load_denoiser(draft.open(model), device) if model else None,
            features_and_classes(eyes),
            images=generation.images,
            seed=public.seed,
            device=device,
            progress=draft.show,
        )
        if base:
            known = draft.store.manifest(base)["summary"]
            able = {"retrieval": known.get("retrieval_accuracy"), "chance": known.get("retrieval_chance")}
            by_time = {
                "by_time": serialization.load_retrieval(draft.open(base)),
                "query_time": int(known["query_time"]),
            }
            findings = findings.model_copy(update=able | by_time)
        serialization.save(draft.folder, {}, findings.model_dump(mode="json"))
        save_png(draft.folder / REHEARSAL, captioned(shown, COLUMNS, enlargement(parted.withheld.pixels.shape[2])))
        draft.files = [draft.folder / REHEARSAL]
        draft.metrics = findings.numbers()
    return draft.ref


def read_public(data: Data, size: int, seed: int, show: Progress) -> ImageSet:
    """The public images as all stages see them, `size` pixels square (0: as they are)."""
    images = sources.load(data.public, sources.public_reading(data, size, seed=seed), progress=show)
    return degraded(images, data.public_noise, seed=seed)


def inspect_public(data: Data, size: int, show: Progress) -> sources.Inspection:
    """Inspect the public images as they are stored; those of a mixture at the `size` that a run would bring them to, since their own may differ."""
    return sources.inspect(data.public, sources.public_reading(data, size), progress=show)
