"""What drawing costs: RAPID against the full sampler, and with DPM-Solver++ and few steps, at equal scores.

    .venv/bin/python benchmarks/sampling.py [--epsilon 10] [--draws 3] [--images 2000] [--rounds 3]

Two models are trained through the flow that users run, in a home of its own (`sfumato-home/benchmarks`): with k and v of
the paper, and with those of the digits preset. Each is then drawn from in several ways, without training again. One
judge scores all sets of a model (mean over draws; the scores look at private images and are INTERNAL). Times are medians
over rounds in which all ways take turns in one process. On a GPU each way is also timed compiled, in bfloat16; compiling
is not counted.
"""

import argparse
import contextlib
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path

from tasks.runtime.environment import CHECKOUT, configure

MODELS = {
    "k = .8 T, v = .2 T, as in the paper": ["method.k=0.8", "method.v=0.2"],
    "k = .5 T, v = .4 T, the preset": [],
}
FULL, PAPER = "full sampler (T to 0)", "RAPID, ddim"
FEW = {"solver": "dpm++", "early_steps": 2, "late_steps": 5}
"""What retrieval and the fine-tuned walk need; see the table."""
WAYS = {
    FULL: ("dp-sgd", {}),
    "full sampler, dpm++, 20 steps": ("dp-sgd", {"solver": "dpm++", "steps": 20}),
    PAPER: ("rapid", {}),
    "RAPID, ddim, 2 + 5 steps": ("rapid", FEW | {"solver": "ddim"}),
    "RAPID, dpm++, 2 + 5 steps": ("rapid", FEW),
    "RAPID, dpm++ without noise (eta 0), 2 + 5 steps": ("rapid", FEW | {"eta": 0.0}),
    "RAPID, dpm++, 2 + 8 steps": ("rapid", FEW | {"late_steps": 8}),
    "RAPID, dpm++, 1 + 3 steps": ("rapid", FEW | {"early_steps": 1, "late_steps": 3}),
}
"""Name -> the method whose walk is taken with the model that RAPID trained, and changes of the generation settings."""


def main() -> None:
    """Train, draw, judge, time, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=10.0, help="budget of each model (default: 10)")
    parser.add_argument("--draws", type=int, default=3, help="sets that are drawn and judged each way (default: 3)")
    parser.add_argument("--images", type=int, default=2000, help="images of a set (default: 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of timing (default: 3)")
    arguments = parser.parse_args()
    os.environ.setdefault("SFUMATO_HOME", str(CHECKOUT / "sfumato-home" / "benchmarks"))
    configure()
    from prefect import flow

    from flows.synthesize import synthesize

    for title, changes in MODELS.items():
        settings = [f"privacy.epsilon={arguments.epsilon}", "evaluation.baseline=false", *changes]
        record = synthesize(method="rapid", preset="digits", changes=settings)
        judging = flow(name="sampling", persist_result=False, validate_parameters=False)(judged)
        scores = judging(record, arguments.draws, arguments.images)
        seconds, fast = timed(record, arguments.rounds, arguments.images)
        show(title, record, scores, seconds, fast, arguments)


def settings_of(record):
    """Name of a way -> the settings by which it draws with the model of a run."""
    from sfumato.config import Generation
    from sfumato.methods import METHODS
    from sfumato.settings import Settings, resolve

    machine = resolve(record.method, record.preset).machine
    base = Settings.model_validate({**record.settings, "machine": machine})
    return {
        name: base.model_copy(
            update={
                "method": base.method if method == base.method.name else METHODS[method].section(),
                "generation": Generation.model_validate({**base.generation.model_dump(), **changes}),
            }
        )
        for name, (method, changes) in WAYS.items()
    }


def made_of(record):
    """References to the votes, the public parts and the fine-tuned model of a run."""
    from artifacts.references import ClassVotes
    from tasks.audit import released
    from tasks.runtime.environment import where

    family = where().store().ancestry(record.samples_artifact)
    votes = next(ClassVotes(digest=one, label=m["label"]) for one, m in family if m["kind"] == ClassVotes.__name__)
    parts = released(record)
    return {"public": parts.public, "votes": votes, "tuned": parts.tuned}


def judged(record, draws: int, images: int) -> dict[str, list[dict[str, float]]]:
    """Scores of each draw of each way, by one judge; drawing and judging are the stages of the flow, cached like them."""
    from flows.private_half import terms
    from flows.public_half import load_images, train_eyes
    from sfumato.preflight import private_set
    from tasks import checks, evaluation, generation
    from tasks.inputs import FeatureSpaces, Inputs
    from tasks.runtime.artifact import RunContext, device_of
    from tasks.runtime.run import Journal
    from tasks.terms import Order

    ways, made, plan = settings_of(record), made_of(record), record.plan
    any_way = ways[PAPER]
    book = Journal(
        RunContext(run=record.run, parents=record.tracking), private_set(any_way), device_of(any_way.machine)
    )
    order = Order(private=book.private, terms=terms(plan, comparison=True), machine=any_way.machine)
    order = order.model_copy(update={"private": checks.check_private(order, book.context)})
    sets = {}
    for number, (name, way) in enumerate(ways.items()):
        recipe = way.only("schedule", "method", "generation")
        for seed in range(draws):
            seeded = recipe.model_copy(update={"seed": seed})
            note = f"{name}, draw {seed}"
            inputs = Inputs(settings=seeded, facts=plan.facts, **made)
            drawn = book.stage(generation.generate, paid=True, note=note)(inputs, images, any_way.machine)
            sets[f"way {number} draw {seed}"] = drawn
    how = any_way.evaluation.model_copy(update={"images": images})
    eyes = FeatureSpaces(classifier=train_eyes(any_way, load_images(any_way, plan, book), book))
    judged = evaluation.JudgedSets(sets=sets)
    scores = judgement(book.stage(evaluation.evaluate)(order, judged, eyes, plan.facts, how, any_way.seed))
    return {name: [scores[f"way {number} draw {seed}"] for seed in range(draws)] for number, name in enumerate(ways)}


def judgement(ref) -> dict[str, dict[str, float]]:
    """The scores in a judgement, by set."""
    from artifacts import serialization
    from tasks.runtime.environment import where

    return serialization.load(where().store().folder(ref))[1]


def timed(record, rounds: int, images: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of each way for so many images; on a GPU also compiled in bfloat16, elsewhere none."""
    import torch

    from sfumato.drawing import draw_images
    from sfumato.methods import METHODS
    from sfumato.progress import silent
    from tasks.inputs import Inputs, load_parts
    from tasks.runtime.artifact import Draft, device_of
    from tasks.runtime.environment import where

    ways, facts = settings_of(record), record.plan.facts
    any_way = ways[PAPER]
    device = device_of(any_way.machine)
    made, draft = made_of(record), Draft(where().store(), Path(), silent)
    parts = load_parts(draft, Inputs(settings=any_way, facts=facts, **made), any_way.machine)
    kinds = {"plain": (parts, contextlib.nullcontext)}
    if device.type == "cuda":
        quick = replace(parts, public=torch.compile(parts.public), tuned=torch.compile(parts.tuned))
        kinds["compiled"] = (quick, lambda: torch.autocast(device.type, torch.bfloat16))
    taken: dict[tuple[str, str], list[float]] = {(kind, name): [] for kind in kinds for name in ways}
    for turn in range(rounds + 1):
        for kind, name in taken:
            with_parts, manner = kinds[kind]
            way = ways[name]
            started = time.perf_counter()
            with manner():
                draw_images(METHODS[way.method.name].draw, way, with_parts, facts, images, device)
            if turn:  # the first round warms up
                taken[kind, name].append(time.perf_counter() - started)
    medians = {key: statistics.median(values) for key, values in taken.items()}
    return tuple(
        {name: medians[kind, name] for name in ways if (kind, name) in medians} for kind in ("plain", "compiled")
    )


def show(title, record, scores, seconds, fast, arguments) -> None:
    """The table of one model."""
    from sfumato.preflight import plan_for

    plans = {name: plan_for(settings, record.plan.facts) for name, settings in settings_of(record).items()}
    mean = {
        name: {key: statistics.mean(one[key] for one in values) for key in ("frechet", "readable", "coverage")}
        for name, values in scores.items()
    }
    print(
        f"\n**{title}**: epsilon {arguments.epsilon:g}, {arguments.images} images, mean of {arguments.draws} draws "
        f"(least to greatest), median of {arguments.rounds} interleaved rounds\n"
    )
    head = ["drawn by", "evaluations per image", "of the full sampler", "seconds", "of the full sampler's"]
    head += ["seconds, compiled bf16"] * bool(fast) + [
        "Frechet distance",
        "against RAPID, ddim",
        "readable",
        "coverage",
    ]
    print("| " + " | ".join(head) + " |")
    print("| " + " | ".join(["---"] * len(head)) + " |")
    for name, values in mean.items():
        distances = [one["frechet"] for one in scores[name]]
        row = [name, str(plans[name].evaluations), f"{plans[name].evaluations / plans[FULL].evaluations:.3f}"]
        row += [f"{seconds[name]:.2f}", f"{seconds[name] / seconds[FULL]:.3f}"]
        row += [f"{fast[name]:.2f}"] if fast else []
        row += [f"{values['frechet']:.2f} ({min(distances):.2f} to {max(distances):.2f})"]
        row += [f"{values['frechet'] / mean[PAPER]['frechet'] - 1:+.0%}"]
        row += [f"{values['readable']:.3f}", f"{values['coverage']:.3f}"]
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
