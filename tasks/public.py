"""Stages that see public images alone."""

from artifacts import contents
from artifacts.kinds import FeatureExtractor, PublicImages, PublicModel, Trajectories
from sfumato import sources
from sfumato.config import Data, Machine, Network, Pretraining, Schedule
from sfumato.diffusion.schedule import make_schedule
from sfumato.methods.plan import Retrieval
from sfumato.networks.build import build
from sfumato.networks.checkpointing import checkpoint_blocks
from sfumato.retrieval import features, knowledge_base, split
from sfumato.training import pretrain as train_denoiser
from tasks.caching import stage
from tasks.making import RunContext, device_of, making


@stage
def load_public(data: Data, size: int, seed: int, context: RunContext) -> PublicImages:
    """Read or render the public images, `size` pixels square (0: as they are)."""
    with making(PublicImages, "public images", context, params=data.model_dump(include={"public"})) as draft:
        found = sources.load(
            data.public,
            part="all",
            size=size,
            channels=data.channels,
            glyphs_per_class=data.glyphs_per_class,
            seed=seed,
        )
        contents.save_images(draft.folder, found)
        draft.metrics = {"images": len(found), "classes": len(found.classes)}
    return draft.ref


@stage
def pretrain(
    images: PublicImages,
    schedule: Schedule,
    network: Network,
    pretraining: Pretraining,
    reference: float,
    seed: int,
    machine: Machine,
    context: RunContext,
) -> PublicModel:
    """Train the denoiser on D_pre, the public images outside the reference share."""
    with making(PublicModel, "public pretraining", context, parents=[images], params=pretraining.model_dump()) as draft:
        parts = split.split_public(contents.load_images(draft.open(images)), reference, seed, device_of(machine))
        model = build(network, parts.shape, parts.classes, seed=seed).to(device_of(machine))
        checkpoint_blocks(model, machine.checkpointing)
        trained, losses = train_denoiser(
            model, make_schedule(schedule), *parts.pre, pretraining, seed=seed, progress=draft.show
        )
        contents.save_denoiser(draft.folder, trained, network, parts.shape, parts.classes)
        draft.series = {"loss": split.thinned(losses)}
        contents.save_curve(draft.folder, draft.series["loss"])
    return draft.ref


@stage
def train_extractor(
    images: PublicImages,
    model: PublicModel,
    schedule: Schedule,
    retrieval: Retrieval,
    seed: int,
    machine: Machine,
    context: RunContext,
) -> FeatureExtractor:
    """Train the contrastive feature extractor on D_ref."""
    params = retrieval.model_dump()
    with making(FeatureExtractor, "feature extractor", context, parents=[images, model], params=params) as draft:
        device = device_of(machine)
        parts = split.split_public(contents.load_images(draft.open(images)), retrieval.reference, seed, device)
        encoder, losses = features.train_extractor(
            retrieval.extractor,
            make_schedule(schedule),
            contents.load_denoiser(draft.open(model), device),
            parts.reference[0],
            time=retrieval.time,
            seed=seed,
            progress=draft.show,
        )
        contents.save_encoder(draft.folder, encoder, retrieval.extractor, parts.shape)
        draft.series = {"loss": split.thinned(losses)}
        contents.save_curve(draft.folder, draft.series["loss"])
    return draft.ref


@stage
def build_knowledge_base(
    images: PublicImages,
    model: PublicModel,
    extractor: FeatureExtractor,
    schedule: Schedule,
    retrieval: Retrieval,
    seed: int,
    machine: Machine,
    context: RunContext,
) -> Trajectories:
    """Lay out the trajectories of D_ref and measure how well retrieval tells classes apart."""
    with making(Trajectories, "knowledge base", context, parents=[images, model, extractor]) as draft:
        device = device_of(machine)
        parts = split.split_public(contents.load_images(draft.open(images)), retrieval.reference, seed, device)
        denoise = contents.load_denoiser(draft.open(model), device)
        encoder = contents.load_encoder(draft.open(extractor), device)
        where_keys_are = {"time": retrieval.time, "seed": seed}
        base = knowledge_base.build_knowledge_base(
            make_schedule(schedule), denoise, encoder, *parts.reference, by_class=retrieval.by_class, **where_keys_are
        )
        asked = (base, make_schedule(schedule), denoise, encoder)
        accuracy, chance = knowledge_base.retrieval_accuracy(*asked, *parts.queries, **where_keys_are)
        recall = knowledge_base.search_recall(*asked, parts.queries[0], **where_keys_are)
        contents.save_base(draft.folder, base)
        draft.metrics = {"keys": len(base.keys), "search_recall": recall}
        draft.metrics |= {"retrieval_accuracy": accuracy, "retrieval_chance": chance}
    return draft.ref
