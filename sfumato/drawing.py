"""From a method's `draw` to a set of images: classes by their shares, bounded memory, a seed that has nothing to do with privacy.

A method whose images carry their own labels returns these in place of the requested ones; a class may then have none.

This file decodes latents, maps images drawn in the public images' space back and, where the settings say so, refines them with the
public model and varies them; everything after sees pixels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.class_shares import wanted_classes
from sfumato.config import Generation
from sfumato.diffusion.objective import Randomness, normal
from sfumato.diffusion.samplers import NO_CLASS, NoisePredictor, solve
from sfumato.diffusion.schedule import NoiseSchedule, add_noise, predicted_image, time_grid
from sfumato.images import Drawn, ImageSet, to_pixels
from sfumato.judge import LinearJudge
from sfumato.matching import completed, matched
from sfumato.methods import METHODS
from sfumato.methods.parts import Parts, planned
from sfumato.methods.plan import Facts
from sfumato.networks.denoiser import class_rows
from sfumato.partition import Partition
from sfumato.progress import Progress, silent
from sfumato.settings import Settings
from sfumato.variation import varied

Draw = Callable[[Settings, Parts, Tensor, torch.Generator], Tensor]
Labels = Callable[[Settings, Parts, Tensor], tuple[Tensor, Tensor]]
PrivateDraw = Callable[[Settings, Parts, tuple[Tensor, Tensor], Tensor, Randomness], Tensor]
Finish = Callable[[Settings, Parts, Tensor, Randomness], Tensor]


class PaidDrawing(Protocol):
    """What a mechanism calls."""

    def __call__(self, x: Tensor, y: Tensor, noise: Randomness, counts: Tensor | None = None) -> ImageSet:
        """The set, from private records `[n, c, h, w]`, their classes or cells `[n]`, noise, and noisy counts of the cells."""


CHUNK, PAID_TOGETHER = 1000, 100
"""Images drawn at once; and by a mechanism, which may ask a thousand members or all records for each, so that a person sees how far it is."""
DRAWN = 0.5
"""Share of the progress at which all images are drawn, where they then move: both take about as long in latents."""
EDITIONS_APART = 1_000_003
"""Distance between the seeds of two editions; the CPU's generator uses only the last 32 bits of a seed."""


def draw_images(
    draw: Draw,
    settings: Settings,
    parts: Parts,
    facts: Facts,
    count: int,
    device: torch.device,
    progress: Progress = silent,
    source: Randomness | None = None,
    labels: Labels | None = None,
    shares: Sequence[float] = (),
) -> ImageSet:
    """`count` images in order of class, as many of each as `shares` says, or evenly without.

    Drawing is post-processing, for which a plain seed serves; where it is the mechanism itself, the caller gives the `source` of
    its noise, and nothing moves. `labels` splits what was drawn into images and their labels.

    Many parameters: a drawing takes all that a set is made of, and each is made elsewhere.
    """
    start = settings.seed + EDITIONS_APART * settings.generation.edition
    generator: Any = source or torch.Generator(device).manual_seed(start)
    wanted, latents, classes = wanted_classes(shares, len(facts.classes), count), [], []
    target = None if source else parts.target
    drawn, share = (completed(wanted), DRAWN) if target else (wanted, 1.0)
    for y in drawn.split(PAID_TOGETHER if source else CHUNK):
        x = draw(settings, parts, y.to(device), generator)
        x, y = labels(settings, parts, x) if labels else (x, y)
        if parts.alignment:
            x = parts.alignment.to_private(x, y.to(device), generator)
        if settings.generation.refine:
            x = refined(settings.generation, parts, x, generator)
        latents.append(x)
        classes.append(y.cpu())
        progress(round(share * count * sum(map(len, latents)) / len(drawn)), count)
    x, y = torch.cat(latents), torch.cat(classes)
    if target:

        def moved(done: int, steps: int) -> None:
            progress(round(count * (share + (1 - share) * done / steps)), count)

        x, _ = matched(x, y.to(x.device), target, limit=parts.schedule.limit, seed=start, progress=moved)
        x, y = x[:count], y[:count]
    vary, ways = 0.0 if source else settings.generation.vary, torch.Generator(x.device).manual_seed(start)
    shown = [to_pixels(varied(parts.codec, parts.codec.decode(part), vary, ways)) for part in x.split(CHUNK)]
    return ImageSet(np.concatenate(shown), y.numpy(), facts.classes)


def draw_set(
    settings: Settings,
    parts: Parts,
    count: int,
    device: torch.device,
    *,
    guide: LinearJudge | None = None,
    shares: Sequence[float] = (),
    progress: Progress = silent,
) -> ImageSet:
    """Draw a set by the method of the settings from its parts, with a plain seed; without any part made from private data, by the public
    model alone. A judge as `guide` pulls each image towards its class.

    Many parameters: a drawing takes all that a set is made of, and each is made elsewhere.
    """
    if guide:
        parts = steered(parts, guide, settings.judge.pull)
    method, labels = METHODS[settings.method.name], None
    draw: Draw = draw_public
    if parts.tuned is not None or parts.prototypes is not None or parts.alignment:
        draw, labels = planned(method.draw), method.labels
    return draw_images(draw, settings, parts, parts.facts, count, device, progress, labels=labels, shares=shares)


@torch.inference_mode()
def refined(generation: Generation, parts: Parts, x: Tensor, generator: Any) -> Tensor:
    """Images or latents x `[b, c, h, w]`, noised to a small time and denoised by the public model of no class (SDEdit, Meng et al. 2022)."""
    schedule = parts.schedule
    walk = time_grid(max(1, round(generation.refine * schedule.timesteps)), 0, generation.refine_steps)
    times = torch.full((len(x),), walk[0], device=x.device)
    noised = add_noise(schedule, x, times, normal(torch.empty_like(x), generator))
    nobody = torch.full_like(times, NO_CLASS)
    return solve(generation, schedule, parts.public, noised, nobody, walk, generator=generator)


@dataclass
class _CellPoints:
    """The points that paid trajectories of cells end at, drawn in the order of a set's images, each trajectory once."""

    cells: Tensor
    """`[m]`, the cell of each point."""
    firsts: Tensor
    """`[m]`, the first place with a point of the same trajectory."""
    drawn: Tensor | None = None
    """`[m, c, h, w]`; zeros where a point is not drawn yet, or is another one again."""
    done: int = 0

    def next_points(self, count: int, ends: Callable[[Tensor], Tensor]) -> Tensor:
        """The next `count` points `[count, c, h, w]`; `ends` draws a new one of each of the cells that it is given."""
        places = torch.arange(self.done, self.done + count)
        new = places[self.firsts[places] == places]
        if len(new):
            points = ends(self.cells[new])
            if self.drawn is None:
                self.drawn = points.new_zeros(len(self.cells), *points.shape[1:])
            self.drawn[new] = points
        self.done += count
        return planned(self.drawn)[self.firsts[places]]


def private_drawing(
    draw: PrivateDraw,
    settings: Settings,
    parts: Parts,
    facts: Facts,
    count: int,
    device: torch.device,
    progress: Progress = silent,
    shares: Sequence[float] = (),
    finish: Finish | None = None,
    partition: Partition | None = None,
) -> PaidDrawing:
    """The function that a mechanism calls to draw `count` images: from private records `[n, c, h, w]` in the model's space, their labels `[n]` and
    the noise to the set.

    Where `draw` ends at points from which more images branch, `finish` makes an image of each, and the set is `Drawn`, with the points.
    With a `partition` labels are cells, and the points of a class are shared out among its cells by their noisy counts, which are given too.

    Many parameters: a drawing takes all that a set is made of, and each is made elsewhere.
    """

    def drawn(x: Tensor, y: Tensor, noise: Randomness, counts: Tensor | None = None) -> ImageSet:
        points: list[Tensor] = []
        cells = _CellPoints(*partition.places(planned(counts))) if partition else None

        def once(settings: Settings, parts: Parts, wanted: Tensor, generator: Any) -> Tensor:
            def ends(of: Tensor) -> Tensor:
                return draw(settings, replace(parts, cell_counts=counts), (x, y), of.to(wanted.device), noise)

            end = cells.next_points(len(wanted), ends) if cells else ends(wanted)
            if finish is None:
                return end
            points.append(end.cpu())
            return finish(settings, parts, end, noise)

        images = draw_images(once, settings, parts, facts, count, device, progress, noise, shares=shares)
        if finish is None:
            return images
        return Drawn(images.pixels, images.labels, images.classes, points=torch.cat(points).numpy())

    return drawn


def some_of_each(images: ImageSet, count: int) -> np.ndarray:
    """`count` images of each class, evenly spread over it, class by class, black ones where a class has too few: uint8 `[n, c, h, w]`.

    Evenly spread, since the classes of a judge begin with images drawn for other classes.
    """
    page = np.zeros((len(images.classes), count, *images.pixels.shape[1:]), np.uint8)
    for label, row in enumerate(page):
        shown = places_of(images, label, count)
        row[: len(shown)] = images.pixels[shown]
    return page.reshape(-1, *images.pixels.shape[1:])


def places_of(images: ImageSet, label: int, count: int) -> np.ndarray:
    """Positions of at most `count` images of a class, evenly spread over it: int64 `[count]`."""
    places = np.flatnonzero(images.labels == label)
    count = min(count, len(places))
    return places[np.arange(count) * len(places) // max(1, count)]


class Steered(nn.Module):
    """A denoiser that a judge pulls towards the requested class: the predicted clean image moves along the gradient of its log-probability.

    It moves by (1 - alpha_bar) `pull` times the gradient, which is Bayes' rule to first order: given x_t, an image of unit variance
    has a remaining variance of 1 - alpha_bar. Without a requested class nothing moves. Gradients go through the decoder and not through
    the denoiser, whose number of evaluations therefore stays the same.
    """

    def __init__(self, denoise: nn.Module, judge: LinearJudge, parts: Parts, pull: float):
        super().__init__()
        self.denoise, self.judge, self.parts, self.pull = denoise, judge, parts, pull

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Predicted noise `[b, c, h, w]`, also inside `inference_mode`."""
        noise, schedule = self.denoise(x, t, y), self.parts.schedule
        wanted = y >= 0
        if not wanted.any():
            return noise
        with torch.inference_mode(False), torch.enable_grad():
            clean = predicted_image(schedule, x.clone(), t.clone(), noise.clone()).detach()[wanted].requires_grad_()
            maps, classes = self.parts.alignment, y.clone()[wanted]
            there = maps.to_private(clean, classes, None) if maps else clean
            log_probabilities = self.judge.log_probabilities(self.parts.codec.shown(there))
            (slope,) = torch.autograd.grad(log_probabilities.gather(1, classes[:, None]).sum(), clean)
        moved = torch.zeros_like(noise)
        moved[wanted] = self.pull * schedule.noise(t[wanted]) ** 2 * slope
        return noise - schedule.signal(t) / schedule.noise(t) * moved


def steered(parts: Parts, judge: LinearJudge, pull: float) -> Parts:
    """The parts with a denoiser of the private classes that the judge pulls towards the requested class."""
    return replace(parts, tuned=Steered(planned(parts.tuned), judge, parts, pull))


@torch.inference_mode()
def draw_public(settings: Settings, parts: Parts, y: Tensor, generator: torch.Generator) -> Tensor:
    """Draw by the public model without any private data: public classes in turn, whatever the requested class y `[b]`."""
    public_classes = len(class_rows(parts.public))
    wanted = torch.arange(len(y), device=y.device) % public_classes
    return public_samples(settings.generation, parts.schedule, parts.public, parts.shape, wanted, generator)


@torch.inference_mode()
def public_samples(
    generation: Generation,
    schedule: NoiseSchedule,
    denoiser: NoisePredictor,
    shape: tuple[int, int, int],
    classes: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Samples of a public model for public `classes` `[b]`, in pixels or latents of this shape: `[b, c, h, w]`."""
    x = normal(torch.empty(len(classes), *shape, device=classes.device), generator)
    walk = time_grid(schedule.timesteps, 0, generation.steps)
    return solve(generation, schedule, denoiser, x, classes, walk, generator=generator)
