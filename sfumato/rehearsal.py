"""The rehearsal: checks of a run on public images alone, before its first epsilon is spent.

Three questions, all answered with public images that no stage has learnt from (`sfumato.held_out`):

- Does the public model draw such images? The Frechet distance of its samples to held-out images, in the features of a
  classifier of the public classes, beside that of other held-out images, and beside that of draws from one Gaussian fitted to
  the model's training data (pixels, or latents). A model that has learnt only means and correlations draws coloured texture;
  private fine-tuning of it pays for texture.
- Does the autoencoder preserve such images? The classifier's accuracy above chance on reconstructions, as a share of that on the
  images.
- Can retrieval work? How often the nearest key of a held-out image is of its own class, beside chance (measured with the knowledge
  base).

The held-out images are split into two halves of the same classes, and samples are drawn of these classes too: all sets have
equally many images of each. Features are compared along only as many of the widest directions as the number of images allows. So
the distances compare with each other, but with nothing else, since the classifier is the run's own.

Not covered: whether the private images resemble the public ones, which nobody may look at before paying for it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfumato import held_out, latents
from sfumato.config import Generation, RehearsalSettings
from sfumato.diffusion.samplers import NoisePredictor
from sfumato.diffusion.schedule import NoiseSchedule
from sfumato.drawing import public_samples
from sfumato.evaluation.fidelity import frechet_distance
from sfumato.images import shape_of, to_pixels, to_unit
from sfumato.latents import Codec
from sfumato.progress import Progress, silent
from sfumato.rehearsal_findings import RehearsalFindings

Read = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Images [n, c, h, w] in [-1, 1] to features [n, d] and the classes read [n], on the CPU."""
SAMPLES, HELD_OUT = "drawn by the public model", "public images held out"
BACK, GAUSSIAN = "the same after the autoencoder", "draws from a Gaussian fitted to public images"
"""Captions of the picture, in order."""
SHOWN, CHUNK = 24, 250
"""Images under each caption; images drawn or read at once."""
PER_DIRECTION = 10
"""Images of a set per direction in which features are compared: with fewer, the distance would measure their number."""
FEWEST = 20
"""Images of a set below which no distance is stated."""
FITTED = 5000
"""Public images to which the Gaussian is fitted, at most."""
FEWEST_READ = 20
"""Smallest number of held-out images that the classifier reads beyond those by always naming the most common class; with fewer, the
share that survives the autoencoder means nothing."""


class Distances(NamedTuple):
    """Frechet distances to one half of the held-out images."""

    samples: float
    real: float
    """Distance of the other half."""
    gaussian: float


class Legibility(NamedTuple):
    """Accuracy of a classifier on held-out images."""

    before: float
    """Share that it reads right."""
    after: float
    """Share that it reads right after the autoencoder."""
    survives: float | None
    """Accuracy above chance after, as a share of that before; None where that is too little for a ratio."""


class Rehearsed(NamedTuple):
    """Findings of a rehearsal, and its pictures."""

    findings: RehearsalFindings
    shown: list[tuple[str, np.ndarray]]
    """Images uint8 `[n, c, h, w]` under a caption each."""


@torch.no_grad()
def rehearse(
    levels: NoiseSchedule,
    generation: Generation,
    public: held_out.HeldOut,
    codec: Codec,
    denoiser: NoisePredictor | None,
    read: Read,
    *,
    images: int,
    seed: int,
    device: torch.device,
    progress: Progress = silent,
) -> Rehearsed:
    """Measure a public model and its autoencoder on the held-out images of `public`, drawing as `generation` says.

    Without a `denoiser` there is no public model to draw from. At most `images` are drawn, of the classes of as many held-out
    images.

    Many parameters: each is a public part that is measured, or how it is.
    """
    order = dealt(torch.from_numpy(public.withheld.labels), seed)
    withheld, y = to_unit(public.withheld.pixels).to(device)[order], torch.from_numpy(public.withheld.labels)[order]
    shown = {HELD_OUT: withheld[:SHOWN]}
    findings = RehearsalFindings(held_out=len(withheld), model=denoiser is not None)
    features, before = read(withheld) if len(withheld) else (withheld, y)
    if codec is not latents.PIXELS and len(withheld):
        back = torch.cat([codec.decode(codec.encode(part)) for part in withheld.split(CHUNK)])
        shown[BACK] = back[:SHOWN]
        seen = reading(y, before, read(back)[1])
        error, spread = float((back - withheld).square().mean().sqrt()), latents.pixel_spread(withheld)
        changes = {"error": error, "spread": spread, "read": seen.before, "read_after": seen.after}
        findings = findings.model_copy(update={**changes, "survives": seen.survives})
    size = set_size(len(withheld), images)
    if denoiser is not None:
        wanted, shape = y[: size or SHOWN].to(device), codec.shape(shape_of(withheld))
        generator, parts = torch.Generator(device).manual_seed(seed), []
        for part in wanted.split(CHUNK):
            z = public_samples(generation, levels, denoiser, shape, part, generator)
            parts.append(codec.decode(z).clamp(-1, 1))
            progress(sum(map(len, parts)), len(wanted))
        drawn = torch.cat(parts)
        shown = {SAMPLES: drawn[:SHOWN]} | shown
        if size:
            fitted = codec.encode(to_unit(public.learnt.pixels[:FITTED]).to(device))
            flat = codec.decode(gaussian_draws(fitted, size, codec.limit, generator))
            apart, directions = distances(features, read(drawn)[0], read(flat)[0])
            findings = findings.model_copy(update={"images": size, "directions": directions, **apart._asdict()})
            shown[GAUSSIAN] = flat[:SHOWN]
    return Rehearsed(findings, [(caption, to_pixels(part)) for caption, part in shown.items() if len(part)])


def gaussian_draws(x: Tensor, count: int, limit: float, generator: torch.Generator) -> Tensor:
    """`count` draws from the Gaussian with mean and covariance of x `[n, ...]`, clamped to [-limit, limit].

    A draw is the mean plus a combination of the centred records with normal weights: exactly that Gaussian, and no covariance
    has to be stored or taken apart.
    """
    flat = x.flatten(1)
    centred = flat - flat.mean(0)
    weights = torch.randn(count, len(flat), generator=generator, device=flat.device, dtype=flat.dtype)
    drawn = flat.mean(0) + weights @ centred / max(1, len(flat) - 1) ** 0.5
    return drawn.clamp(-limit, limit).view(count, *x.shape[1:])


def dealt(labels: Tensor, seed: int) -> Tensor:
    """An order of images with `labels` int64 `[n]` in which the i-th of the first and of the second n // 2 are of one class.

    Where classes have an odd number of images, the remaining ones are paired at the end, whatever their class.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    alike, left = [order[:0].view(0, 2)], [order[:0]]
    for label in labels.unique():
        mine = order[labels[order] == label]
        even = len(mine) // 2 * 2
        alike.append(mine[:even].view(-1, 2))
        left.append(mine[even:])
    same, rest = torch.cat(alike), torch.cat(left)
    same = same[torch.randperm(len(same), generator=generator)]
    rest = rest[torch.randperm(len(rest), generator=generator)]
    even = len(rest) // 2 * 2
    pairs = torch.cat([same, rest[:even].view(-1, 2)])
    return torch.cat([pairs[:, 0], pairs[:, 1], rest[even:]])


def set_size(held_out: int, images: int) -> int:
    """Images of each set, by the numbers of held-out and drawn images; 0 where these are too few for a distance."""
    size = min(held_out // 2, images)
    return size if size >= FEWEST else 0


def distances(held_out: Tensor, samples: Tensor, gaussian: Tensor) -> tuple[Distances, int]:
    """Distances of samples, of a Gaussian's draws `[m, d]` and of as many of the first half of held-out features `[n, d]`, which are
    `dealt`, to as many of the second, n >= 2m; and the number of directions, those along which all of these vary most."""
    size, half = len(samples), len(held_out) // 2
    centre = held_out.mean(0)
    directions = max(1, min(held_out.shape[1], size // PER_DIRECTION))
    axes = torch.linalg.svd((held_out - centre).double(), full_matrices=False).Vh[:directions].T
    sets = (samples, held_out[:size], gaussian, held_out[half : half + size])
    drawn, other, flat, compared = ((part.double() - centre) @ axes for part in sets)
    return Distances(*(frechet_distance(compared, one) for one in (drawn, other, flat))), directions


def reading(labels: Tensor, before: Tensor, after: Tensor) -> Legibility:
    """Accuracy on `labels` `[n]` of the classes read before and after a round trip, `[n]` each."""
    right, still = (int((classes == labels).sum()) for classes in (before, after))
    chance = int(torch.bincount(labels).max())
    known = right - chance
    survives = min(1.0, max(0.0, (still - chance) / known)) if known >= FEWEST_READ else None
    return Legibility(right / len(labels), still / len(labels), survives)


def complaints(findings: RehearsalFindings, wanted: RehearsalSettings) -> tuple[str, ...]:
    """The thresholds that were missed, each with its number and the way out; empty where none was."""
    lines = []
    if findings.nearness is not None and not findings.nearness < wanted.nearer:
        latents = "let it work on latents (latent.kind=patch), " if findings.error is None else ""
        lines.append(
            f"public samples lie {findings.nearness:.2f} of the way from public images to a Gaussian's draws, and must lie below "
            f"rehearsal.nearer={wanted.nearer:g} (Frechet distances: samples {findings.samples:.3g}, other public images "
            f"{findings.real:.3g}, Gaussian {findings.gaussian:.3g}): train the public model longer (recipe.minutes, or pretraining.steps), {latents}or take "
            "simpler public images that are nearer to the private ones (data.public)"
        )
    if findings.survives is not None and findings.survives < wanted.survives:
        lines.append(
            f"of what a classifier reads in public images, {findings.survives:.1%} survives the autoencoder, and at least "
            f"rehearsal.survives={wanted.survives:g} must: train it longer (recipe.minutes, or latent.steps), or give latents more numbers "
            "(latent.channels)"
        )
    return tuple(lines)
