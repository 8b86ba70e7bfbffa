"""The stage in which the public denoiser learns from images that were paid for, which costs nothing more."""

from typing import Annotated

from artifacts import serialization
from artifacts.references import TunedModel
from sfumato.config import NOT_HASHED, Machine, Pretraining
from sfumato.distillation import learnt_from_prototypes
from sfumato.retrieval import split
from tasks.inputs import ModelInputs, load_parts
from tasks.runtime.artifact import RunContext, draft_of
from tasks.runtime.caching import stage
from tasks.runtime.checkpoints import stored_state


@stage
def distil(
    context: RunContext, inputs: ModelInputs, training: Pretraining, machine: Annotated[Machine, NOT_HASHED]
) -> TunedModel:
    """Train the public denoiser, with rows for the private classes, on the prototypes of a priced drawing: as many of each class, class by
    class."""
    settings, classes, title = inputs.settings, inputs.facts.classes, "training on paid images"
    parents, params = inputs.refs(), training.model_dump()
    with (
        stored_state(context) as keeper,
        draft_of(TunedModel, title, context, parents=parents, params=params, images=training.batch) as draft,
    ):
        parts = load_parts(draft, inputs, machine)
        model, losses = learnt_from_prototypes(parts, training, seed=settings.seed, progress=draft.show, keeper=keeper)
        draft.series = {"loss": split.thinned(losses)}
        serialization.save_denoiser(draft.folder, model, settings.network, parts.shape, len(classes))
    return draft.ref
