"""The stages of mean embeddings: the noisy sums of private features, and the generator that learns from them.

The sums alone open the private images; the generator's training sees them and public parts.
"""

import math
from typing import Annotated, Any

from artifacts import serialization
from artifacts.references import EmbeddingSums, PublicAutoencoder, TunedModel
from sfumato import embedding, fourier
from sfumato.config import NOT_HASHED, Machine, Matching
from sfumato.marks import SUMMING
from sfumato.methods import METHODS
from sfumato.methods.algorithm import begun
from sfumato.methods.parts import Parts
from sfumato.methods.plan import STAGE_EMBEDDING, STAGE_MATCHING, Embedding, Facts
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting.events import Gaussian
from sfumato.retrieval import split
from tasks.inputs import Inputs, MethodInputs, load_parts
from tasks.private import frozen_codec
from tasks.runtime.artifact import Draft, RunContext, device_of, draft_of
from tasks.runtime.caching import code_version, stage
from tasks.runtime.checkpoints import stored_state
from tasks.runtime.environment import where
from tasks.runtime.narrowing import sections, seen_by
from tasks.terms import Order, SharedOrder, with_canaries


@stage
def embed(
    context: RunContext,
    order: Order,
    event: Gaussian,
    inputs: Annotated[Inputs, sections("schedule", "seed")],
    how: Annotated[Embedding, seen_by(SUMMING)],
) -> EmbeddingSums:
    """Release noisy sums of the features of each class's private images."""
    parents, classes, title = [*inputs.refs(), *order.refs()], inputs.facts.classes, "mean embeddings"
    with draft_of(EmbeddingSums, title, context, parents=parents, params=event.model_dump()) as draft:
        parts, code = load_parts(draft, inputs, order.machine), code_version(embed.fn)
        features = features_of(draft, inputs, parts, how, order.machine)
        with where().ledger() as ledger:
            access = order.access(ledger, context, stage=STAGE_EMBEDDING, purpose=title, code=code, parents=parents)
            paid = mechanisms.noisy_embedding(
                with_canaries(access, draft, order),
                event,
                embedding.embedder(features, parts.codec, parts.alignment),
                classes=len(classes),
                count_share=how.count_share,
                device=device_of(order.machine),
            )
        noise = {"noise_multiplier": event.noise_multiplier}
        serialization.save(draft.folder, {"sums": paid.result}, {"classes": classes, **noise})
        draft.stands_on(paid)
    return draft.ref


@stage
def sum_features(
    context: RunContext,
    order: SharedOrder,
    event: Gaussian,
    facts: Facts,
    autoencoder: PublicAutoencoder | None,
    how: Annotated[Matching, seen_by(SUMMING)],
    seed: int,
) -> EmbeddingSums:
    """Release noisy sums of the features of each class's private images, which drawn images are moved to.

    Many parameters: its key holds all that the sums follow from, and nothing else.
    """
    parents, title = [ref for ref in (autoencoder, order.canaries) if ref], "mean embeddings to match"
    with draft_of(EmbeddingSums, title, context, parents=parents, params=event.model_dump()) as draft:
        code, codec = code_version(sum_features.fn), frozen_codec(draft, autoencoder, order.machine)
        features = fourier.random_features(how, math.prod(codec.shape(facts.shape)), seed)
        with where().ledger() as ledger:
            access = order.access(ledger, context, stage=STAGE_MATCHING, purpose=title, code=code, parents=parents)
            paid = mechanisms.noisy_embedding(
                with_canaries(access, draft, order),
                event,
                embedding.embedder(features, codec),
                classes=len(facts.classes),
                count_share=how.count_share,
                device=device_of(order.machine),
            )
        tensors = {"sums": paid.result, "frequencies": features.frequencies}
        facts_of_sums = {"classes": facts.classes, "noise_multiplier": event.noise_multiplier}
        serialization.save(draft.folder, tensors, facts_of_sums)
        draft.stands_on(paid)
    return draft.ref


@stage
def fit(
    context: RunContext,
    inputs: MethodInputs,
    sums: EmbeddingSums,
    how: Embedding,
    machine: Annotated[Machine, NOT_HASHED],
) -> TunedModel:
    """Train a one-step generator whose images have the same mean features, which costs nothing more."""
    parents, settings, training = [*inputs.refs(), sums], inputs.settings, how.training
    title, params = "training on mean embeddings", training.model_dump()
    with (
        stored_state(context) as keeper,
        draft_of(TunedModel, title, context, parents=parents, params=params, images=training.batch) as draft,
    ):
        parts = load_parts(draft, inputs, machine)
        tensors, facts = serialization.load(draft.open(sums))
        generator, built = begun(METHODS[settings.method.name], settings, parts)
        model, losses = embedding.fitted(
            generator.to(device_of(machine)),
            parts,
            features_of(draft, inputs, parts, how, machine),
            fourier.class_means(tensors["sums"], how.count_share, noise_multiplier=facts["noise_multiplier"]),
            how,
            seed=settings.seed,
            progress=draft.show,
            keeper=keeper,
        )
        draft.series = {"loss": split.thinned(losses)}
        serialization.save_denoiser(draft.folder, model, built.network, built.shape, built.classes)
    return draft.ref


def features_of(
    draft: Draft[Any], inputs: Inputs, parts: Parts, how: Embedding, machine: Machine
) -> embedding.Features:
    """The features that are summed, with the public classifier where they are its own."""
    backbone = inputs.public.backbone
    reader = serialization.load_backbone(draft.open(backbone), device_of(machine)) if backbone else None
    return embedding.features_of(how, parts, reader, seed=inputs.settings.seed)
