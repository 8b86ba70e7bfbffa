"""A tiny world for methods: sixty private digits, a few hundred glyphs, networks that train in a second."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from sfumato import adapters, embedding, evolution, fourier, rates, sources
from sfumato.alignment import Reference, fitted, measured
from sfumato.backbone import Backbone, train_backbone
from sfumato.central import central_images, warmed
from sfumato.config import BackboneSettings
from sfumato.diffusion.schedule import make_schedule
from sfumato.drawing import private_drawing
from sfumato.images import ImageSet, to_unit
from sfumato.label_rows import start_learnt
from sfumato.latents import PIXELS, train_autoencoder
from sfumato.methods import METHODS
from sfumato.methods.algorithm import begun
from sfumato.methods.parts import Parts, add_votes, untuned
from sfumato.methods.plan import (
    STAGE_CENTRAL,
    STAGE_DRAWING,
    STAGE_EMBEDDING,
    STAGE_MOMENTS,
    STAGE_PHASE_ONE,
    STAGE_RATES,
    STAGE_TRAINING,
    STAGE_TUNING,
    STAGE_VOTES,
    Facts,
    Plan,
)
from sfumato.networks.build import build
from sfumato.partition import Partition
from sfumato.preflight import plan_for, preflight, private_set
from sfumato.privacy.accounting.events import MomentEvents
from sfumato.privacy.door import Access
from sfumato.privacy.mechanisms import (
    drawn,
    fine_tuned,
    noised_records,
    noisy_embedding,
    noisy_moments,
    noisy_sums,
    noisy_votes,
    unprotected,
)
from sfumato.privacy.shards import shard_trained, shards_trained
from sfumato.retrieval.features import FeatureMap, OneStep, train_extractor
from sfumato.retrieval.knowledge_base import base_without_keys, build_knowledge_base
from sfumato.retrieval.settings import Extractor
from sfumato.retrieval.split import split_public
from sfumato.settings import Settings, resolve
from sfumato.training import denoiser_training, pretrain, train_on_noised, unlabelled_losses

TINY = [
    "data.share=0.0405", "data.glyphs_per_class=8", "schedule.timesteps=50", "network.width=16", "network.blocks=1",
    "network.condition=8", "pretraining.steps=60", "pretraining.batch=64", "pretraining.warm_up=5",
    "pretraining.ema_decay=0.5", "pretraining.learning_rate=1e-2", "fine_tuning.steps=2", "fine_tuning.draws=2",
    "generation.images=20", "generation.steps=20",
]  # fmt: skip
TINY_TOO = {
    "dppm": [
        "method.training.steps=3", "method.training.batch=20", "method.network.kind=refinenet", "method.network.width=4",
        "method.network.blocks=1", "method.network.condition=8", "generation.hamiltonian.iterations=4",
    ],
    "dp-ensemble": ["method.members=2", "method.key=two", "method.training.steps=3"],
    "private-evolution": [
        "method.candidates=100", "method.features=pixels", "method.distillation.steps=30", "method.distillation.batch=32",
    ],
    "dp-merf": ["method.frequencies=50", "method.training.steps=3", "method.training.batch=20"],
    "dp-mepf": ["method.training.steps=3", "method.training.batch=20", "backbone.width=8", "backbone.steps=5"],
}  # fmt: skip
"""Further settings of methods that have more to make tiny."""
CPU = torch.device("cpu")
LITTLE = {"steps": 3, "batch": 32, "width": 4, "features": 8}


@dataclass(frozen=True)
class World:
    """One method on the tiny setting, up to where private data would be opened."""

    settings: Settings
    facts: Facts
    plan: Plan
    parts: Parts
    reference: Reference | None = None
    """Where the public images lie, where classes are aligned with them."""

    @property
    def method(self):
        """The method."""
        return METHODS[self.settings.method.name]

    def pay(self, access: Callable[..., Access], **others) -> tuple[Parts, dict[int, str]]:
        """Every spend of the plan, by its mechanism: the finished parts, and the ledger entries with their labels."""
        parts, plan, entries = self.parts, self.plan, {}
        if plan.moments:
            moments = noisy_moments(
                access(STAGE_MOMENTS, self), MomentEvents.of(plan.events(STAGE_MOMENTS)), self.reference, plan.moments, classes=len(self.facts.classes),
                codec=parts.codec, **others,
            )  # fmt: skip
            parts = replace(parts, alignment=fitted(moments.result, self.reference))
            entries = dict(moments.entries)
            if not (plan.fine_tuning or plan.evolution or plan.embedding or plan.events(STAGE_DRAWING)):
                return parts, entries
        if plan.evolution:
            parts, seen = self.evolve(access, parts, **others)
            return parts, entries | seen
        if plan.embedding:
            parts, seen = self.embed(access(STAGE_EMBEDDING, self), parts, **others)
            return parts, entries | seen
        if plan.central:
            event = plan.event(STAGE_CENTRAL)
            sums = noisy_sums(
                access(STAGE_CENTRAL, self), event, self.reference, classes=len(self.facts.classes), codec=parts.codec, **others
            )  # fmt: skip
            entries = entries | dict(sums.entries)
            central = central_images(
                sums.result, event, self.reference, records=self.facts.records, shape=parts.shape, limit=parts.codec.limit
            )  # fmt: skip
        if plan.votes:
            votes = noisy_votes(
                access(STAGE_VOTES, self), plan.event(STAGE_VOTES), self.method.ballot(parts),
                classes=len(self.facts.classes), options=self.facts.public_classes, device=CPU, **others,
            )  # fmt: skip
            distinct = bool(self.method.distinct and self.method.distinct(self.settings))
            parts, entries = add_votes(parts, votes.result, distinct=distinct), entries | dict(votes.entries)
        if plan.plain:
            paid = unprotected(
                access(STAGE_TRAINING, self), plan.event(STAGE_TRAINING), begun(self.method, self.settings, parts)[0],
                self.method.loss(self.settings, parts), plan.plain, sample_rate=plan.plain.batch / self.facts.records,
                device=CPU, codec=parts.codec, **others,
            )  # fmt: skip
            return replace(parts, tuned=paid.result), entries | dict(paid.entries)
        if plan.phase_one:
            started, seen = self.begin(access(STAGE_PHASE_ONE, self), maps=parts.alignment, **others)
            parts, entries = replace(parts, started=started), entries | seen
        if plan.members and plan.members.adapters:
            parts = replace(parts, heads=self.trained_heads(access(STAGE_TRAINING, self), parts))
        elif plan.members:
            parts = replace(parts, members=self.trained_members(access, parts))
        if plan.events(STAGE_DRAWING):
            return parts, entries | self.draw_privately(access(STAGE_DRAWING, self), parts, **others)[1]
        if plan.central:
            groups = plan.fine_tuning.trainable
            parts = replace(parts, warm=warmed(parts, central, plan.central, groups, seed=0)[0])
        models, how = [], plan.fine_tuning
        for event, factor in zip(plan.events(STAGE_TUNING), how.rates or (1.0,), strict=True):
            model, _ = begun(self.method, self.settings, parts)
            tuned = fine_tuned(
                access(STAGE_TUNING, self), event, model, self.method.corrupt(self.settings, parts),
                how.at(factor), records=self.facts.records, device=CPU, physical_batch=64,
                codec=parts.codec, maps=parts.alignment, **others,
            )  # fmt: skip
            models, entries = [*models, tuned.result], entries | dict(tuned.entries)
        if not how.rates:
            return replace(parts, tuned=models[0]), entries
        votes = noisy_votes(
            access(STAGE_RATES, self), plan.event(STAGE_RATES), rates.ballot(self.settings, parts, models), classes=1,
            options=len(models), device=CPU, **others,
        )  # fmt: skip
        return replace(parts, tuned=models[rates.elected(votes.result)]), entries | dict(votes.entries)

    def evolve(self, access: Callable[..., Access], parts: Parts, **others) -> tuple[Parts, dict[int, str]]:
        """Every round of votes, by pixels, and the denoiser that learns from the candidates with votes."""
        how, entries = self.plan.evolution, {}
        population = evolution.first_population(self.settings, parts, how.candidates // len(self.facts.classes))
        elected = None
        for event in self.plan.events(STAGE_VOTES):
            if elected:
                population = evolution.next_population(self.settings, parts, elected, how.variation, 1)
            ballot = evolution.ballot(lambda x: x.flatten(1), parts, population)
            votes = noisy_votes(
                access(STAGE_VOTES, self), event, ballot, classes=len(self.facts.classes), options=population.each, device=CPU,
                **others,
            )  # fmt: skip
            elected = evolution.elected(population, votes.result, how, noise_multiplier=event.noise_multiplier)
            entries |= dict(votes.entries)
        return replace(parts, tuned=evolution.distilled(parts, elected, how.training, seed=0)[0]), entries

    def embed(self, access: Access, parts: Parts, **others) -> tuple[Parts, dict[int, str]]:
        """The noisy sums of features, and the generator that learns from them."""
        how, event = self.plan.embedding, self.plan.event(STAGE_EMBEDDING)
        backbone = public_backbone(self.settings.backbone) if how.features == "perceptual" else None
        features = embedding.features_of(how, parts, backbone, seed=0)
        sums = noisy_embedding(
            access, event, embedding.embedder(features, parts.codec, parts.alignment), classes=len(self.facts.classes), count_share=how.count_share,
            **others,
        )  # fmt: skip
        means = fourier.class_means(sums.result, how.count_share, noise_multiplier=event.noise_multiplier)
        generator, _ = begun(self.method, self.settings, parts)
        return replace(parts, tuned=embedding.fitted(generator, parts, features, means, how, seed=0)[0]), dict(
            sums.entries
        )

    def trained_members(self, access: Callable[..., Access], parts: Parts) -> tuple[torch.nn.Module, ...]:
        """The members of the plan, each trained on its own shard."""
        members = self.plan.members
        return tuple(
            shard_trained(
                access(STAGE_TRAINING, self),
                denoiser_training(untuned(parts), parts.schedule, members.training, seed=0), shard=shard,
                shards=members.count, key=members.key, device=CPU, codec=parts.codec, maps=parts.alignment,
            )[0]
            for shard in range(members.count)
        )  # fmt: skip

    def trained_heads(self, access: Access, parts: Parts) -> adapters.HeadStack:
        """The members of the plan as heads, trained at once, each on its own shard."""
        members, trunk = self.plan.members, adapters.Trunk(parts.public)

        def train(own):
            requested = {"classes": len(self.facts.classes), "width": members.adapters, "seed": 0}
            return adapters.heads_trained(trunk, parts.schedule, own, members.training, **requested)

        dealing = {"shards": members.count, "key": members.key, "device": CPU}
        return shards_trained(access, train, **dealing, codec=parts.codec, maps=parts.alignment)[0]

    def drawing(self, parts: Parts) -> Callable[..., ImageSet]:
        """The priced drawing of the plan, as the task puts it together."""
        parts = replace(parts, paid=self.plan.events(STAGE_DRAWING))
        images = self.plan.prototypes or self.plan.generation.images
        finish = self.method.finish if self.plan.prototypes else None
        how = {"finish": finish, "partition": self.partition(parts)}
        return private_drawing(self.method.draw_privately, self.settings, parts, self.facts, images, CPU, **how)

    def partition(self, parts: Parts) -> Partition | None:
        """The cells of the private classes, where the drawing has some."""
        parts = replace(parts, paid=self.plan.events(STAGE_DRAWING))
        return self.method.partition and self.method.partition(self.settings, parts)

    def draw_privately(self, access: Access, parts: Parts, **others) -> tuple[ImageSet, dict[int, str]]:
        """Images by the sampler that pays for them."""
        access = replace(access, images=self.plan.generation.images)
        events = self.plan.events(STAGE_DRAWING)
        how = {"device": CPU, "codec": parts.codec, "maps": parts.alignment, "partition": self.partition(parts)}
        paid = drawn(access, events, self.drawing(parts), **how, **others)
        return paid.result, dict(paid.entries)

    def begin(self, access: Access, **others) -> tuple[torch.nn.Module, dict[int, str]]:
        """The first phase of the plan."""
        phase, event = self.plan.phase_one, self.plan.event(STAGE_PHASE_ONE)
        model, schedule, codec = build_like(self), self.parts.schedule, self.parts.codec
        if phase.noised_once:
            paid = noised_records(access, event, codec=codec, **others)
            trained, _ = train_on_noised(
                model, schedule, paid.result, phase.training, boundary=phase.boundary, seed=0, fixed=phase.fixed
            )
            return trained, dict(paid.entries)
        rate = phase.training.batch / self.facts.records
        loss = unlabelled_losses(schedule, phase.boundary)
        paid = unprotected(
            access,
            event,
            model,
            loss,
            phase.training,
            sample_rate=rate,
            device=CPU,
            codec=codec,
            fixed=phase.fixed,
            **others,
        )
        return paid.result, dict(paid.entries)


def build_like(world: World) -> torch.nn.Module:
    """A copy of the public denoiser that may be changed."""
    levels = world.parts.schedule.alpha_bar
    model = build(world.settings.network, world.parts.shape, world.facts.public_classes, alpha_bar=levels)
    model.load_state_dict(world.parts.public.state_dict())
    return model


@functools.cache
def public_backbone(settings: BackboneSettings) -> Backbone:
    """A classifier of a few glyphs."""
    return train_backbone(
        settings, sources.load("glyphs", sources.Reading(size=8, glyphs_per_class=8)), seed=0
    ).backbone


NOT_PUBLIC = ("generation.", "fine_tuning.", "method.training.")
"""Settings on which nothing public depends, so that worlds that differ in them alone share their public half."""


@functools.cache
def make_world(method: str, *changes: str) -> World:
    settings, facts, _ = preflight(resolve(method, changes=[*TINY, *TINY_TOO.get(method, []), *changes]))
    plan = plan_for(settings, facts)
    # A method with a network of its own plans for what is trained of it, and shares with nobody.
    apart = () if METHODS[method].blueprint else NOT_PUBLIC
    parts, reference = public_half(method, *(change for change in changes if not change.startswith(apart)))
    return World(settings, facts, plan, replace(parts, facts=facts), reference)


@functools.cache
def public_half(method: str, *changes: str) -> tuple[Parts, Reference | None]:
    """What is learnt from public images, and where these lie if classes are aligned with them."""
    settings, facts, _ = preflight(resolve(method, changes=[*TINY, *TINY_TOO.get(method, []), *changes]))
    plan = plan_for(settings, facts)
    actual = sources.load(
        "glyphs", sources.Reading(part="all", size=8, glyphs_per_class=settings.data.glyphs_per_class)
    )
    codec = PIXELS
    if settings.latent.kind != "none":
        codec = train_autoencoder(settings.latent, to_unit(actual.pixels), seed=0).codec
    schedule = make_schedule(settings.schedule, codec.limit)
    public = split_public(actual, plan.retrieval.reference if plan.retrieval else 0.0, 0, CPU, codec)
    model = build(settings.network, public.shape, facts.public_classes, alpha_bar=schedule.alpha_bar)
    denoiser, _ = pretrain(model, schedule, *public.pre, settings.pretraining, seed=0)
    shown = codec.encode(to_unit(actual.pixels)) if plan.public_images or plan.images_of_ballot else None
    own = start_learnt(plan.own_start, schedule, *public.pre, seed=0)[0] if plan.own_start else None
    parts = Parts(
        own=own, schedule=schedule, shape=public.shape, facts=facts, public=denoiser, codec=codec, images=shown,
        image_classes=None if shown is None else torch.from_numpy(actual.labels),
    )  # fmt: skip
    if plan.retrieval:
        one_step, encoder = OneStep(schedule, denoiser, plan.retrieval.conditional), None
        time, by_class = plan.retrieval.time, plan.retrieval.by_class
        base = base_without_keys(*public.reference, by_class=by_class, seed=0)
        if time:
            little: Extractor = plan.retrieval.extractor.model_copy(update=LITTLE)
            seen = public.reference_images, public.reference[1]
            encoder, _ = train_extractor(little, one_step, *seen, times=[time], seed=0, codec=codec)
            base = build_knowledge_base(
                FeatureMap(one_step, encoder),
                *public.reference,
                time=time,
                by_class=by_class,
                seed=0,
                query=plan.retrieval.query,
            )
        parts = replace(parts, encoder=encoder, base=base)
    reference = None
    if plan.measured:
        reference = measured(
            codec.encode(to_unit(actual.pixels)), torch.from_numpy(actual.labels), plan.measured, seed=0
        )
    return parts, reference


@pytest.fixture(scope="session")
def world() -> Callable[..., World]:
    """`world(method, *changes)`: the tiny world, made once for each question."""
    return make_world


@pytest.fixture(scope="session")
def access_to() -> Callable[..., Callable[[str, World], Access]]:
    """From a ledger to what each stage of a world asks of the door, as the tasks ask it."""

    def on(ledger, **changes):
        def ask(stage: str, world: World) -> Access:
            terms = world.plan.privacy
            fields = {
                "ledger": ledger, "private": private_set(world.settings), "run": "run-1", "stage": stage,
                "purpose": stage, "code_version": "0", "relation": terms.relation, "delta": terms.delta,
                "claim": world.plan.claim.model_dump(),
            }  # fmt: skip
            return Access(**(fields | changes))

        return ask

    return on
