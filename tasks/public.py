"""Stages that see public images alone."""

from typing import Any

from artifacts import classifiers, serialization
from artifacts.references import (
    FeatureExtractor,
    PublicAutoencoder,
    PublicBackbone,
    PublicClassifier,
    PublicImages,
    PublicModel,
    PublicMoments,
    Rehearsal,
    Trajectories,
)
from artifacts.reports.rehearsal import REHEARSAL
from sfumato import latents, rehearsal, sources
from sfumato.alignment import measured
from sfumato.backbone import train_backbone as train_classes
from sfumato.config import (
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
from sfumato.diffusion.schedule import make_schedule
from sfumato.evaluation.classifier import classifier_of, features_and_classes
from sfumato.held_out import held_out
from sfumato.images import ImageSet, captioned, enlargement, pairs_picture, save_png, to_unit
from sfumato.methods.plan import Retrieval
from sfumato.networks.build import build
from sfumato.networks.checkpointing import checkpoint_blocks
from sfumato.progress import Progress
from sfumato.retrieval import features, knowledge_base, split
from sfumato.training import pretrain as train_denoiser
from tasks.runtime.artifact import Draft, RunContext, device_of, making
from tasks.runtime.caching import stage
from tasks.runtime.checkpoints import keeping

SHOWN = 20
"""Held-out public images in the picture of reconstructions."""
RECONSTRUCTIONS = "reconstructions.png"
COLUMNS = 12
"""Images in a row of the picture of a rehearsal."""


@stage
def load_public(data: Data, size: int, seed: int, content: str, context: RunContext) -> PublicImages:
    """Read or render the public images, `size` pixels square (0: as they are).

    `content` is the fingerprint of their files: the images of a name or a folder are read anew when these have changed.
    """
    with making(PublicImages, "public images", context, params=data.model_dump(include={"public"})) as draft:
        found = read_public(data, size, seed, draft.show)
        serialization.save_images(draft.folder, found)
        draft.metrics = {"images": len(found), "classes": len(found.classes)}
    return draft.ref


@stage
def train_autoencoder(
    images: PublicImages,
    latent: Latent,
    seed: int,
    machine: Machine,
    context: RunContext,
    backbone: PublicBackbone | None = None,
) -> PublicAutoencoder:
    """Train the autoencoder whose latents the denoisers work on, and measure it on public images that it did not learn from.

    The backbone is for a `latent.perceptual` above 0; with it, what it reads before and after the round trip is measured too.
    """
    shown: dict[str, Any] = {"params": latent.model_dump(), "images": latent.batch}
    parents = [ref for ref in (images, backbone) if ref]
    with (
        keeping(context) as keeper,
        making(PublicAutoencoder, "autoencoder", context, parents=parents, **shown) as draft,
    ):
        public, device = serialization.load_images(draft.open(images)), device_of(machine)
        reader = serialization.load_backbone(draft.open(backbone), device) if backbone else None
        pixels = to_unit(public.pixels).to(device)
        found = latents.train_autoencoder(
            latent, pixels, seed=seed, backbone=reader, progress=draft.show, keeper=keeper
        )
        serialization.save_autoencoder(draft.folder, found.codec, images.digest)
        pairs = latents.reconstructions(found.codec, found.held_out, SHOWN)
        save_png(draft.folder / RECONSTRUCTIONS, pairs_picture(pairs))
        draft.files = [draft.folder / RECONSTRUCTIONS]
        draft.metrics = {"reconstruction_error": latents.reconstruction_error(found.codec, found.held_out)}
        draft.metrics["spread"] = latents.pixel_spread(found.held_out)
        if reader:
            kept = held_out(public, seed).kept
            read = latents.read_after(found.codec, reader, to_unit(kept.pixels).to(device), kept.labels)
            draft.metrics |= {"read_before": read.before, "read_after": read.after}
        draft.series = {"loss": split.thinned(found.losses)}
        serialization.save_curve(draft.folder, draft.series["loss"])
    return draft.ref


@stage
def train_backbone(
    images: PublicImages, backbone: BackboneSettings, seed: int, machine: Machine, context: RunContext
) -> PublicBackbone:
    """Train the classifier of public images in whose features images are judged, and measure it on those that it did not learn from."""
    shown: dict[str, Any] = {"params": backbone.model_dump(), "images": backbone.batch}
    with (
        keeping(context) as keeper,
        making(PublicBackbone, "backbone", context, parents=[images], **shown) as draft,
    ):
        found = serialization.load_images(draft.open(images))
        trained = train_classes(
            backbone, found, seed=seed, device=device_of(machine), progress=draft.show, keeper=keeper
        )
        serialization.save_backbone(draft.folder, trained.backbone)
        draft.metrics = {"accuracy": trained.accuracy, "classes": len(found.classes)}
        draft.series = {"loss": split.thinned(trained.losses)}
        serialization.save_curve(draft.folder, draft.series["loss"])
    return draft.ref


def dealt(
    draft: Draft,
    images: PublicImages,
    autoencoder: PublicAutoencoder | None,
    reference: float,
    seed: int,
    machine: Machine,
) -> split.PublicSplit:
    """The public images as the denoisers see them, in their parts."""
    device = device_of(machine)
    folder = draft.open(autoencoder) if autoencoder else None
    codec = serialization.load_codec(folder, device, trained_on=[images.digest])
    return split.split_public(serialization.load_images(draft.open(images)), reference, seed, device, codec)


@stage
def measure(
    images: PublicImages,
    autoencoder: PublicAutoencoder | None,
    alignment: Alignment,
    seed: int,
    machine: Machine,
    context: RunContext,
) -> PublicMoments:
    """Say where the public images lie, so that private classes can be taken there."""
    parents = [ref for ref in (images, autoencoder) if ref]
    with making(PublicMoments, "public moments", context, parents=parents, params=alignment.model_dump()) as draft:
        parts = dealt(draft, images, autoencoder, 0.0, seed, machine)
        found = measured(*parts.pre, alignment, seed=seed)
        serialization.save_reference(draft.folder, found)
        draft.metrics = {"radius": found.radius, "numbers": len(found.mean)}
    return draft.ref


@stage
def pretrain(
    images: PublicImages,
    autoencoder: PublicAutoencoder | None,
    schedule: Schedule,
    network: Network,
    pretraining: Pretraining,
    reference: float,
    seed: int,
    machine: Machine,
    context: RunContext,
) -> PublicModel:
    """Train the denoiser on D_pre, the public images outside the reference share."""
    parents = [ref for ref in (images, autoencoder) if ref]
    shown: dict[str, Any] = {"params": pretraining.model_dump(), "images": pretraining.batch}
    with (
        keeping(context) as keeper,
        making(PublicModel, "public pretraining", context, parents=parents, **shown) as draft,
    ):
        parts = dealt(draft, images, autoencoder, reference, seed, machine)
        levels = make_schedule(schedule, parts.codec.limit)
        model = build(network, parts.shape, parts.classes, seed=seed, alpha_bar=levels.alpha_bar)
        model = checkpoint_blocks(model.to(device_of(machine)), machine.checkpointing)
        trained, losses = train_denoiser(
            model, levels, *parts.pre, pretraining, seed=seed, progress=draft.show, keeper=keeper
        )
        serialization.save_denoiser(draft.folder, trained, network, parts.shape, parts.classes)
        draft.series = {"loss": split.thinned(losses)}
        serialization.save_curve(draft.folder, draft.series["loss"])
    return draft.ref


@stage
def train_extractor(
    images: PublicImages,
    autoencoder: PublicAutoencoder | None,
    model: PublicModel,
    schedule: Schedule,
    retrieval: Retrieval,
    seed: int,
    machine: Machine,
    context: RunContext,
) -> FeatureExtractor:
    """Train the contrastive feature extractor on D_ref."""
    parents = [ref for ref in (images, autoencoder, model) if ref]
    shown: dict[str, Any] = {"params": retrieval.model_dump(), "images": retrieval.extractor.batch}
    with (
        keeping(context) as keeper,
        making(FeatureExtractor, "feature extractor", context, parents=parents, **shown) as draft,
    ):
        parts = dealt(draft, images, autoencoder, retrieval.reference, seed, machine)
        encoder, losses = features.train_extractor(
            retrieval.extractor,
            make_schedule(schedule, parts.codec.limit),
            serialization.load_denoiser(draft.open(model), device_of(machine)),
            parts.reference_images,
            time=retrieval.time,
            seed=seed,
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
    images: PublicImages, source: str, seed: int, machine: Machine, context: RunContext
) -> PublicClassifier:
    """Train the small CNN in whose features images are compared, on the public images of the name `source` alone."""
    with making(PublicClassifier, "public classifier", context, parents=[images]) as draft:
        found = held_out(serialization.load_images(draft.open(images)), seed).learnt
        model = classifier_of(found, seed=seed, device=device_of(machine), progress=draft.show)
        classifiers.save_classifier(draft.folder, model, found.pixels.shape[1:], source)
        draft.metrics = {"classes": len(found.classes)}
    return draft.ref


@stage
def build_knowledge_base(
    images: PublicImages,
    autoencoder: PublicAutoencoder | None,
    model: PublicModel,
    extractor: FeatureExtractor,
    schedule: Schedule,
    retrieval: Retrieval,
    seed: int,
    machine: Machine,
    context: RunContext,
) -> Trajectories:
    """Lay out the trajectories of D_ref and measure how well retrieval tells classes apart."""
    parents = [ref for ref in (images, autoencoder, model, extractor) if ref]
    with making(Trajectories, "knowledge base", context, parents=parents) as draft:
        device = device_of(machine)
        parts = dealt(draft, images, autoencoder, retrieval.reference, seed, machine)
        levels = make_schedule(schedule, parts.codec.limit)
        denoise = serialization.load_denoiser(draft.open(model), device)
        encoder = serialization.load_encoder(draft.open(extractor), device)
        where_keys_are: dict[str, Any] = {"time": retrieval.time, "seed": seed}
        base = knowledge_base.build_knowledge_base(
            levels,
            denoise,
            encoder,
            *parts.reference,
            by_class=retrieval.by_class,
            most=retrieval.trajectories,
            **where_keys_are,
        )
        asked = (base, levels, denoise, encoder)
        accuracy, chance = knowledge_base.retrieval_accuracy(*asked, *parts.queries, **where_keys_are)
        recall = knowledge_base.search_recall(*asked, parts.queries[0], **where_keys_are)
        serialization.save_base(draft.folder, base)
        draft.metrics = {"keys": len(base.keys), "search_recall": recall}
        draft.metrics |= {"retrieval_accuracy": accuracy, "retrieval_chance": chance}
    return draft.ref


@stage
def rehearse(
    images: PublicImages,
    autoencoder: PublicAutoencoder | None,
    model: PublicModel | None,
    base: Trajectories | None,
    classifier: PublicClassifier,
    schedule: Schedule,
    generation: Generation,
    count: int,
    seed: int,
    machine: Machine,
    context: RunContext,
) -> Rehearsal:
    """Try the public half on public images that nothing learnt from: samples beside them, the autoencoder, retrieval.

    Without a `model` there is nothing to draw from. `count` images are drawn at most. What is measured here costs nothing;
    whether it is good enough, whoever asks decides.
    """
    parents = [ref for ref in (images, autoencoder, model, base, classifier) if ref]
    with making(Rehearsal, "rehearsal", context, parents=parents, images=1) as draft:
        device = device_of(machine)
        public = held_out(serialization.load_images(draft.open(images)), seed)
        folder = draft.open(autoencoder) if autoencoder else None
        eyes, _ = classifiers.load_classifier(draft.open(classifier), device)
        codec = serialization.load_codec(folder, device, trained_on=[images.digest])
        found, shown = rehearsal.rehearse(
            make_schedule(schedule, codec.limit),
            generation,
            public,
            codec,
            serialization.load_denoiser(draft.open(model), device) if model else None,
            features_and_classes(eyes),
            images=count,
            seed=seed,
            device=device,
            progress=draft.show,
        )
        if base:
            known = draft.store.manifest(base)["summary"]
            able = {"retrieval": known["retrieval_accuracy"], "chance": known["retrieval_chance"]}
            found = found.model_copy(update=able)
        serialization.save(draft.folder, {}, found.model_dump(mode="json"))
        save_png(draft.folder / REHEARSAL, captioned(shown, COLUMNS, enlargement(public.kept.pixels.shape[2])))
        draft.files = [draft.folder / REHEARSAL]
        draft.metrics = found.numbers()
    return draft.ref


def read_public(data: Data, size: int, seed: int, show: Progress) -> ImageSet:
    """The public images as all stages see them, `size` pixels square (0: as they are)."""
    return sources.load(
        data.public,
        part="all",
        size=size,
        channels=data.channels,
        crop=data.crop,
        invert=data.invert in ("public", "both"),
        folder=data.folder,
        glyphs_per_class=data.glyphs_per_class,
        characters=sources.ALPHABETS[data.glyphs],
        shares=data.shares,
        columns=data.columns,
        only=data.public_classes,
        without=data.public_without,
        seed=seed,
        progress=show,
    )


def inspect_public(data: Data, show: Progress) -> sources.Inspection:
    """Look through the public images, as they are stored."""
    return sources.inspect(
        data.public,
        folder=data.folder,
        columns=data.columns,
        only=data.public_classes,
        without=data.public_without,
        glyphs_per_class=data.glyphs_per_class,
        characters=sources.ALPHABETS[data.glyphs],
        progress=show,
    )
