"""What the recipe chooses for the method's own settings, by what it declares of itself, and for the drawing.

Not covered: what it costs in time, and how many images that allows (`sfumato.recipe.auto`).
"""

import math
from collections.abc import Iterator

from sfumato.methods import METHODS
from sfumato.recipe.averaging import averages_of, branches, number_of
from sfumato.recipe.embedding import latent_generator
from sfumato.recipe.ensemble import drawing_of, draws_any_number, members_of
from sfumato.recipe.picks import Pick
from sfumato.recipe.presumed import Designing, Retrieving, averaging, retrieving
from sfumato.recipe.private_steps import RICH
from sfumato.recipe.stage_costs import Declared, strokes, target_epsilon, writing
from sfumato.retrieval.choice import recipe_of, times_above
from sfumato.settings import Settings

FEW_PIXELS = 64
"""Pixels up to which a walk among them has times of its own."""
TIMES = {"pixels": (0.5, 0.4), "latents": (0.7, 0.6)}
"""Times k, where a trajectory is retrieved, and v, below which a private walk trains."""
NEAREST, REFERENCE = 5, 0.3
"""Neighbours that are averaged, and the share of the public images that the base keeps."""
VOTES_FROM, VOTE_NOISE = 2.0, 6.0
"""Target epsilon from which votes are affordable with this noise; below, they get more in proportion."""
DISTILLATION_RATE = 0.25
"""Of the rate at which the public denoiser learnt, where it goes on with candidates that have votes."""
VARIED = 0.2
"""Largest angle, in radians, by which drawn strokes vary. From scikit-learn's digits as they are, enlarged to 28x28, with other hands to read: a CNN
learnt .989 where it learnt .971, no easier to tell from real ones, at a Frechet distance of 14.4 in place of 13.0; from .3 no more, at 19.0
(docs/results/quality.md)."""
SMALL_EPSILON, GUIDANCE = 1.5, (1.0, 0.5)
"""Target epsilon below which a weak class condition wants more guidance; and how much there and above, where little is learnt of the classes."""
SAMPLING_STEPS = 30
"""Of a solver that is made for few."""


def method(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """The method's own settings, by what it declares of itself."""
    own = METHODS[settings.method.name]
    if retrieval := retrieving(settings):
        yield from _retrieval(retrieval, settings, declared)
    if own.evolves:
        learnt = settings.pretraining
        yield Pick("method.distillation.batch", learnt.batch, "as the public denoiser learnt")
        rate = learnt.learning_rate * DISTILLATION_RATE
        yield Pick("method.distillation.learning_rate", rate, "a part of the rate at which the public denoiser learnt")
    if own.has_members:
        yield from members_of(settings, declared)
    elif averaging(settings):
        yield from averages_of(settings, declared)
    if own.embeds:
        yield Pick("pretraining.steps", 0, "the generator is begun afresh, and asks no public denoiser")
        if settings.latent.kind != "none":
            yield from latent_generator(own.embeds(settings), declared.shape[0])
    elif own.blueprint:
        yield Pick("pretraining.steps", 0, "its network is its own, and asks no public denoiser")
        if isinstance(settings.method, Designing):
            yield Pick("method.network.kind", "mlp", "its sampler asks the network thousands of times")
            if settings.method.training.batch > (records := declared.facts.records):
                yield Pick("method.training.batch", records, "there are no more records")


def _retrieval(own: Retrieving, settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Where the walk begins and ends, and which trajectory of the base it begins from."""
    facts, epsilon = declared.facts, target_epsilon(settings)
    few_pixels = settings.latent.kind == "none" and math.prod(declared.shape) <= FEW_PIXELS
    k, v = TIMES["pixels" if few_pixels else "latents"]
    above = own.v if "method.v" in declared.set_fields else v
    chosen_by_hand = {"method.k", "method.neighbour"} & declared.set_fields
    times = () if chosen_by_hand else times_above(above, facts.learnt_classes)
    if not times:
        yield Pick("method.k", k, "at larger times a latent is noise, and retrieval a guess")
    photographs = declared.shape[0] > 1 and not writing(settings)
    for chosen in recipe_of(times, facts.learnt_classes, photographs=photographs):
        yield Pick(f"method.{chosen.name}", chosen.value, chosen.why)
    yield Pick("method.v", v, "a long private walk learns more")
    yield Pick("method.nearest", NEAREST, f"the mean of {NEAREST} neighbours is steadier than one")
    aligned = settings.alignment.kind != "none"
    among, nearest = "aligned classes lie among all public ones", "each class begins at the public class nearest to it"
    yield Pick("method.votes", facts.learnt_classes > 1 and not aligned, among if aligned else nearest)
    noise = VOTE_NOISE * max(1.0, VOTES_FROM / epsilon)
    yield Pick("method.vote_noise", noise, f"small beside epsilon {epsilon:g}")
    distinct = facts.learnt_classes >= 2 * len(facts.classes) and not aligned
    yield Pick("method.distinct", distinct, f"classes: {facts.learnt_classes} public, {len(facts.classes)} private")
    yield Pick("method.reference", REFERENCE, "the rest of the public images trains the denoiser")


def drawing(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Settings of the drawing, where the number of images is not paid for."""
    pixels, chosen_method = settings.latent.kind == "none", METHODS[settings.method.name]
    why = "a class of strokes as drawn varies less than hands do"
    varies = [Pick("generation.vary", VARIED, why)] if not pixels and strokes(settings, declared) else []
    if chosen_method.has_members:
        yield from drawing_of(settings, declared)
        yield from varies if draws_any_number(settings, declared) else []
        return
    if chosen_method.draw_privately:
        yield number_of(settings)
        yield from varies if branches(settings) else []
        return
    yield Pick("generation.solver", "dpm++", f"made for few steps: {SAMPLING_STEPS} do")
    yield Pick("generation.steps", SAMPLING_STEPS, "more change little")
    few = pixels and target_epsilon(settings) * declared.facts.records < RICH and len(declared.facts.classes) > 1
    guidance = GUIDANCE[target_epsilon(settings) >= SMALL_EPSILON] if few else 0.0
    why = "little is learnt of the classes: guidance helps" if guidance else "without guidance images teach most"
    if not chosen_method.needs_moments:  # whose classes are told apart by their moments alone
        yield Pick("generation.guidance", guidance, why)
    yield from varies
