"""What private steps teach after the moments, by batch, noised copies and weights: tuned on a stand-in, so that no private set is.

    .venv/bin/sfumato rehearse dp-sgd --set data.private=stand-in ...            # the public half, in a home
    python benchmarks/private_steps.py signal --autoencoder F --denoiser F --backbone F
    python benchmarks/private_steps.py try --autoencoder F --denoiser F --backbone F --epsilon 10 --set batch=4096 steps=500 draws=1

Private: the warped digits of `benchmarks/stand_in.py`; public: rendered letters and Omniglot. F are folders of a home's store, which a run
of the public half filled. Moments and judge are made here with an ordinary generator, with the noise that the events price.

`signal`: the mean of clipped gradients over 2,048 records, in clips, for each group of weights and number of noised copies: what a step learns
where noise is the same. Copies of a record are averaged before its gradient is clipped. `try` trains, draws, relabels, and prints what a small
CNN that learnt from the images reads of 10,000 stand-in digits of other hands.
"""

import argparse
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from moments import moments
from stand_in import drawn
from torch import Tensor, nn

from artifacts import serialization
from sfumato import config, sources
from sfumato.alignment import ClassMaps, fitted, measured
from sfumato.config import FineTuning, Schedule
from sfumato.diffusion.objective import denoising_examples
from sfumato.diffusion.samplers import dpm_solver
from sfumato.diffusion.schedule import NoiseSchedule, make_schedule, time_grid
from sfumato.evaluation.classifier import predict, train_classifier
from sfumato.images import ImageSet, to_unit
from sfumato.judge import LinearJudge, unit, weighed
from sfumato.latents import Codec
from sfumato.networks.denoiser import class_rows, groups_of, with_classes
from sfumato.privacy import noise
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import Gaussian, SubsampledGaussian
from sfumato.privacy.engine.clipping import clipped_sum
from sfumato.privacy.engine.dp_sgd import train_privately, trainable_parameters
from sfumato.privacy.engine.linear_head import train_head
from sfumato.privacy.units import single_records

CPU, DELTA, CLASSES = torch.device("cpu"), 1e-5, 10
RECORDS, TESTED, LETTERS = 60_000, 10_000, 300
"""Private records, test images, renderings of a letter that the public moments are measured on."""
STEPS, CHUNK, AT_ONCE = 30, 1000, 512
"""Sampling steps; images drawn together; records differentiated together."""
LOOKED_AT, COPIES = 2048, (1, 2, 4, 8, 16)
GROUPS = ("rows", "film", "rest")
LABELS = ("as drawn", "relabelled", "weighed")
"""Whose labels a CNN learns from: those that images were drawn for, the judge's, the likelier one of both."""


class Bench:
    """The public half, and the private records as it sees them."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, rng = given, np.random.default_rng(given.seed)
        facts = serialization.load(given.autoencoder)[1]
        self.codec: Codec = serialization.load_codec(given.autoencoder, CPU, trained_on=[facts["trained_on"]])
        self.denoiser, self.backbone = (
            serialization.load_denoiser(given.denoiser, CPU),
            serialization.load_backbone(given.backbone, CPU),
        )
        self.schedule = NoiseSchedule(make_schedule(Schedule()).alpha_bar, self.codec.limit)
        (pixels, labels), (unseen, of) = drawn("train", RECORDS, rng), drawn("test", TESTED, rng)
        self.x, self.y = to_unit(pixels[:, None]), torch.from_numpy(labels).long()
        self.test = to_unit(unseen[:, None]), torch.from_numpy(of).long()
        self.z = torch.cat([self.codec.encode(part) for part in self.x.split(CHUNK)])
        public = sources.load(
            "omniglot+glyphs",
            sources.Reading(part="all", size=28, channels=1, glyphs_per_class=LETTERS, folder=given.folder),
        )
        self.public = torch.cat([self.codec.encode(part) for part in to_unit(public.pixels).split(CHUNK)])
        self.public_y = torch.from_numpy(public.labels)

    def maps(self, epsilon: float, clusters: int) -> ClassMaps:
        """Class maps for this price."""
        settings = config.Alignment(kind="moments", clusters=clusters)
        where = measured(self.public, self.public_y, settings, seed=0)
        return fitted(moments(self.z, self.y, where, settings, epsilon), where)

    def aligned(self, maps: ClassMaps | None) -> Tensor:
        """The private latents, where the public ones lie."""
        return self.z if maps is None else maps.to_public(self.z, self.y)

    def start(self) -> nn.Module:
        """The public denoiser with a row for each private class."""
        model = serialization.load_denoiser(self.given.denoiser, CPU)
        rows = class_rows(model).mean(0, keepdim=True).repeat(CLASSES, 1)
        return with_classes(model, rows).requires_grad_(True)

    def judge(self, epsilon: float) -> LinearJudge:
        """A head that costs `epsilon` by itself."""
        settings = config.Judge()
        x = torch.cat([unit(self.backbone.whitened(part, settings.directions)) for part in self.x.split(CHUNK)])
        multiplier = accountant.calibrate(
            epsilon, DELTA, lambda m: [Gaussian(noise_multiplier=m, count=settings.steps)]
        )
        rng = torch.Generator().manual_seed(self.given.seed)
        noised = lambda _, total: total + multiplier * torch.randn(total.shape, generator=rng, dtype=total.dtype)  # noqa: E731
        how: dict[str, Any] = {
            "classes": CLASSES,
            "steps": settings.steps,
            "expected": len(x),
            "units": single_records(len(x)),
        }
        return LinearJudge(self.backbone, train_head(settings, x, self.y, noised=noised, **how), settings.scale)


def signal(bench: Bench) -> None:
    """The table of `signal`."""
    z, y = bench.aligned(bench.maps(bench.given.moments, 1)), bench.y
    index = torch.randperm(len(z), generator=torch.Generator().manual_seed(1))[:LOOKED_AT]
    print(
        "| copies | "
        + " | ".join(f"{name}: signal, median norm" for name in GROUPS)
        + " | CPU s |\n|"
        + " --- |" * (len(GROUPS) + 2)
    )
    for copies in COPIES:
        model, started = bench.start(), time.process_time()
        trainable, halves = trainable_parameters(model, GROUPS), []
        generator = torch.Generator().manual_seed(2)
        norms: list[Tensor] = []
        for half in index.chunk(2):
            times: dict[str, Any] = {"low": 1, "high": bench.schedule.timesteps, "generator": generator}
            examples = denoising_examples(bench.schedule, z[half], y[half], draws=copies, **times)
            how: dict[str, Any] = {"clip": bench.given.clip, "chunk": AT_ONCE // copies, "rule": "per_group"}
            halves.append(clipped_sum(model, trainable, examples, **how, tell_norms=norms.append))
        spent, cells = time.process_time() - started, []
        for group in GROUPS:
            first, second = (
                torch.cat([g.flatten() for name, g in half.items() if groups_of(model)(name) == group])
                / len(index.chunk(2)[0])
                for half in halves
            )
            # Of two halves with nothing in common the product has no bias from their own noise.
            length = max(0.0, float(first @ second)) ** 0.5 / (bench.given.clip / len(GROUPS) ** 0.5)
            cells.append(f"{length:.4f}")
        print(
            f"| {copies} | " + " | ".join(cells) + f" | {spent:.0f} |  norm {float(torch.cat(norms).median()):.3f}",
            flush=True,
        )


def attempt(bench: Bench, epsilon: float, changes: dict[str, Any]) -> None:
    """One training, judged."""
    given, clusters, groups = bench.given, int(changes.pop("clusters", 1)), changes.pop("groups", "rows,film,rest")
    of_moments, of_judge = float(changes.pop("moments", given.moments)), float(changes.pop("judge", given.judge))
    settings = FineTuning.model_validate(
        {"clipping": "per_group", "rate_other": 8e-4, "ema_decay": 0.98, "trainable": groups.split(",")} | changes
    )
    started, maps = time.process_time(), bench.maps(of_moments, clusters)
    model, rate = bench.start(), min(1.0, settings.batch / RECORDS)
    if settings.batch:
        beside = [*priced(of_moments, 1), *priced(of_judge, config.Judge().steps)]
        steps = lambda m: [  # noqa: E731
            *beside,
            SubsampledGaussian(noise_multiplier=m, sample_rate=rate, steps=settings.steps),
        ]
        multiplier = accountant.calibrate(epsilon, DELTA, steps)
        settings = settings.model_copy(update={"sample_rate": rate})

        def corrupt(x: Tensor, y: Tensor, generator: torch.Generator) -> Any:
            times: dict[str, Any] = {"low": 1, "high": bench.schedule.timesteps, "generator": generator}
            return denoising_examples(bench.schedule, x, y, draws=settings.draws, **times)

        how: dict[str, Any] = {"noise_multiplier": multiplier, "expected_batch": settings.batch}
        model = train_privately(
            model,
            bench.aligned(maps),
            bench.y,
            corrupt,
            settings,
            **how,
            source=noise.system_source(),
            pairs=torch.Generator().manual_seed(0),
            physical_batch=AT_ONCE // settings.draws,
        )
    trained = time.process_time() - started
    y = torch.arange(given.images) % CLASSES
    rng, parts = torch.Generator().manual_seed(1), []
    with torch.inference_mode():
        for part in y.split(CHUNK):
            walk = time_grid(bench.schedule.timesteps, 0, STEPS)
            z = dpm_solver(bench.schedule, model, torch.randn(len(part), *bench.z.shape[1:], generator=rng), part, walk)
            parts.append(bench.codec.decode(maps.to_private(z, part, rng)).clamp(-1, 1))
    images = torch.cat(parts).clone()
    judge = bench.judge(of_judge)
    judged = torch.cat([judge.log_probabilities(part) for part in images.split(CHUNK)])
    judged_labels, pixels = judged.argmax(1), np.zeros((len(y), 1, 1, 1), np.uint8)  # only labels are asked for
    both = torch.from_numpy(weighed(ImageSet(pixels, y.numpy(), tuple(map(str, range(CLASSES)))), judged).labels)
    accuracies = {
        name: learnt(bench, images, labels) for name, labels in zip(LABELS, (y, judged_labels, both), strict=True)
    }
    agree = float((judged_labels == y).float().mean())
    options = " ".join(f"{name}={value}" for name, value in changes.items())
    print(
        f"| {epsilon:g} | {options} clusters={clusters} groups={groups} moments={of_moments:g} judge={of_judge:g} | {agree:.3f} | "
        + " | ".join(f"{value:.2%}" for value in accuracies.values())
        + f" | {trained:.0f} |",
        flush=True,
    )
    if given.keep:
        torch.save({"images": images[:2000], "y": y[:2000]}, given.keep)


def priced(epsilon: float, count: int) -> list[Gaussian]:
    """One Gaussian that costs as much."""
    find = lambda m: [Gaussian(noise_multiplier=m, count=count)]  # noqa: E731
    return find(accountant.calibrate(epsilon, DELTA, find))


def learnt(bench: Bench, images: Tensor, y: Tensor) -> float:
    """What a small CNN that learnt from the images reads of the test images."""
    model = train_classifier(images, y, CLASSES, steps=bench.given.judging, seed=0)
    return float((predict(model, bench.test[0]).argmax(1) == bench.test[1]).float().mean())


def variants(texts: Sequence[str]) -> list[dict[str, str]]:
    """Settings with several values, `draws=1,4`, in every combination; a comma inside brackets belongs to the value."""
    options = [[(name, one) for one in values.split("|")] for name, values in (text.split("=", 1) for text in texts)]
    return [dict(chosen) for chosen in itertools.product(*options)]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("signal", "try"))
    for name in ("autoencoder", "denoiser", "backbone"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="a folder of a store")
    parser.add_argument("--folder", default="", help="where data sets by name lie")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[10.0])
    parser.add_argument("--moments", type=float, default=0.71, help="epsilon of the moments by themselves")
    parser.add_argument("--judge", type=float, default=0.65, help="epsilon of the judge by itself")
    parser.add_argument("--clip", type=float, default=FineTuning().clip)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--judging", type=int, default=800, help="steps of the CNN")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="where the first images are kept")
    parser.add_argument(
        "--set", nargs="*", default=[], help="settings of the private training; batch=0 trains nothing; a|b tries both"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(given)
    if given.what == "signal":
        signal(bench)
        return
    print(
        "| epsilon | settings | judge agrees | " + " | ".join(LABELS) + " | CPU s |\n|" + " --- |" * (len(LABELS) + 4)
    )
    for changes in variants(given.set):
        for epsilon in given.epsilon:
            attempt(bench, epsilon, dict(changes))


if __name__ == "__main__":
    main()
