"""A plan on the command line."""

import itertools
from collections.abc import Iterator

from rich.console import RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from flows.cli.options import HOUR
from sfumato.class_shares import images_of_each, number_of_classes
from sfumato.costs import weights_of, without_weights
from sfumato.diffusion.schedule import make_schedule
from sfumato.methods import METHODS
from sfumato.methods.algorithm import design
from sfumato.methods.plan import Plan
from sfumato.networks.autoencoder import build_autoencoder, latent_shape
from sfumato.networks.build import build
from sfumato.networks.denoiser import parameters_by_group
from sfumato.networks.low_rank import adapted
from sfumato.privacy.accounting.events import AnyEvent
from sfumato.recipe.advice import advice
from sfumato.recipe.estimate import estimate
from sfumato.settings import Settings
from tasks.runtime.artifact import on_gpu, one_thread
from tasks.runtime.machine import memory_bytes

MOST_SPENDS = 10
"""Up to this many spends a plan shows all of them."""
MOST_CLASSES = 12
"""Largest number of classes that a plan shows."""
SHOWN_SECONDS = 3
"""Stages that take fewer seconds are not shown one by one."""


def plan_lines(settings: Settings, plan: Plan) -> Iterator[RenderableType]:
    """The plan in lines for a person who decides on it."""
    facts = plan.facts
    shape = latent_shape(settings.latent, facts.shape)
    levels = make_schedule(settings.schedule).alpha_bar
    with without_weights():
        sizes = parameters_by_group(build(settings.network, shape, facts.learnt_classes, alpha_bar=levels))
    grid = Table.grid(padding=(0, 2))
    c, h, w = facts.shape
    rows = {
        "private": f"{settings.data.name}: {facts.private}{f' with {facts.images} images' if facts.unit else ''}, {number_of_classes(len(facts.classes))}, {h}x{w}, {c} channel(s)",
        "public": f"{settings.data.public}: {facts.public_side}",
        "trained on public": autoencoder_line(settings, facts.shape)
        + f"denoiser ({sum(sizes.values()):,} parameters), "
        + ("from elsewhere, " if settings.network.from_ else "")
        + f"{settings.pretraining.steps} steps"
        + (
            f"; extractor, {plan.retrieval.extractor.steps} steps; knowledge base"
            if plan.retrieval and plan.retrieval.time
            else ""
        )
        + ("; knowledge base without keys" if plan.retrieval and not plan.retrieval.time else ""),
        "own network": f"{plan.own_start.training.steps} steps on public images with the rows of their labels"
        if plan.own_start
        else "",
        "retrieval": plan.retrieval.sentence() if plan.retrieval else "",
        "from elsewhere": "; ".join(one.sentence() for one in plan.brought),
        "trained on private": _trained(settings, plan, shape) or "nothing",
        "noise multiplier": f"{plan.noise_multiplier:.4f} (clip {plan.fine_tuning.clip:g})" if plan.fine_tuning else "",
        "learning rates": _rates(plan),
        "paid": _paid([f"{spend.what} ({_short(spend.event)})" for spend in plan.spends]),
        "drawn": f"{plan.generation.images} images, {plan.evaluations_in_words} each",
        "judge": _judge(plan),
        "classes": _classes(plan),
        "aligned": _aligned(plan),
        "central images": _central(plan),
        "matched": _matched(plan),
        "judged": f"{min(settings.evaluation.images, plan.generation.images)} images of each set, features: "
        f"{settings.evaluation.features}, classifiers: {settings.evaluation.classifiers}",
        "claim": f"epsilon {plan.claim.epsilon:.3f}: {plan.claim.source}",
    }
    with one_thread():
        expected = estimate(settings, plan, gpu=on_gpu(settings.machine))
    slow = [f"{name} {seconds / 60:.1f}" for name, seconds in expected.stages if seconds >= SHOWN_SECONDS]
    hours = f" ({expected.minutes / HOUR:.0f} hours)" if expected.minutes >= 2 * HOUR else ""
    rows["estimate"] = f"about {expected.minutes:.1f} min{hours} on this machine, {expected.gigabytes:.1f} GB of memory"
    rows["of which"] = ", ".join(slow) + (" min" if slow else "")
    for name, text in rows.items():
        if text:
            grid.add_row(f"[bold]{name}[/]", escape(text))
    yield Panel(grid, title=f"plan: {plan.method}", title_align="left")
    yield from memory_lines(expected.gigabytes)
    yield from recipe_lines(settings)
    if plan.certificate:
        yield f"[bold]certificate if it runs:[/] {plan.certificate.sentence()}"
    else:
        yield f"[bold]no certificate, the images stay INTERNAL:[/] {escape(plan.lacking)}"
    if other := advice(settings):
        yield f"[bold]another method:[/] {escape(other)}"


def memory_lines(gigabytes: float) -> Iterator[str]:
    """A line where a run would need more memory than this machine has."""
    there = memory_bytes() / 1e9
    if gigabytes > there:
        yield f"[yellow]memory:[/] about {gigabytes:,.0f} GB would be needed, and this machine has {there:,.0f}: ask for fewer images (generation.images), or smaller ones (data.size)"


def recipe_lines(settings: Settings) -> Iterator[RenderableType]:
    """The choices of the recipe and their reasons; nothing where it chose nothing."""
    recipe = settings.recipe
    if not recipe.choices:
        return
    table = Table(
        title=f"recipe: {recipe.minutes:g} minutes on a {recipe.device.upper()}; each can be set by --set",
        title_justify="left",
    )
    for column in ("setting", "value", "why"):
        table.add_column(column, overflow="fold")
    for choice in recipe.choices:
        table.add_row(escape(choice.setting), escape(choice.value), escape(choice.why))
    yield table
    if recipe.device == "cpu" and on_gpu(settings.machine):
        yield "This machine has a GPU, and the recipe is one for a CPU: --set recipe.device=gpu trains more in the same time."


def _classes(plan: Plan) -> str:
    """The number of images of each class; nothing where every class gets equally many."""
    generation, classes = plan.generation, plan.facts.classes
    if generation.classes == "queried":
        bound = f", none above {generation.largest_share:.0%} of the images" if generation.largest_share < 1 else ""
        return f"by the private records of each, counted with noise {generation.count_noise:g}{bound}"
    if generation.classes == "uniform":
        return ""
    each = zip(classes, images_of_each(tuple(generation.shares.values()), generation.images), strict=True)
    counts = ", ".join(f"{name} {images}" for name, images in itertools.islice(each, MOST_CLASSES))
    more = f" and {len(classes) - MOST_CLASSES} more" if classes[MOST_CLASSES:] else ""
    return f"declared by the custodian: {counts}{more}"


def _judge(plan: Plan) -> str:
    """The use of the paid judge; nothing where there is none."""
    judge = plan.judge
    if not judge:
        return ""
    does = {
        "relabel": "gives each image its own class; the class drawn for is stored too",
        "weigh": "gives each image its own class where that is likelier than the class drawn for, which is stored too",
        "filter": f"keeps the surest {judge.keep:.0%} of what is drawn, class by class",
        "guide": f"pulls each image towards its class, weight {judge.pull:g}",
    }
    return f"{does[judge.use]}; alone it costs epsilon {judge.share * plan.privacy.epsilon:.3g}"


def _aligned(plan: Plan) -> str:
    """The alignment of the classes with the public images; nothing where there is none."""
    if not plan.moments:
        return ""
    number = max(plan.moments.clusters, plan.moments.cells)
    whose = "found among its own records" if plan.moments.cells > 1 else "of the public images"
    cells = f", each in {number} cells {whose}" if number > 1 else ""
    return f"{number_of_classes(len(plan.facts.classes))}{cells}, mapped by noisy means and covariances to the public images, and back"


def _rates(plan: Plan) -> str:
    """The candidates for the learning rate; nothing where there is one."""
    tuning = plan.fine_tuning
    if not tuning or not tuning.rates:
        return ""
    return (
        f"{', '.join(f'{factor:g}' for factor in tuning.rates)} times {tuning.rate_rows:g} (rows) and {tuning.rate_other:g}: "
        f"{tuning.trainings} models, each paid for in full; private records vote for one, which alone costs epsilon "
        f"{tuning.rates_share * plan.privacy.epsilon:.3g}"
    )


def _matched(plan: Plan) -> str:
    """The mean embeddings that drawn images are moved to; nothing where there are none."""
    how = plan.matching
    if not how:
        return ""
    return (
        f"drawn images move {how.steps} steps to the mean embedding of their class, {how.frequencies} random frequencies; alone it costs epsilon "
        f"{how.share * plan.privacy.epsilon:.3g}"
    )


def _central(plan: Plan) -> str:
    """The central images and the warm-up on them; nothing where there are none."""
    central = plan.central
    if not central:
        return ""
    whose = {
        "cells": "means of the private images nearest to each centroid of the public ones",
        "samples": f"means of Poisson samples, rate {central.sample_rate:g}",
    }
    return (
        f"{central.images} of each class, {whose[central.of]}; warm-up of {central.steps} steps on the times from {central.since:g} T; "
        f"alone they cost epsilon {central.share * plan.privacy.epsilon:.3g}"
    )


def _trained(settings: Settings, plan: Plan, shape: tuple[int, int, int]) -> str:
    """The parts that learn from private images, stage by stage."""
    parts, tuning = [], plan.fine_tuning
    blueprint = design(METHODS[settings.method.name], settings, shape, plan.facts)
    with without_weights():
        levels = make_schedule(settings.schedule).alpha_bar
        model = build(blueprint.network, blueprint.shape, blueprint.classes, alpha_bar=levels)
    if plan.members:
        heads = f" as heads of {plan.members.adapters} hidden numbers" if plan.members.adapters else ""
        parts.append(f"{plan.members.count} members{heads}, each on its own shard, {plan.members.training.steps} steps")
    if plan.plain:
        size = sum(parameters_by_group(model).values())
        parts.append(f"all ({size:,} parameters) on the images themselves, {plan.plain.steps} steps")
    if plan.phase_one:
        copies = "copies noised once" if plan.phase_one.noised_once else "the images themselves"
        parts.append(f"all on {copies}, {plan.phase_one.training.steps} steps")
    if tuning:
        sizes = parameters_by_group(adapted(model, tuning.trainable, tuning.rank) if tuning.rank else model)
        parts.append(
            ", ".join(f"{group} ({sizes.get(group, 0):,})" for group in tuning.trainable)
            + (f" through adapters of rank {tuning.rank}" if tuning.rank else "")
            + f"; {tuning.steps} steps, sample rate {tuning.sample_rate:.3g}, K={tuning.draws}"
            + (f", {tuning.images_per_group} images of each {plan.facts.unit}" if plan.facts.unit else "")
        )
    return "; then ".join(parts)


def autoencoder_line(settings: Settings, image: tuple[int, int, int]) -> str:
    """The autoencoder, where the denoiser works on latents, and their shape."""
    if settings.latent.kind == "none":
        return ""
    c, h, w = latent_shape(settings.latent, image)
    size = weights_of(lambda: build_autoencoder(settings.latent, image))
    how = "from elsewhere" if settings.latent.from_ else f"{settings.latent.steps} steps"
    return f"autoencoder to {h}x{w} with {c} channel(s) ({size:,} parameters), {how}; "


def _paid(spends: list[str]) -> str:
    """All of a few spends; the first and the last of many."""
    many = len(spends) > MOST_SPENDS
    return "; ".join([spends[0], f"{len(spends) - 2} more", spends[-1]] if many else spends)


def _short(event: AnyEvent) -> str:
    values = event.model_dump(exclude={"kind", "reason"})
    return ", ".join(f"{key} {value:.4g}" for key, value in values.items()) or "no certificate"
