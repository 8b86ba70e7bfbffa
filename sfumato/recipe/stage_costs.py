"""What one step of each stage costs by the fixed table, for the recipe: seconds from declared facts and settings alone.

Not covered: how long this machine takes, which is `sfumato.recipe.estimate`.
"""

import math
from dataclasses import dataclass

from sfumato.costs import (
    BILLION,
    COSTS,
    HEAD_FEATURES,
    PER_RECORD,
    TRAINING,
    Cost,
    Work,
    autoencoder_work,
    backbone_work,
    denoiser_work,
    drawing_seconds,
    training_seconds,
)
from sfumato.methods import METHODS
from sfumato.methods.plan import Facts
from sfumato.methods.sampling import network_evaluations
from sfumato.networks.autoencoder import Shape, latent_shape
from sfumato.networks.build import resolved
from sfumato.recipe.presumed import Ensemble, ensemble, retrieving
from sfumato.settings import Settings
from sfumato.sources import parts_of

VIEW_SECONDS = 2e-4
"""Seconds per view of the extractor, its encoder included; on a CPU."""

STROKES = frozenset({"digits", "emnist-letters", "glyphs", "kmnist", "mnist", "omniglot"})
"""Images by name that are strokes, of which few numbers keep all; of photographs, grey ones too, they lose what a classifier reads."""

USUAL_EPSILON = 10.0
"""The time of the public half is computed for this target, whatever the actual one, so that runs at other targets reuse the public half."""


@dataclass(frozen=True)
class Declared:
    """The facts that a recipe may depend on; all of them public or declared."""

    facts: Facts
    public_images: int
    set_fields: frozenset[str] = frozenset()
    """The settings that a person or a preset has set, as `section.field`."""

    @property
    def shape(self) -> Shape:
        """Channels, height and width of an image."""
        return self.facts.shape


def strokes(settings: Settings, declared: Declared) -> bool:
    """Whether the images are strokes, going by the public ones."""
    return declared.shape[0] == 1 and writing(settings)


def writing(settings: Settings) -> bool:
    """Whether the public images are characters, in colour or not."""
    return set(parts_of(settings.data.public)) <= STROKES


def target_epsilon(settings: Settings) -> float:
    """The target that choices follow; at an infinite one the usual, so that a run without noise has the recipe of one with noise."""
    epsilon = settings.privacy.epsilon
    return USUAL_EPSILON if epsilon == math.inf else epsilon


def trains_privately(settings: Settings) -> bool:
    """Whether the method trains by DP-SGD."""
    return METHODS[settings.method.name].corrupt is not None


def batch_of(settings: Settings, declared: Declared) -> float:
    """Expected records in a private step."""
    tuning = settings.fine_tuning
    return tuning.batch or tuning.sample_rate * declared.facts.records


def needs_backbone(settings: Settings) -> bool:
    """Whether a stage of these settings needs the public classifier."""
    method = METHODS[settings.method.name]
    compared = method.evolves is not None and method.evolves(settings).features == "backbone"
    summed = method.embeds is not None and method.embeds(settings).features == "perceptual"
    perceptual = settings.latent.kind != "none" and settings.latent.perceptual > 0
    classified = settings.selection.classes > 0 or settings.selection.sources > 0
    return compared or summed or perceptual or settings.judge.use != "none" or classified


def has_public_model(settings: Settings) -> bool:
    """Whether images are drawn by a model that learnt from public ones first: private training may begin afresh."""
    learnt = settings.pretraining.steps > 0 or settings.network.from_
    return bool(learnt) and not METHODS[settings.method.name].blueprint


def stage_costs(settings: Settings, declared: Declared) -> dict[str, float]:
    """Seconds of one step of each stage that these settings have, and of one image, by the table."""
    table, latent, facts = COSTS[settings.recipe.device], settings.latent, declared.facts
    chosen_method = METHODS[settings.method.name]
    shape = latent_shape(latent, declared.shape)
    network = resolved(settings.network, shape[1])
    cost, work = table[network.kind], denoiser_work(network, shape, facts.learnt_classes)
    costs = {}
    if latent.kind != "none" and not latent.from_:
        costs["latent"] = training_seconds(table[latent.kind], autoencoder_work(latent, declared.shape), latent.batch)
    if settings.pretraining.steps:
        costs["pretraining"] = training_seconds(cost, work, settings.pretraining.batch)
    if own := retrieving(settings):
        views = 2 * own.extractor.batch
        costs["extractor"] = drawing_seconds(cost, work, views) + table["extractor"].step + views * VIEW_SECONDS
        if own.neighbour == "nearest":
            looks = max(1, len(own.times)) * own.query.key_draws
            costs["trajectories"] = drawing_seconds(cost, work, looks) + looks * VIEW_SECONDS / TRAINING
    if needs_backbone(settings):
        seen = backbone_work(settings.backbone, declared.shape, facts.public_classes)
        costs["backbone"] = training_seconds(table["backbone"], seen, settings.backbone.batch)
    if trains_privately(settings):
        costs["fine_tuning"] = settings.fine_tuning.trainings * private_step(settings, declared, cost, work)
    if evolves := chosen_method.evolves:
        costs["distillation"] = training_seconds(cost, work, evolves(settings).training.batch)
        looked_at = (
            drawing_of_codec(settings, declared, table)
            + costs.get("backbone", 0.0) / settings.backbone.batch / TRAINING
        )
        costs["candidates"] = drawing_seconds(cost, work, network_evaluations(settings, guided=False)) + looked_at
    if own_members := ensemble(settings):
        costs |= ensemble_costs(own_members, settings, declared, cost, work)
    if embeds := chosen_method.embeds:
        how = embeds(settings)
        costs["training"] = training_seconds(cost, work, how.training.batch)
        if how.features == "perceptual":  # of each drawn image too the features are taken, and their gradients
            looked_at = costs["backbone"] / settings.backbone.batch + TRAINING * drawing_of_codec(
                settings, declared, table
            )
            costs["training"] += how.training.batch * looked_at
    if not chosen_method.draw_privately or "prototypes" in costs:
        walk = 1 if chosen_method.embeds else network_evaluations(settings)
        drawn = 1 / settings.judge.keep if settings.judge.use == "filter" else 1.0
        costs["drawing"] = drawn * (drawing_seconds(cost, work, walk) + drawing_of_codec(settings, declared, table))
    return costs


def ensemble_costs(own: Ensemble, settings: Settings, declared: Declared, cost: Cost, work: Work) -> dict[str, float]:
    """Seconds of one step of all members, of one paid image in each class, and of one step of what learns from these."""
    numbers, forward = math.prod(latent_shape(settings.latent, declared.shape)), drawing_seconds(cost, work, 1)
    head = (HEAD_FEATURES + 1) * numbers * own.adapters / BILLION * COSTS[settings.recipe.device]["mlp"].work
    batch, answer = own.training.batch, own.members * (head if own.adapters else forward)
    together = batch * own.members * (forward + TRAINING * head)
    alone = own.members * training_seconds(cost, work, batch)
    costs = {"members": together if own.adapters else alone}
    if "method.prototypes" in declared.set_fields and not own.prototypes:
        return costs
    walk = settings.generation.steps * (2 if settings.generation.guidance else 1)
    return costs | {
        "prototypes": len(declared.facts.classes) * walk * (forward + answer),
        "distillation": training_seconds(cost, work, own.distillation.batch),
    }


def private_step(settings: Settings, declared: Declared, cost: Cost, work: Work) -> float:
    """Seconds of one step of DP-SGD; a method with retrieval also evaluates the public denoiser."""
    tuning = settings.fine_tuning
    copies = batch_of(settings, declared) * tuning.draws * (tuning.images_per_group if declared.facts.unit else 1)
    looked_up = drawing_seconds(cost, work, copies) if METHODS[settings.method.name].retrieves else 0.0
    return training_seconds(cost, work, copies * PER_RECORD) + looked_up


def drawing_of_codec(settings: Settings, declared: Declared, table: dict[str, Cost]) -> float:
    """Seconds of decoding one image."""
    if settings.latent.kind == "none":
        return 0.0
    return drawing_seconds(table[settings.latent.kind], autoencoder_work(settings.latent, declared.shape), 0.5)
