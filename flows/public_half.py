"""The public half of a run: its images, the networks that learn from them, and their rehearsal; nothing private is read for it."""

from artifacts.references import (
    PublicBackbone,
    PublicClassifier,
    PublicImages,
    Rehearsal,
)
from sfumato import sources
from sfumato.config import Data, Network
from sfumato.methods.plan import (
    Plan,
)
from sfumato.preflight import brought_to, public_name
from sfumato.recipe.stage_costs import has_public_model, needs_backbone
from sfumato.settings import Settings
from tasks import (
    pretrained,
    public,
)
from tasks.inputs import Judging, PublicParts, TrainingSet
from tasks.runtime.run import Journal


def load_images(settings: Settings, plan: Plan, journal: Journal, note: str = "") -> PublicImages:
    """The public images, with which the private ones are compared before anything is trained."""
    content = sources.fingerprint(settings.data.public, folder=settings.data.folder)
    return journal.stage(public.load_public, note=note)(*read_as(settings, plan), settings.seed, content)


def read_as(settings: Settings, plan: Plan) -> tuple[Data, int]:
    """How public images are read: with the channels of the private ones, and at their size."""
    size, channels = brought_to(plan.facts.shape)
    return settings.data.model_copy(update={"channels": channels}), size


def without_noise(settings: Settings, plan: Plan, images: PublicImages, journal: Journal) -> PublicImages:
    """The public images before any noise of `data.public_noise`, which would hide a private one among them."""
    if not settings.data.public_noise:
        return images
    clean = settings.model_copy(update={"data": settings.data.model_copy(update={"public_noise": 0.0})})
    return load_images(clean, plan, journal, note="before their noise")


def encode(settings: Settings, images: PublicImages, journal: Journal) -> TrainingSet:
    """The public images as the denoisers will see them: through an autoencoder, where the settings want one."""
    seed, machine, coder = settings.seed, settings.machine, None
    if settings.latent.kind != "none":
        backbone = train_backbone(settings, images, journal) if settings.latent.perceptual else None
        if settings.latent.from_:
            own_scale = bool(settings.network.from_)
            coder = journal.stage(pretrained.load_autoencoder)(images, settings.latent, own_scale, seed, machine)
        else:
            coder = journal.stage(public.train_autoencoder)(images, settings.latent, seed, machine, backbone)
    return TrainingSet(images=images, autoencoder=coder, seed=seed, machine=machine)


def train_backbone(settings: Settings, images: PublicImages, journal: Journal) -> PublicBackbone:
    """The backbone of the public images; reused by every run with the same settings of it."""
    return journal.stage(public.train_backbone)(images, settings.backbone, settings.seed, settings.machine)


def prepare(settings: Settings, plan: Plan, shown: TrainingSet, journal: Journal) -> PublicParts:
    """The public half after the autoencoder: denoiser, and where the plan retrieves, extractor and knowledge base."""
    schedule, coder = settings.schedule, shown.autoencoder
    reference = plan.retrieval.reference if plan.retrieval else 0.0
    network: Network = settings.network
    model = journal.stage(pretrained.load_denoiser)(shown, schedule, network) if network.from_ else None
    if model is None or settings.pretraining.steps:
        model = journal.stage(public.pretrain)(shown, schedule, network, settings.pretraining, reference, model)
    moments = journal.stage(public.measure)(shown, plan.measured) if plan.measured else None
    own = journal.stage(public.train_start)(shown, schedule, plan.own_start) if plan.own_start else None
    if plan.retrieval is None:
        needed = shown.images if plan.public_images or plan.images_of_ballot else None
        compared = plan.evolution and plan.evolution.features == "backbone"
        summed = plan.embedding and plan.embedding.features == "perceptual"
        backbone = train_backbone(settings, shown.every, journal) if compared or summed else None
        return PublicParts(model=model, autoencoder=coder, images=needed, moments=moments, backbone=backbone, own=own)
    extractor = None
    if plan.retrieval.time:
        extractor = journal.stage(public.train_extractor)(shown, model, schedule, plan.retrieval)
    base = journal.stage(public.build_knowledge_base)(shown, model, extractor, schedule, plan.retrieval)
    return PublicParts(model=model, autoencoder=coder, extractor=extractor, base=base, moments=moments)


def train_eyes(settings: Settings, images: PublicImages, journal: Journal) -> PublicClassifier:
    """The CNN of public images alone in whose features the rehearsal, and by default the scores, compare images.

    Paid stages do not depend on it, so that scores in other features cost nothing.
    """
    source = public_name(settings.data)
    return journal.stage(public.train_classifier)(images, source, settings.seed, settings.machine)


def backbone_of(
    settings: Settings, images: PublicImages, judge: Judging | None, journal: Journal
) -> PublicBackbone | None:
    """The public backbone, in whose features images are compared too, where the run has trained one."""
    if judge:
        return judge.backbone
    return train_backbone(settings, images, journal) if needs_backbone(settings) else None


def rehearse(
    settings: Settings, parts: PublicParts | None, shown: TrainingSet, eyes: PublicClassifier, journal: Journal
) -> Rehearsal:
    """Test the public half, or without `parts` the autoencoder alone, on public images that no stage learnt from; independent of the number of
    images and of the edition."""
    if shown.whole:  # classes are numbered anew
        eyes = train_eyes(settings, shown.images, journal)
    return journal.stage(public.rehearse)(
        shown,
        parts.model if parts and has_public_model(settings) else None,
        parts.base if parts else None,
        eyes,
        settings.schedule,
        settings.generation.model_copy(update={"images": settings.rehearsal.images}),
    )
