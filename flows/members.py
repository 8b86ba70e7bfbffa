"""Stages of a run that draws from many models of disjoint shards: their training, and what the public denoiser learns from what they drew."""

from dataclasses import replace

from sfumato.config import Pretraining
from sfumato.methods.plan import Members
from sfumato.settings import Settings
from tasks import distillation, private
from tasks.inputs import Inputs, PrivateParts
from tasks.runtime.parallel import alone, among_others
from tasks.runtime.run import Journal
from tasks.terms import Order


def train_members(members: Members, order: Order, inputs: Inputs, journal: Journal) -> PrivateParts:
    """Train members without protection, all at once where they are heads; they stay behind a priced drawing.

    Their training costs nothing and does not depend on the drawing, so that other runs reuse them.
    """
    machine = order.machine
    if members.adapters:
        return PrivateParts(heads=journal.stage(private.train_heads)(order, members, inputs))
    each = machine if alone(machine, members.count) else among_others(machine)
    own = order.model_copy(update={"machine": each})
    calls = [
        replace(private.train_member.given(own, members, shard, inputs), note=f"{shard + 1} of {members.count}")
        for shard in range(members.count)
    ]
    return PrivateParts(members=tuple(journal.run_all(calls, machine)))


def distilled(training: Pretraining, inputs: Inputs, settings: Settings, journal: Journal) -> Inputs:
    """The inputs with what the public denoiser became on paid images in their place; it does not depend on the drawing from it."""
    whole = inputs.model_copy(update={"settings": settings})
    tuned = journal.stage(distillation.distil)(whole, training, settings.machine)
    return inputs.model_copy(update={"prototypes": None, "tuned": tuned})
