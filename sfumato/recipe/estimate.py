"""An estimate of time and memory of every stage of a plan, from a few timed steps on the machine that will do the work.

The estimate changes no setting. Not covered: other work on the machine, and downloads.
"""

import math
from dataclasses import dataclass

from sfumato import sources
from sfumato.central import BATCH as CENTRAL_BATCH
from sfumato.costs import COSTS, TRAINING
from sfumato.evaluation.classifier import BATCH_IMAGES, default_steps
from sfumato.evaluation.effort import FEW, judging_seconds
from sfumato.evaluation.nearest import MOST_PUBLIC
from sfumato.held_out import MOST, SHARE
from sfumato.matching import FEWEST
from sfumato.methods.plan import STAGE_VOTES, Plan
from sfumato.methods.sampling import network_evaluations
from sfumato.networks.autoencoder import Shape, latent_shape
from sfumato.rates import COPIES
from sfumato.recipe.judging import FULL_ALONE, judged_sets
from sfumato.recipe.probe import BYTES, Probe
from sfumato.recipe.stage_costs import has_public_model, needs_backbone
from sfumato.recipe.step_seconds import StepSeconds, step_seconds
from sfumato.rehearsal import set_size
from sfumato.settings import Settings

CHECKS = 1.1
"""Spot checks and bookkeeping, in private steps without."""
OVERHEAD_SECONDS = 20.0
"""Start of the server, reading, reporting."""
PUBLIC_IMAGES = 20_000
"""Assumed number of public images where it is unknown."""
PUBLIC_STAGES = (
    "autoencoder",
    "backbone",
    "denoiser",
    "own network",
    "extractor",
    "knowledge base",
    "features",
    "rehearsal",
)
COPIES_OF_WEIGHTS, COPIES_READ, COPIES_DRAWN = 10, 2, 2
"""Times that weights (with gradients, the optimiser's state, the average), images that are read, and drawn images are in memory at once."""
DRAWN_SECONDS = 3.5e-7
"""Seconds to draw one pixel of a public image, in colour and then in grey, and to look at it."""
VIEW_SECONDS = 1.0e-7
"""Seconds per number of a rotated, scaled and shifted view."""
CONTRAST_SECONDS = 1.5e-7
"""Seconds per pair of images that the contrastive loss compares."""
BASE_GIGABYTES = 1.0
"""Memory of the program itself."""


@dataclass(frozen=True)
class Estimate:
    """Rough figures, for planning."""

    stages: tuple[tuple[str, float], ...]
    """Seconds of each stage, in the order of the run."""
    gigabytes: float

    @property
    def minutes(self) -> float:
        """All stages, and what lies between them."""
        return (sum(seconds for _, seconds in self.stages) + OVERHEAD_SECONDS) / 60

    @property
    def public_minutes(self) -> float:
        """Minutes of the stages on public images alone, whose results another run with the same public settings reuses."""
        return sum(seconds for name, seconds in self.stages if name in PUBLIC_STAGES) / 60


@dataclass(frozen=True)
class Outline:
    """What all stages are counted from."""

    settings: Settings
    plan: Plan
    each: StepSeconds
    probe: Probe

    @property
    def public(self) -> int:
        """Public images."""
        return self.settings.recipe.public_images or PUBLIC_IMAGES

    @property
    def private(self) -> int:
        """Private images."""
        return self.plan.facts.images or self.plan.facts.records

    @property
    def image(self) -> Shape:
        """Channels, height and width of an image."""
        return self.plan.facts.shape

    @property
    def shape(self) -> Shape:
        """Channels, height and width of what the denoiser draws."""
        return latent_shape(self.settings.latent, self.image)

    @property
    def chosen(self) -> float:
        """The share of drawn images that a judge keeps."""
        return self.plan.judge.keep if self.plan.judge and self.plan.judge.use == "filter" else 1.0

    def drawn(self, *, guided: bool = True) -> float:
        """Seconds in which the denoiser draws one image, decoded."""
        return network_evaluations(self.settings, guided=guided) * self.each.forward + self.each.half_coder


def estimate(settings: Settings, plan: Plan, *, gpu: bool = False) -> Estimate:
    """Time and memory of the whole plan, stage by stage, on this machine or on its GPU; a factor of 1.5 either way is normal."""
    probe = Probe(COSTS["gpu" if gpu else "cpu"], times=not gpu)
    run = Outline(settings, plan, step_seconds(settings, plan, probe), probe)
    stages = preparation(run) | learning(run) | private_steps(run) | drawing(run) | looking(run)
    return Estimate(tuple(stages.items()), gigabytes(run))


def preparation(run: Outline) -> dict[str, float]:
    """Seconds of what comes before the method: public training, and the judge and the moments, which read private images once."""
    settings, plan, each = run.settings, run.plan, run.each
    latent, stages = settings.latent, {}
    if latent.kind != "none":
        steps = 0 if latent.from_ else latent.steps
        stages["autoencoder"] = each.coder.seconds(steps, latent.batch) + run.public * each.coder.reading
    if needs_backbone(settings):
        stages["backbone"] = each.backbone.seconds(settings.backbone.steps, settings.backbone.batch)
        if latent.kind != "none" and latent.perceptual:
            stages["autoencoder"] += latent.steps * latent.batch * each.backbone.step
        if settings.judge.use != "none":
            # The private images once, and the drawn ones twice: to label them, and to see where the judge agrees.
            stages["judge"] = (run.private + 2 * plan.generation.images) * each.backbone.reading
    if plan.facts.clusters and sources.is_drawn(settings.data.public):
        stages["search for public images"] = settings.selection.candidates * math.prod(run.image[1:]) * DRAWN_SECONDS
    stages["denoiser"] = each.denoiser.seconds(settings.pretraining.steps, settings.pretraining.batch)
    if base := plan.retrieval:
        view = each.extractor + each.forward + each.half_coder + math.prod(run.image) * VIEW_SECONDS
        if base.time:
            pairs = CONTRAST_SECONDS * base.extractor.batch**2
            stages["extractor"] = base.extractor.steps * (2 * base.extractor.batch * view + pairs)
        looks = len(base.measured_times) * base.query.key_draws if base.time else 0
        images = run.public * base.reference
        keyed = min(images, base.trajectories or images)
        key = each.forward + each.extractor / TRAINING
        stages["knowledge base"] = keyed * looks * key + images * each.half_coder
    if settings.alignment.kind != "none" or plan.central:
        products = run.probe.products(math.prod(run.shape) ** 2)
        stages["moments"] = (run.public + run.private) * (each.half_coder + products)
    return stages


def learning(run: Outline) -> dict[str, float]:
    """Seconds of training without clipping: of what a method has of its own, before or in place of private steps."""
    plan, each, stages = run.plan, run.each, {}
    if own := plan.own_start:
        stages["own network"] = each.own.seconds(own.training.steps, own.training.batch)
    if first := plan.phase_one:
        stages["first phase"] = each.denoiser.seconds(first.training.steps, first.training.batch)
    if warm := plan.central:
        stages["warm-up"] = each.denoiser.seconds(warm.steps, CENTRAL_BATCH)
    if how := plan.evolution:
        rounds = len(plan.events(STAGE_VOTES))
        walk = network_evaluations(run.settings, guided=False) * each.forward
        shown = each.half_coder + each.backbone.reading
        stages["candidates"] = how.candidates * (walk + rounds * (shown + how.variation * walk))
        stages["votes"] = rounds * run.private * shown
        stages["distillation"] = each.denoiser.seconds(how.training.steps, how.training.batch)
    if embedded := plan.embedding:
        training = embedded.training
        looked_at = each.backbone.step + TRAINING * each.half_coder if embedded.features == "perceptual" else 0.0
        stages["training"] = (
            each.own.seconds(training.steps, training.batch) + training.steps * training.batch * looked_at
        )
    if plan.plain:
        stages["training"] = each.own.seconds(plan.plain.steps, plan.plain.batch)
    if members := plan.members:
        training = members.training
        one = each.denoiser.seconds(training.steps, training.batch)
        if members.adapters:  # the network is only asked, and the heads beside it are small
            head = run.probe.head(run.shape, members.adapters)
            one = training.steps * training.batch * (each.forward + TRAINING * head)
        stages[f"{members.count} members"] = members.count * one
    if plan.distillation:
        stages["distillation"] = each.denoiser.seconds(plan.distillation.steps, plan.distillation.batch)
    return stages


def private_steps(run: Outline) -> dict[str, float]:
    """Seconds of DP-SGD, and of the votes that choose its rate."""
    plan, tuning, stages = run.plan, run.settings.fine_tuning, {}
    if plan.fine_tuning:
        retrieves = bool(plan.retrieval and plan.retrieval.time)
        looked_up = tuning.steps * copies_of(run) * run.each.forward * retrieves
        stages["DP-SGD"] = tuning.trainings * (one_training(run) + looked_up)
        if tuning.rates:
            stages["votes for rates"] = plan.facts.records * COPIES * (tuning.trainings + retrieves) * run.each.forward
    return stages


def one_training(run: Outline) -> float:
    """Seconds of all steps of DP-SGD: gradients clipped record by record, as they are computed on this machine, and noise."""
    each, steps = run.each, run.settings.fine_tuning.steps
    private = steps * (copies_of(run) * each.clipped * CHECKS + each.noise + each.denoiser.update)
    return private + run.plan.facts.records * each.half_coder


def copies_of(run: Outline) -> float:
    """Noised copies of private images in a step."""
    tuning, facts = run.settings.fine_tuning, run.plan.facts
    expected = tuning.batch or facts.records * tuning.sample_rate
    return expected * tuning.draws * (tuning.images_per_group if facts.unit else 1)


def drawing(run: Outline) -> dict[str, float]:
    """Seconds of the images that leave, and of those that are drawn to compare them with."""
    settings, plan, each = run.settings, run.plan, run.each
    images = plan.generation.images
    seconds = images / run.chosen * (plan.evaluations * each.own_forward + each.half_coder)
    if plan.members and plan.members.adapters:
        guided = 2 if plan.generation.guidance else 1
        answers = plan.members.count * guided * settings.generation.steps * (plan.prototypes or images)
        seconds += answers * run.probe.head(run.shape, plan.members.adapters)
    if plan.generation.refine:
        seconds += images * plan.generation.refine_steps * each.forward
    stages = {"drawing": seconds + images * plan.comparisons * each.compared}
    if plan.matching:
        stages["matching"] = max(images, FEWEST * len(plan.facts.classes)) * plan.matching.steps * each.moved
    judged = min(settings.evaluation.images, images)
    compared = min(judged, FEW) * run.drawn(guided=False) if has_public_model(settings) else 0.0
    if plan.fine_tuning:
        compared += len(plan.fine_tuning.averages) * judged * run.drawn()
    if judged_sets(settings, plan.facts).full > FULL_ALONE:
        compared += judged * run.drawn() + one_training(run)
    return stages | {"drawing for comparison": compared}


def looking(run: Outline) -> dict[str, float]:
    """Seconds of the rehearsal and of all scores."""
    settings, plan, each = run.settings, run.plan, run.each
    judged, sizes = min(settings.evaluation.images, plan.generation.images), judged_sets(settings, plan.facts)
    held_out = min(MOST, round(run.public * SHARE))
    samples = set_size(held_out, settings.rehearsal.images) if has_public_model(settings) else 0
    rehearsed = samples * (run.drawn(guided=False) + 2 * each.small_cnn + each.coder.reading)
    seen = (sizes.full + sizes.brief + sizes.ceilings) * judged * (each.backbone.reading + each.half_coder)
    return {
        "features": default_steps(run.public) * BATCH_IMAGES * each.small_cnn * TRAINING,
        "rehearsal": rehearsed + held_out * (each.small_cnn + each.coder.reading),
        "judging": judging_seconds(settings.evaluation, sizes, judged, run.probe.table) * run.probe.slower + seen,
        "nearest public images": min(run.public, MOST_PUBLIC) * (each.backbone.reading or each.small_cnn),
        "copies": run.probe.products(plan.generation.images * (run.private + sizes.test) * math.prod(run.image)),
    }


def gigabytes(run: Outline) -> float:
    """Memory of the run at its fullest."""
    settings, plan = run.settings, run.plan
    weights = COPIES_OF_WEIGHTS
    if plan.fine_tuning or settings.evaluation.baseline:
        weights += settings.machine.physical_batch  # a gradient of each record
    images = COPIES_READ * (run.public + run.private) + COPIES_DRAWN * plan.generation.images / run.chosen
    return (weights * run.each.own.work.weights + images * math.prod(run.image)) * BYTES / 1e9 + BASE_GIGABYTES
