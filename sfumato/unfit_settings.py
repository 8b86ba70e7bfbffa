"""Settings that do not go together, each refused with a line that names them, before anything is priced or opened.

Not covered: whether the recipe of what is left is a good one, which the rehearsal looks at.
"""

import math

from sfumato.alignment import MOST_NUMBERS, refuse_size
from sfumato.backbone import LEAST_CLASSES, features_of
from sfumato.class_shares import number_of_classes
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.methods.plan import STAGE_DRAWING, Facts, Plan, counting, embedding_noise, matching
from sfumato.networks.autoencoder import latent_shape
from sfumato.privacy.accounting.accountant import epsilon
from sfumato.settings import Settings

FEWEST_IN_A_MEAN = 10
"""The fewest records, were they evenly spread, of which a central image may be the mean."""
FEWEST_IN_CLUSTER = 5
"""The fewest public images, were they evenly spread, that a cluster of them may have."""
LONGEST_NOISE = 0.5
"""Longest noise in a mean embedding, in lengths of an embedding of images that are all alike."""


def refuse_unfit(settings: Settings, facts: Facts) -> None:
    """`BadInput` where parts of the settings do not go together, or do not fit what is declared of the images."""
    if settings.network.prediction == "energy":
        raise BadInput(
            "network.prediction=energy is for the score network of dppm, which method.energy=exact gives it: use noise, velocity, sample or edm"
        )
    _refuse_classes(settings)
    _refuse_alignment(settings, facts)
    _refuse_central(settings, facts)
    _refuse_matching(settings, facts)


def refuse_unfit_plan(settings: Settings, plan: Plan) -> None:
    """`BadInput` where a part of the settings does not go with what the method does, by its plan."""
    _refuse_judge(settings, plan)
    _refuse_rates(settings, plan)
    if settings.generation.vary and plan.events(STAGE_DRAWING) and not plan.prototypes:
        raise BadInput(
            f"generation.vary={settings.generation.vary:g}: each image of method.name={plan.method} is paid for and leaves as it was paid: "
            "set generation.vary=0, or method.prototypes where the method has it"
        )


def _refuse_classes(settings: Settings) -> None:
    """Refuse other class shares where a method draws labels of its own, and counts that cost more than the target."""
    generation, privacy = settings.generation, settings.privacy
    if generation.classes == "uniform":
        return
    if METHODS[settings.method.name].labels:
        raise BadInput(
            f"method.name={settings.method.name} draws images with labels of their own, each class as often as it has learnt, so that "
            f"generation.classes={generation.classes} could not be kept: leave it at uniform"
        )
    alone = epsilon([spend.event for spend in counting(generation)], privacy.delta, privacy.relation)
    if alone >= privacy.epsilon:
        raise BadInput(
            f"generation.count_noise={generation.count_noise:g} makes the number of records of each class cost epsilon {alone:.4g} of "
            f"privacy.epsilon={privacy.epsilon:g} by itself: use more noise, or generation.classes=declared"
        )


def _refuse_judge(settings: Settings, plan: Plan) -> None:
    """Refuse a judge that could not learn, and a use of it that the method's drawing does not allow."""
    judge, facts = settings.judge, plan.facts
    if judge.use == "none":
        return
    use = f"judge.use={judge.use}"
    if len(facts.classes) < LEAST_CLASSES:
        raise BadInput(
            f"{use}: the private images are of {len(facts.classes)} class, which leaves a judge nothing to learn: judge.use=none"
        )
    if judge.directions > (width := features_of(settings.backbone)):
        raise BadInput(
            f"judge.directions={judge.directions} is more than the {width} features of backbone.width={settings.backbone.width}: "
            f"use at most {width}"
        )
    own_labels = METHODS[settings.method.name].labels is not None
    each_paid = plan.events(STAGE_DRAWING) and not plan.prototypes
    if judge.use == "filter" and (own_labels or each_paid):
        why = "pays for each image that it draws" if each_paid else "draws images with labels of their own"
        raise BadInput(
            f"{use}: method.name={plan.method} {why}, so that there is nothing to choose from: use judge.use=relabel"
        )
    if judge.use == "guide" and (own_labels or not plan.fine_tuning):
        raise BadInput(
            f"{use}: method.name={plan.method} does not draw by a denoiser of the private classes, which alone can be guided: "
            "use judge.use=relabel"
        )


def _refuse_rates(settings: Settings, plan: Plan) -> None:
    """Refuse candidates for the learning rate that leave nothing to choose, and for a method that trains nothing by DP-SGD."""
    rates = settings.fine_tuning.rates
    if not rates:
        return
    use = f"fine_tuning.rates=[{','.join(f'{rate:g}' for rate in rates)}]"
    if not plan.fine_tuning:
        raise BadInput(
            f"{use}: method.name={plan.method} trains nothing by DP-SGD with these settings, so that there is no rate to choose: use "
            "fine_tuning.rates=[]"
        )
    if len(rates) == 1:
        raise BadInput(
            f"{use} is one candidate, which needs no votes: set fine_tuning.rate_rows and fine_tuning.rate_other, or name 2 to 4"
        )
    if len({f"{rate:g}" for rate in rates}) < len(rates):
        raise BadInput(f"{use} names a candidate twice, which would be paid for twice: name each once")


def _refuse_alignment(settings: Settings, facts: Facts) -> None:
    """Refuse alignment of images with too many numbers, and for a method that does not draw the requested classes."""
    if settings.alignment.kind == "none":
        return
    if METHODS[settings.method.name].labels:
        raise BadInput(
            f"method.name={settings.method.name} draws images with labels of their own, and alignment.kind={settings.alignment.kind} "
            "takes back what was drawn for a known class: leave it at none"
        )
    refuse_size(latent_shape(settings.latent, facts.shape), len(facts.classes))


def refuse_selection(settings: Settings, facts: Facts, public_images: int) -> None:
    """Refuse a choice among public classes or so many images that leaves none out, or without a public denoiser that would learn from them."""
    selection = settings.selection
    if not selection.takes_votes:
        return
    name, *others = [one for one in ("classes", "sources", "clusters") if getattr(selection, one)]
    wanted = getattr(selection, name)
    use = f"selection.{name}={wanted}"
    if METHODS[settings.method.name].blueprint or not settings.pretraining.steps:
        why = (
            f"method.name={settings.method.name} begins afresh" if settings.pretraining.steps else "pretraining.steps=0"
        )
        raise BadInput(f"{use}: {why}, so that no denoiser learns from public images: use selection.{name}=0")
    if others:
        also = f"selection.{others[0]}={getattr(selection, others[0])}"
        raise BadInput(f"{use}: {also} chooses in another way, and a record votes once: set one of the two to 0")
    if selection.clusters == 1 or selection.clusters * FEWEST_IN_CLUSTER > public_images:
        raise BadInput(
            f"{use}: use at least 2, and at most {public_images // FEWEST_IN_CLUSTER} for {public_images} public images, or selection.clusters=0"
        )
    if selection.sources and not facts.sources:
        raise BadInput(
            f"{use}: data.public={settings.data.public!r} is one source, and no mixture such as glyphs+shapes: use selection.sources=0"
        )
    if selection.sources and wanted >= len(set(facts.sources)):
        raise BadInput(
            f"{use} of {len(set(facts.sources))} public sources leaves none out: use fewer, or selection.sources=0"
        )
    if selection.classes and wanted >= facts.public_classes:
        raise BadInput(
            f"{use} of {number_of_classes(facts.public_classes)} on the public side leaves none out: use fewer, or selection.classes=0"
        )


def _refuse_central(settings: Settings, facts: Facts) -> None:
    """Refuse central images for a method that they cannot warm up, of too few records, or of images with too many numbers."""
    central, method = settings.central, METHODS[settings.method.name]
    if not central.images:
        return
    use = f"central.images={central.images}"
    if not method.corrupt or method.blueprint:
        raise BadInput(
            f"{use}: method.name={settings.method.name} does not train the public denoiser by DP-SGD, which alone they warm up: "
            "central.images=0"
        )
    if settings.alignment.kind != "none":
        raise BadInput(
            f"{use}: alignment.kind={settings.alignment.kind} pays for the means of the classes already, and moves all classes to where the public "
            "images lie: use alignment.kind=none, or central.images=0"
        )
    if (numbers := math.prod(latent_shape(settings.latent, facts.shape))) > MOST_NUMBERS:
        raise BadInput(
            f"{use} of {numbers} numbers each: at most {MOST_NUMBERS} are measured; denoise smaller latents (latent.kind=kl)"
        )
    sums = central.images if central.of == "cells" else 1 / central.sample_rate
    if (each := facts.records / len(facts.classes) / sums) < FEWEST_IN_A_MEAN:
        way = "use fewer" if central.of == "cells" else "raise central.sample_rate"
        raise BadInput(
            f"{use} (central.of={central.of}) of {len(facts.classes)} classes of {facts.private} would be means of {each:.3g}, and noise hides what "
            f"fewer than {FEWEST_IN_A_MEAN} have in common: {way}, or central.images=0"
        )


def _refuse_matching(settings: Settings, facts: Facts) -> None:
    """Refuse mean embeddings to match for a method whose images they cannot move, and for classes of which noise alone would be left."""
    method, how = METHODS[settings.method.name], settings.matching
    if not how.share:
        return
    use = f"matching.share={how.share:g}"
    if not method.images_may_move(settings):
        reason = (
            "has them already"
            if method.embeds
            else "draws labels of its own"
            if method.labels
            else "pays for each image, whose private steps say where it lies"
        )
        keep = ", or keep paid points and draw from them (docs/methods.md#matching)" if method.keeps_points else ""
        raise BadInput(
            f"{use}: method.name={settings.method.name} {reason}, so that nothing is left to match: matching.share=0{keep}"
        )
    (spend,) = matching(how, settings.privacy)
    each = facts.records / len(facts.classes)
    length = embedding_noise(how, each, spend.event.model_dump()["noise_multiplier"])
    if length > LONGEST_NOISE:
        raise BadInput(
            f"{use} with matching.frequencies={how.frequencies}: in classes of {each:.3g} of {facts.private} the noise has {length:.2g} of the length "
            f"of an embedding, and {LONGEST_NOISE:g} is the most: use fewer frequencies, or matching.share=0"
        )
