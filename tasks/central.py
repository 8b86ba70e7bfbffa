"""The stages of central images: the noisy sums of private images, and the warm-up of the denoiser on their means.

The sums alone open the private images; the warm-up sees them and public parts.
"""

from typing import Annotated

from artifacts import serialization
from artifacts.pictures import columns_of, draw_images
from artifacts.references import CentralSums, PublicAutoencoder, PublicMoments, WarmModel
from sfumato import central
from sfumato.config import NOT_HASHED, Central, Machine, ParameterGroup
from sfumato.images import ImageSet, to_pixels
from sfumato.methods.plan import STAGE_CENTRAL
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting.events import Gaussian, SubsampledGaussian
from sfumato.retrieval import split
from tasks.inputs import MethodInputs, load_parts
from tasks.private import frozen_codec
from tasks.runtime.artifact import RunContext, device_of, draft_of
from tasks.runtime.caching import code_version, stage
from tasks.runtime.environment import where
from tasks.terms import SharedOrder, with_canaries

PICTURE = "central.png"
"""The central images, a row for each class."""


@stage
def sum_up(
    context: RunContext,
    order: SharedOrder,
    event: Gaussian | SubsampledGaussian,
    classes: tuple[str, ...],
    reference: PublicMoments,
    autoencoder: PublicAutoencoder | None,
) -> CentralSums:
    """Release noisy sums of the private images of each class."""
    parents = [ref for ref in (reference, autoencoder, order.canaries) if ref]
    with draft_of(CentralSums, "central sums", context, parents=parents, params=event.model_dump()) as draft:
        code, device = code_version(sum_up.fn), device_of(order.machine)
        public = serialization.load_reference(draft.open(reference))
        codec = frozen_codec(draft, autoencoder, order.machine)
        with where().ledger() as ledger:
            access = order.access(
                ledger, context, stage=STAGE_CENTRAL, purpose="central images", code=code, parents=parents
            )
            paid = mechanisms.noisy_sums(
                with_canaries(access, draft, order), event, public, classes=len(classes), codec=codec, device=device
            )
        serialization.save(draft.folder, {"sums": paid.result}, {"classes": classes})
        draft.stands_on(paid)
    return draft.ref


@stage
def warm_up(
    context: RunContext,
    inputs: MethodInputs,
    sums: CentralSums,
    reference: PublicMoments,
    event: Gaussian | SubsampledGaussian,
    settings: Central,
    groups: tuple[ParameterGroup, ...],
    machine: Annotated[Machine, NOT_HASHED],
) -> WarmModel:
    """Train the denoiser so far on central images, which costs nothing more.

    Many parameters: its key holds all that the warm-up follows from, and nothing else.
    """
    facts, parents = inputs.facts, [*inputs.refs(), sums, reference]
    params, title = settings.model_dump() | {"groups": groups}, "warm-up on central images"
    with draft_of(WarmModel, title, context, parents=parents, params=params, images=central.BATCH) as draft:
        parts = load_parts(draft, inputs, machine)
        images = central.central_images(
            serialization.load(draft.open(sums))[0]["sums"],
            event,
            serialization.load_reference(draft.open(reference)),
            records=facts.records,
            shape=parts.shape,
            limit=parts.codec.limit,
        )
        pixels = to_pixels(parts.codec.decode(images.x.to(device_of(machine))))
        shown = ImageSet(pixels, images.y.numpy(), facts.classes)
        draw_images(draft.folder / PICTURE, shown, columns_of(shown))
        draft.files = [draft.folder / PICTURE]
        model, losses = central.warmed(parts, images, settings, groups, seed=inputs.settings.seed, progress=draft.show)
        draft.series = {"loss": split.thinned(losses)}
        serialization.save_denoiser(draft.folder, model, inputs.settings.network, parts.shape, len(facts.classes))
    return draft.ref
