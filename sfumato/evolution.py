"""Private Evolution: private records vote for drawn candidates, and what follows is made of the candidates with votes.

A population holds as many candidates of each class. Behind the door each private record votes for the candidate of its own
class that is nearest in the features of a public network (`ballot`); the histogram of votes leaves with noise. All else here is
post-processing of it: weights, the next generation, and what a denoiser learns from (Lin et al. 2024, Algorithms 1 and 2).

Not covered: the noise and its price, see `sfumato.privacy.mechanisms.noisy_votes`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.backbone import Backbone
from sfumato.config import Generation, Pretraining
from sfumato.drawing import CHUNK, draw_public, refined
from sfumato.images import ImageSet, to_pixels
from sfumato.methods.parts import Parts, untuned
from sfumato.methods.plan import Evolution
from sfumato.progress import Progress, silent
from sfumato.resuming import Keeper
from sfumato.settings import Settings
from sfumato.training import pretrain

Reader = Callable[[Tensor], Tensor]
"""From images `[b, c, h, w]` in [-1, 1] to features `[b, d]`, each image by itself."""
SHOWN = 20
"""Candidates of a class in a picture."""
EXAMPLES = 4
"""Examples that a denoiser learns from, in candidates: enough for the shares of votes to show."""


@dataclass(frozen=True)
class Population:
    """Candidates of each class, class by class."""

    x: Tensor
    """`[classes, m, c, h, w]`, as the denoisers work on them, before the class maps."""

    @property
    def each(self) -> int:
        """m, the candidates of a class."""
        return self.x.shape[1]

    @property
    def labels(self) -> Tensor:
        """The class of each candidate, int64 `[classes, m]`."""
        classes, each = self.x.shape[:2]
        return torch.arange(classes, device=self.x.device)[:, None].expand(classes, each)


@dataclass(frozen=True)
class Elected:
    """Candidates, and what their votes make of them."""

    population: Population
    shares: Tensor
    """`[classes, m]`, the share of each candidate in its class."""


ROUND_APART = 10_007
"""Between the seeds of the variations of two rounds; drawing is post-processing, for which a plain seed serves."""


def reader(backbone: Backbone | None, how: Evolution) -> Reader:
    """The features in which the nearest candidate is found: those of the public classifier, or pixels where there is none."""
    return backbone.whitening_reader(how.directions) if backbone else lambda images: images.flatten(1)


def first_population(settings: Settings, parts: Parts, each: int, progress: Progress = silent) -> Population:
    """`each` candidates of every class, drawn by the public model: of public classes in turn, so that there is one of every kind."""
    classes, drawn = len(parts.facts.classes), []
    device = next(parts.public.parameters()).device
    generator = torch.Generator(device).manual_seed(settings.seed)
    for part in torch.arange(classes * each, device=device).split(CHUNK):
        drawn.append(draw_public(settings, parts, part, generator))
        progress(sum(map(len, drawn)), classes * each)
    # Neighbours in the order of drawing are of neighbouring public classes: every private class gets some of each.
    order = torch.arange(classes * each, device=device).view(each, classes).T
    return Population(torch.cat(drawn)[order])


@torch.inference_mode()
def images_of(parts: Parts, population: Population) -> Tensor:
    """Candidates as images `[classes * m, c, h, w]` in [-1, 1], where the private classes lie."""
    images = []
    for x, y in zip(population.x.flatten(0, 1).split(CHUNK), population.labels.flatten().split(CHUNK), strict=True):
        images.append(parts.codec.shown(parts.alignment.to_private(x, y, None) if parts.alignment else x))
    return torch.cat(images)


def ballot(read: Reader, parts: Parts, population: Population) -> Callable[[Tensor, Tensor], Tensor]:
    """From private images `[b, c, h, w]` and classes `[b]` to the candidate of that class that is nearest, int64 `[b]` below m.

    Nearest by the cosine of features, each image by itself.
    """
    classes, each = population.x.shape[:2]
    candidates = unit(torch.cat([read(part) for part in images_of(parts, population).split(CHUNK)])).view(
        classes, each, -1
    )

    def vote(x: Tensor, y: Tensor) -> Tensor:
        features = unit(read(x))
        chosen = torch.zeros_like(y)
        for label in y.unique():
            mine = y == label
            chosen[mine] = (features[mine] @ candidates[label].T).argmax(1)
        return chosen

    return vote


def unit(features: Tensor) -> Tensor:
    """Features `[n, d]` of length 1; zeros where they are not finite."""
    scaled = nn.functional.normalize(features.float(), dim=1)
    return scaled.where(scaled.isfinite().all(1, keepdim=True), 0.0)


def elected(population: Population, votes: Tensor, how: Evolution, *, noise_multiplier: float) -> Elected:
    """The share of each candidate in its class, from votes int64 `[classes, m]` with noise of this deviation.

    Votes below a few deviations of their noise count as none (Lin et al. 2024, Algorithm 2, H); more than `largest` times the mean of
    those that count are cut to that, since in many dimensions a few candidates are nearest to everybody. A class where no candidate has
    votes that count keeps all its candidates.
    """
    counted = votes.double().where(votes > how.threshold * noise_multiplier, 0.0)
    number = (counted > 0).sum(1, keepdim=True)
    counted = counted.minimum(how.largest * counted.sum(1, keepdim=True) / number.clamp(min=1))
    counted = counted.where(number > 0, 1.0)
    return Elected(population, counted / counted.sum(1, keepdim=True))


def next_population(settings: Settings, parts: Parts, elected: Elected, variation: float, number: int) -> Population:
    """As many candidates again for round `number`, by their shares: each once as it is, and every further time as a variation of itself.

    A variation is noised to a part of all times and denoised by the public model of no class (Lin et al. 2024, VARIATION_API, by SDEdit).
    """
    population = elected.population
    classes, each = population.x.shape[:2]
    generator = torch.Generator(population.x.device).manual_seed(settings.seed + ROUND_APART * number)
    picks = torch.multinomial(elected.shares.to(population.x.device), each, replacement=True, generator=generator).sort(
        1
    )[0]
    again = torch.cat([picks.new_zeros(classes, 1, dtype=torch.bool), picks[:, 1:] == picks[:, :-1]], 1).flatten()
    x = torch.stack([of_class[chosen] for of_class, chosen in zip(population.x, picks, strict=True)]).flatten(0, 1)
    x[again] = torch.cat(
        [varied(settings.generation, parts, part, variation, generator) for part in x[again].split(CHUNK)]
    )
    return Population(x.view(population.x.shape))


def varied(generation: Generation, parts: Parts, x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """x `[b, c, h, w]` noised to a `share` of all times and denoised by the public model of no class, in that share of the sampling steps."""
    steps = max(2, round(share * generation.steps))
    return refined(generation.model_copy(update={"refine": share, "refine_steps": steps}), parts, x, generator)


def with_most_votes(parts: Parts, elected: Elected) -> ImageSet:
    """The candidates of each class with the largest shares, class by class, as images."""
    shares, x = elected.shares, elected.population.x
    best = shares.topk(min(SHOWN, shares.shape[1]), dim=1).indices.to(x.device)
    chosen = Population(torch.stack([of_class[places] for of_class, places in zip(x, best, strict=True)]))
    labels = chosen.labels.flatten().cpu().numpy()
    return ImageSet(to_pixels(images_of(parts, chosen)), labels, parts.facts.classes)


def distilled(
    parts: Parts,
    elected: Elected,
    training: Pretraining,
    *,
    seed: int,
    progress: Progress = silent,
    keeper: Keeper | None = None,
) -> tuple[nn.Module, list[float]]:
    """The public denoiser, with rows for the private classes, after plain training on candidates by their shares; and its losses."""
    population = elected.population
    classes, each = population.x.shape[:2]
    generator = torch.Generator().manual_seed(seed)
    picks = torch.multinomial(elected.shares.cpu(), EXAMPLES * each, replacement=True, generator=generator)
    x = torch.cat([of_class[chosen] for of_class, chosen in zip(population.x, picks, strict=True)])
    y = torch.arange(classes, device=x.device).repeat_interleave(EXAMPLES * each)
    return pretrain(
        untuned(parts).to(x.device), parts.schedule, x, y, training, seed=seed, progress=progress, keeper=keeper
    )
