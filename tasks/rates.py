"""The stages that choose one of several models trained by DP-SGD: the votes of private records, and the model with the most.

The votes alone open the private images. The other models are as private as the chosen one, stay in the store, and are not published.
"""

from artifacts import serialization
from artifacts.references import VOTES_FOR, ChosenModel, RateVotes, TunedModel
from sfumato import rates
from sfumato.methods.plan import STAGE_RATES
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting.events import DiscreteHistogram
from tasks.inputs import TuningInputs, load_parts
from tasks.runtime.artifact import RunContext, device_of, draft_of
from tasks.runtime.caching import code_version, stage
from tasks.runtime.environment import where
from tasks.terms import Order, with_canaries


@stage
def vote_for_rate(
    context: RunContext, order: Order, event: DiscreteHistogram, inputs: TuningInputs, models: tuple[TunedModel, ...]
) -> RateVotes:
    """Let each private record vote for the model that denoises it best, and store the noisy histogram."""
    parents, title = [*inputs.refs(), *models, *order.refs()], "votes for learning rates"
    with draft_of(RateVotes, title, context, parents=parents, params=event.model_dump()) as draft:
        parts, device = load_parts(draft, inputs, order.machine), device_of(order.machine)
        candidates = [serialization.load_denoiser(draft.open(model), device) for model in models]
        code = code_version(vote_for_rate.fn)
        with where().ledger() as ledger:
            access = order.access(ledger, context, stage=STAGE_RATES, purpose=title, code=code, parents=parents)
            paid = mechanisms.noisy_votes(
                with_canaries(access, draft, order),
                event,
                rates.ballot(inputs.settings, parts, candidates),
                classes=1,
                options=len(candidates),
                device=device,
            )
        serialization.save(draft.folder, {"votes": paid.result}, {})
        draft.stands_on(paid)
    return draft.ref


@stage
def choose_rate(
    context: RunContext, votes: RateVotes, models: tuple[TunedModel, ...], factors: tuple[float, ...]
) -> ChosenModel:
    """The model with the most votes, which costs nothing more; noisy votes and their winner may be shown."""
    with draft_of(ChosenModel, "model with the most votes", context, parents=[votes]) as draft:
        noisy = serialization.load(draft.open(votes))[0]["votes"]
        winner = rates.elected(noisy)
        serialization.copy_denoiser(draft.open(models[winner]), draft.folder)
        count = {f"{VOTES_FOR}{factor:g}": number for factor, number in zip(factors, noisy[0].tolist(), strict=True)}
        draft.metrics = {"rate": factors[winner], **count}
        draft.lines = [f"learning rates: {factors[winner]:g} times those of the settings, by noisy votes"]
    return draft.ref
