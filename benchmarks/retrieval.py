"""How often retrieval finds a public letter's own class, by time k and by how keys are made; beside chance and a likelihood reference.

    .venv/bin/python benchmarks/retrieval.py

Rendered letters alone, 52 classes, nothing private: half of them train a denoiser, the other half are the base, and the letters held out
from both are the queries. *h*: `random` has never been trained, `views` is the paper's, `classes` knows the public classes, `classes, all k`
is one such h for all k, as the recipe trains it. *keys*: of one noise draw, as in the paper; averaged over 8 or 32; of clean images. *given the class*
asks the one-step image for the query's own class, as the paper's accuracy does; *echo* is the same from pure noise. Thirteen minutes on one core.
"""

import argparse
import time
from dataclasses import dataclass, replace

import torch
from torch import nn

from sfumato import sources
from sfumato.config import Network, Pretraining, Schedule
from sfumato.diffusion.schedule import NoiseSchedule, make_schedule
from sfumato.networks.build import build
from sfumato.rehearsal_findings import RetrievalFindings
from sfumato.retrieval.accuracy import measured
from sfumato.retrieval.features import FeatureMap, OneStep, make_encoder, train_extractor
from sfumato.retrieval.knowledge_base import build_knowledge_base
from sfumato.retrieval.settings import Extractor, QuerySettings
from sfumato.retrieval.split import PublicSplit, split_public
from sfumato.training import pretrain

CPU = torch.device("cpu")
KEYS = {
    "one draw": QuerySettings(),
    "8 draws": QuerySettings(key_draws=8),
    "32 draws": QuerySettings(key_draws=32),
    "clean": QuerySettings(clean_keys=True),
}
SCHEDULES = {
    "linear": Schedule(),
    "latent diffusion's": Schedule(kind="scaled_linear", beta_start=0.0015, beta_end=0.0155),
}
"""Ho et al. 2020, and Rombach et al. 2022 as RAPID's released configurations have it."""


@dataclass(frozen=True)
class Letters:
    """Letters of one size, and what is learnt from them."""

    size: int
    network: Network
    training: Pretraining
    extractor: Extractor
    shares: tuple[float, ...]
    """k as shares of T."""


SETS = (
    Letters(8, Network(kind="mlp", width=192), Pretraining(steps=3000), Extractor(steps=200), (0.15, 0.3, 0.5, 0.8)),
    Letters(
        28,
        Network(kind="mlp", width=512, blocks=4, prediction="velocity"),
        Pretraining(steps=1500, batch=128, learning_rate=1e-3),
        Extractor(steps=200, batch=128, width=8),
        (0.3, 0.5, 0.8),
    ),
)


def encoders(letters: Letters, public: PublicSplit, one_step: OneStep) -> dict[tuple[str, float], nn.Module]:
    """h and k -> the extractor."""
    learnt = public.reference_images, public.reference[1]
    made: dict[tuple[str, float], nn.Module] = {}
    times = [round(share * one_step.schedule.timesteps) for share in letters.shares]
    by_class = letters.extractor.model_copy(update={"contrast": "classes"})
    both, _ = train_extractor(by_class, one_step, *learnt, times=times, seed=0)
    for share, k in zip(letters.shares, times, strict=True):
        made["random", share] = make_encoder(letters.extractor, public.shape).eval()
        made["views", share] = train_extractor(letters.extractor, one_step, *learnt, times=[k], seed=0)[0]
        made["classes", share] = train_extractor(by_class, one_step, *learnt, times=[k], seed=0)[0]
        made["classes, all k", share] = both
    return made


def result(features: FeatureMap, public: PublicSplit, share: float, query: QuerySettings) -> RetrievalFindings:
    """Retrieval at one k with one kind of keys."""
    k = round(share * features.one_step.schedule.timesteps)
    base = build_knowledge_base(features, *public.reference, time=k, by_class=False, seed=0, query=query)
    return measured(base, features, *public.queries, seed=1)


def level(schedule: NoiseSchedule, share: float) -> str:
    """alpha_bar at a share of T."""
    return f"{float(schedule.alpha_bar[round(share * schedule.timesteps)]):.4f}"


def show(letters: Letters, per_class: int) -> None:
    """The tables of one size."""
    started = time.process_time()
    reading = sources.Reading(part="all", size=letters.size, glyphs_per_class=per_class)
    images = sources.load("glyphs", reading)
    public = split_public(images, 0.5, 0, CPU)
    levels = make_schedule(SCHEDULES["linear"])
    model = build(letters.network, public.shape, public.classes, seed=0, alpha_bar=levels.alpha_bar)
    denoiser, _ = pretrain(model, levels, *public.pre, letters.training, seed=0)
    one_step = OneStep(levels, denoiser.eval().requires_grad_(False))
    made = encoders(letters, public, one_step)
    print(
        f"\n{letters.size}x{letters.size}: {len(public.reference[0]):,} letters in the base, {len(public.queries[0]):,} queries\n"
    )
    print(
        f"| k | alpha_bar | chance | reference | h | {' | '.join(KEYS)} |\n| --- | --- | --- | --- | --- |{' --- |' * len(KEYS)}",
        flush=True,
    )
    echoes = []
    for share in letters.shares:
        for h in ("random", "views", "classes", "classes, all k"):
            features = FeatureMap(one_step, made[h, share])
            cells = [result(features, public, share, query) for query in KEYS.values()]
            one = cells[0]
            row = [
                f"{share}",
                level(levels, share),
                f"{one.chance:.3f}",
                f"{one.reference:.3f}",
                h,
                *(f"{cell.first:.3f}" for cell in cells),
            ]
            print(f"| {' | '.join(row)} |", flush=True)
            if h == "views":
                requested = result(
                    replace(features, one_step=replace(one_step, conditional=True)), public, share, QuerySettings()
                )
                echoes.append((share, one, requested))
    print("\n| k | first | of five | given the class | of five, given it | echo | keys given it too | echo of these |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for share, one, requested in echoes:
        numbers = (
            one.first,
            one.five,
            one.labelled_first,
            one.labelled_five,
            one.echo,
            requested.first,
            requested.echo,
        )
        print(f"| {share} | {' | '.join(f'{number:.3f}' for number in numbers)} |", flush=True)
    other = make_schedule(SCHEDULES["latent diffusion's"])
    print("\n| schedule | k | alpha_bar | reference |\n| --- | --- | --- | --- |")
    for name, schedule in (("linear", levels), ("latent diffusion's", other)):
        features = FeatureMap(OneStep(schedule, denoiser), made["random", 0.8])
        print(
            f"| {name} | 0.8 | {level(schedule, 0.8)} | {result(features, public, 0.8, QuerySettings()).reference:.3f} |",
            flush=True,
        )
    print(f"\n{letters.size}x{letters.size}: {time.process_time() - started:.0f} CPU s", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-class", type=int, default=400, help="letters rendered of each class (default: 400)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[one.size for one in SETS], help="default: all")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for letters in SETS:
        if letters.size in given.sizes:
            show(letters, given.per_class)


if __name__ == "__main__":
    main()
