"""What private steps do to a public model after class moments, for few records far from the public images: a stand-in for X-rays.

    python benchmarks/targets.py xrays --epsilon 10 --minutes 16                 # fills a home with the public half, among others
    OMP_NUM_THREADS=1 python benchmarks/far_steps.py --folder DATA --autoencoder F --denoiser F --backbone F

Private: 388 and 3,494 *scenes* of `benchmarks/far_moments.py`, the classes told apart by a faint second photograph; public: Tiny ImageNet in
grey at 28x28. F are folders of the home's store. Moments and judge are priced beside the steps, (10, 1e-4) in all. *Frechet*: between features of
the public backbone, 800 drawn and 800 held-out scenes; *CNN*: a small one that learnt from what was drawn, on these scenes. `--to` keeps a picture,
a row for each way and the stand-in below.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import moments as of_moments
import torch
import torch.nn.functional as F
from far_moments import CHUNK, DELTA, FEW, MANY, SIDE, scenes
from moments import moments
from PIL import Image
from torch import Tensor

from artifacts import serialization
from sfumato import formats, sources
from sfumato.alignment import ClassMaps, fitted, measured
from sfumato.config import Alignment, FineTuning, Judge, Schedule
from sfumato.diffusion.objective import denoising_examples
from sfumato.diffusion.samplers import dpm_solver
from sfumato.diffusion.schedule import NoiseSchedule, make_schedule, time_grid
from sfumato.evaluation.classifier import predict, train_classifier
from sfumato.evaluation.fidelity import frechet_distance
from sfumato.images import to_unit
from sfumato.networks.denoiser import class_rows, with_classes
from sfumato.privacy import noise
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import Gaussian, SubsampledGaussian
from sfumato.privacy.engine.dp_sgd import train_privately

CPU, EPSILON, JUDGE, BATCH, DRAWN, SHOWN = torch.device("cpu"), 10.0, 2.0, 256, 800, 8
WAYS: tuple[tuple[str, float, dict[str, Any] | None], ...] = (
    ("no private step", 2.7, None),
    ("no private step, all but the judge's for the moments", 8.0, None),
    ("no private step, as much for the moments as the recipe gives", 5.5, None),
    ("class rows at .05", 5.5, {"trainable": ["rows"], "rate_rows": 0.05, "clipping": "flat"}),
    ("class rows at .01", 5.5, {"trainable": ["rows"], "rate_rows": 0.01, "clipping": "flat"}),
    ("class rows at .05, less for the moments", 2.7, {"trainable": ["rows"], "rate_rows": 0.05}),
    ("class rows, modulation, attention at .003", 2.7, {"trainable": ["rows", "film", "attention"]}),
    ("the same at 3e-4", 2.7, {"trainable": ["rows", "film", "attention"], "rate_other": 3e-4}),
)
"""What it is called, epsilon of the moments by themselves, and the private training."""


class Bench:
    """The public half, and the stand-in as it sees it."""

    def __init__(self, given: argparse.Namespace) -> None:
        facts = formats.load(given.autoencoder)[1]
        self.codec = serialization.load_codec(given.autoencoder, CPU, trained_on=[facts["trained_on"]])
        self.denoiser, self.backbone = given.denoiser, serialization.load_backbone(given.backbone, CPU)
        self.schedule = NoiseSchedule(make_schedule(Schedule()).alpha_bar, self.codec.limit)
        public = sources.load(f"{given.folder}/tiny-imagenet-32", sources.Reading(part="train", size=SIDE, channels=1))
        some = torch.randperm(len(public.pixels), generator=torch.Generator().manual_seed(0))[:20_000]
        self.photographs = to_unit(public.pixels[some.numpy()])
        self.where = measured(
            self.encoded(self.photographs),
            torch.as_tensor(public.labels)[some].long(),
            Alignment(kind="moments"),
            seed=0,
        )
        self.rng = torch.Generator().manual_seed(0)
        self.x, self.y = self.classes(FEW, MANY)
        self.z = self.encoded(self.x)
        self.test = self.classes(DRAWN // 2, DRAWN // 2)

    def encoded(self, x: Tensor) -> Tensor:
        """Latents."""
        return torch.cat([self.codec.encode(part) for part in x.split(CHUNK)])

    def classes(self, *counts: int) -> tuple[Tensor, Tensor]:
        """So many scenes of each class."""
        made = []
        for label, count in enumerate(counts):
            mark = F.avg_pool2d(self.photographs[CHUNK + label : CHUNK + label + 1], 5, 1, 2)
            made.append((0.85 * scenes(self.photographs, 0, count, self.rng) + 0.25 * mark).clamp(-1, 1))
        return torch.cat(made), torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))

    def features(self, x: Tensor) -> Tensor:
        """Of the public backbone."""
        return torch.cat([self.backbone.features(part) for part in x.split(CHUNK)])

    def maps(self, epsilon: float) -> ClassMaps:
        """Class maps at this price."""
        return fitted(moments(self.z, self.y, self.where, Alignment(kind="moments"), epsilon), self.where)


def trained(bench: Bench, maps: ClassMaps, of_moments_alone: float, changes: dict[str, Any] | None) -> torch.nn.Module:
    """The public denoiser after the private steps, if there are any."""
    model = formats.load_denoiser(bench.denoiser, CPU)
    model = with_classes(model, class_rows(model).mean(0, keepdim=True).repeat(2, 1)).requires_grad_(True)
    if changes is None:
        return model
    beside = [priced(of_moments_alone, 1), priced(JUDGE, Judge().steps)]
    rate, schedule = BATCH / len(bench.x), bench.schedule
    usual = {"clipping": "per_group", "draws": 4, "steps": 56, "sample_rate": rate}
    settings = FineTuning.model_validate(usual | changes)

    def events(multiplier: float) -> list[Any]:
        return [*beside, SubsampledGaussian(noise_multiplier=multiplier, sample_rate=rate, steps=settings.steps)]

    def corrupt(x: Tensor, y: Tensor, generator: torch.Generator) -> Any:
        return denoising_examples(
            schedule, x, y, draws=settings.draws, low=1, high=schedule.timesteps, generator=generator
        )

    return train_privately(
        model,
        maps.to_public(bench.z, bench.y),
        bench.y,
        corrupt,
        settings,
        noise_multiplier=accountant.calibrate(EPSILON, DELTA, events),
        expected_batch=BATCH,
        source=noise.system_source(),
        pairs=torch.Generator().manual_seed(0),
        physical_batch=BATCH // 4,
    )


def priced(epsilon: float, count: int) -> Gaussian:
    """One Gaussian that costs as much by itself."""

    def event(multiplier: float) -> list[Gaussian]:
        return [Gaussian(noise_multiplier=multiplier, count=count)]

    return event(accountant.calibrate(epsilon, DELTA, event))[0]


def draw(bench: Bench, maps: ClassMaps, model: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """Images of both classes in turn, and their labels."""
    y, rng = torch.arange(DRAWN) % 2, torch.Generator().manual_seed(1)
    walk, shape = time_grid(bench.schedule.timesteps, 0, 30), bench.z.shape[1:]
    with torch.inference_mode():
        images_drawn = [
            dpm_solver(bench.schedule, model, torch.randn(len(part), *shape, generator=rng), part, walk)
            for part in y.split(200)
        ]
        images = bench.codec.decode(maps.to_private(torch.cat(images_drawn), y, rng)).clamp(-1, 1)
    return images.clone(), y


def shown(images: Tensor, labels: Tensor) -> Tensor:
    """A row of some of both classes."""
    parts = [F.pad(one[0], (1, 1, 1, 1), value=-1.0) for k in (0, 1) for one in images[labels == k][:SHOWN]]
    return torch.cat(parts, 1)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("autoencoder", "denoiser", "backbone"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="a folder of a store")
    parser.add_argument("--folder", required=True, help="data folder with tiny-imagenet-32 below it")
    parser.add_argument("--to", type=Path, help="where a picture is kept")
    given = parser.parse_args()
    torch.set_num_threads(1)
    of_moments.CLASSES, of_moments.DELTA = 2, DELTA
    bench = Bench(given)
    real, rows = bench.features(bench.test[0]), []
    print("| private steps | epsilon of the moments | Frechet | CNN | CPU s |\n|" + " --- |" * 5)
    for name, epsilon, changes in WAYS:
        started, maps = time.process_time(), bench.maps(epsilon)
        images, y = draw(bench, maps, trained(bench, maps, epsilon, changes))
        network = train_classifier(images, y, 2, steps=300, seed=0)
        right = float((predict(network, bench.test[0]).argmax(1) == bench.test[1]).float().mean())
        distance = frechet_distance(bench.features(images), real)
        taken = time.process_time() - started
        print(f"| {name} | {epsilon:g} | {distance:.2f} | {right:.3f} | {taken:.0f} |", flush=True)
        rows.append(shown(images, y))
    network = train_classifier(bench.x, bench.y, 2, steps=300, seed=0)
    right = float((predict(network, bench.test[0]).argmax(1) == bench.test[1]).float().mean())
    print(
        f"| the stand-in itself | | {frechet_distance(bench.features(bench.classes(400, 400)[0]), real):.2f} | {right:.3f} | |"
    )
    if given.to:
        grey = ((torch.cat([*rows, shown(bench.x, bench.y)]) + 1) * 127.5).byte().numpy()
        picture = Image.fromarray(grey)
        picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST).save(given.to)


if __name__ == "__main__":
    main()
