"""Membership attacks, which guess from a model or from images which records it was trained on, and their success.

An attack gives each record a score, higher for "was a member". `membership` turns the scores of members and of others
into a ROC curve: an area of 0.5 is guessing. Two attacks are here. `loss_gaps`: how much better the tuned denoiser
predicts a record's noise than the public one does (at several times, same noise for both). `nearest_distance`: how near
the closest image comes. `canary_scores` is the first attack at the very examples that training used.

Label: measurements on private records are INTERNAL.
Not covered: attacks that train shadow models or follow the training step by step. A failed attack proves nothing; a
successful one proves a leak only as far as members and others are alike but for their membership (`CONTROL` tests that).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.diffusion.objective import Corrupt, normal, record_losses
from sfumato.diffusion.samplers import NO_CLASS, NoisePredictor
from sfumato.diffusion.schedule import NoiseSchedule, add_noise
from sfumato.errors import BadInput
from sfumato.evaluation.attack_results import LEAST_RECORDS, Membership
from sfumato.progress import Progress, silent

STRICT_RATE, LOOSE_RATE = 0.01, 0.1
"""False positive rates at which the true positive rate is reported (Carlini et al. 2022 recommend the strict one)."""
CURVE_RATES = tuple(float(rate) for rate in np.unique(np.r_[0, np.geomspace(1e-3, 1, 46), np.linspace(0, 1, 21)]))
"""False positive rates at which the ROC curve is stored."""
ROUNDING = 1e-12
"""Added to a false positive rate that is asked for, so that a share of records which equals it but for rounding is within it."""
LEVEL, RESAMPLES = 0.95, 1000
"""Level of the bootstrap interval, and how often it draws."""
TIME_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Times at which losses are compared, as shares of T."""
DRAWS = 8
"""Draws of noise over which the loss of a record at a time is averaged."""
CHUNK = 1024
"""Records per batch."""
CONTROL = "control: public model alone"
"""Name of the attack on a model that saw no private record: it should guess, or members and others differ by themselves."""
COMBINED, NEAREST = "loss, all t", "nearest published image"


@dataclass(frozen=True)
class Models:
    """The released denoiser, and the public one that it was tuned from."""

    schedule: NoiseSchedule
    public: nn.Module
    tuned: nn.Module


def membership(
    name: str, members: Tensor | np.ndarray, others: Tensor | np.ndarray, *, t: int | None = None
) -> Membership:
    """Judge an attack by its scores of members [n] and of others [m], higher for "was a member"; n, m >= 10."""
    from sklearn.metrics import roc_curve  # takes a second, and those who only read a result need none of it

    members, others = _scores(name, members, "members"), _scores(name, others, "others")
    truth = np.r_[np.ones(len(members)), np.zeros(len(others))]
    scores = np.r_[members, others]
    false_rates, true_rates, _ = roc_curve(truth, scores, drop_intermediate=False)
    ranks, levels = np.unique(scores, return_inverse=True)
    counts = [np.bincount(part, minlength=len(ranks)) for part in (levels[: len(members)], levels[len(members) :])]
    return Membership(
        name=name,
        auc=_area(*counts),
        auc_interval=_interval(*counts),
        strict_rate=_rate_at(false_rates, true_rates, STRICT_RATE),
        loose_rate=_rate_at(false_rates, true_rates, LOOSE_RATE),
        curve=tuple(_rate_at(false_rates, true_rates, rate) for rate in CURVE_RATES),
        members=len(members),
        others=len(others),
        t=t,
    )


def attack_times(timesteps: int) -> list[int]:
    """The diffusion times 1..T at which losses are compared."""
    return sorted({max(1, round(share * timesteps)) for share in TIME_SHARES})


@torch.inference_mode()
def denoising_losses(
    schedule: NoiseSchedule,
    model: NoisePredictor,
    x: Tensor,
    y: Tensor,
    *,
    times: Sequence[int],
    draws: int,
    generator: torch.Generator,
) -> Tensor:
    """Mean squared error of the predicted noise for records x `[n, c, h, w]` of classes y `[n]`: `[len(times), n]`.

    Each number is the mean over `draws` draws of noise and over pixels. Generators in the same state give the same noise
    to every model, so that the losses of two models compare record by record.

    Many parameters: the models, the records, and how often each is noised.
    """
    if not len(x):
        raise BadInput("no records to attack: give at least one")
    parts = []
    for images, classes in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        rows = []
        for time in times:
            t = torch.full((len(images),), time, device=x.device)
            total = torch.zeros(len(images), device=x.device)
            for _ in range(draws):
                noise = normal(images, generator)
                wrong = model(add_noise(schedule, images, t, noise), t, classes) - noise
                total += wrong.square().flatten(1).mean(1)
            rows.append(total / draws)
        parts.append(torch.stack(rows))
    return torch.cat(parts, 1)


def loss_gaps(
    models: Models, x: Tensor, y: Tensor, *, times: Sequence[int], draws: int = DRAWS, seed: int
) -> tuple[Tensor, Tensor]:
    """(public loss - tuned loss, - public loss) of records x, y at each of the times, both `[len(times), n]`.

    The public model gets no class, since it knows other classes. The first score is the attack: subtracting from the public loss
    removes how hard a record is. The second knows no private record and serves as `CONTROL`. The seed draws the attacker's noise.
    """
    arguments: dict[str, Any] = {"times": times, "draws": draws}
    public = denoising_losses(
        models.schedule, models.public, x, torch.full_like(y, NO_CLASS), generator=_noise(x, seed), **arguments
    )
    tuned = denoising_losses(models.schedule, models.tuned, x, y, generator=_noise(x, seed), **arguments)
    return public - tuned, -public


def loss_attacks(
    models: Models,
    members: tuple[Tensor, Tensor],
    others: tuple[Tensor, Tensor],
    *,
    seed: int,
    progress: Progress = silent,
) -> list[Membership]:
    """The loss attack on records (x `[n, c, h, w]`, y `[n]`): all times combined, each time alone, and the control."""
    times = attack_times(models.schedule.timesteps)
    inside, plain_inside = loss_gaps(models, *members, times=times, seed=seed)
    progress(1, 2)
    outside, plain_outside = loss_gaps(models, *others, times=times, seed=seed + 1)
    progress(2, 2)
    attacks = [membership(COMBINED, *combined(inside, outside))]
    attacks += [membership(f"loss, t = {t}", inside[i], outside[i], t=t) for i, t in enumerate(times)]
    return [*attacks, membership(CONTROL, *combined(plain_inside, plain_outside))]


def combined(members: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of several attacks, `[k, n]` and `[k, m]`, as one each: the mean of the scores, each attack standardised."""
    both = torch.cat([members, others], 1).double()
    spread = both.std(1, keepdim=True)
    scores = ((both - both.mean(1, keepdim=True)) / spread.where(spread > 0, 1.0)).mean(0)
    return scores[: members.shape[1]], scores[members.shape[1] :]


@torch.inference_mode()
def canary_scores(
    corrupt: Corrupt, start: NoisePredictor, tuned: NoisePredictor, x: Tensor, y: Tensor, *, rounds: int, seed: int
) -> Tensor:
    """How much tuning lowered the loss of records x `[m, c, h, w]`, y `[m]` at examples like those of training: `[m]`.

    `corrupt` makes the method's own training examples, so the attack uses those of training, whatever the method; `start` is the
    denoiser before tuning, on the same classes. Mean over `rounds` rounds of examples, the same ones for both models.

    Many parameters: the models, the records, and how often each is noised.
    """
    generator, total = _noise(x, seed), torch.zeros(len(x), device=x.device)
    for _ in range(rounds):
        parts = [corrupt(*part, generator) for part in zip(x.split(CHUNK), y.split(CHUNK), strict=True)]
        total += torch.cat([record_losses(start, part) - record_losses(tuned, part) for part in parts])
    return total / rounds


def nearest(images: Tensor, reference: Tensor, *, chunk: int = CHUNK) -> tuple[Tensor, Tensor]:
    """Root mean squared difference per pixel of images `[n, ...]` to the nearest of `reference` `[m, ...]`, and which: `[n]`, `[n]`."""
    for part, name in ((images, "images to compare"), (reference, "records to compare with")):
        if not len(part):
            raise BadInput(f"{name}: there are none, give at least one")
        if not part.isfinite().all():
            raise BadInput(f"{name}: some pixels are NaN or infinite; look for broken images")
    if images.shape[1:] != reference.shape[1:]:
        sizes = f"{list(images.shape[1:])} and {list(reference.shape[1:])}"
        raise BadInput(f"images and records are {sizes} (c, h, w); bring both to one size")
    flat = reference.flatten(1)
    which = torch.cat([_closest(part.flatten(1), flat, chunk) for part in images.split(chunk)])
    parts = zip(images.split(chunk), which.split(chunk), strict=True)
    return torch.cat([(part - reference[at]).double().square().flatten(1).mean(1).sqrt() for part, at in parts]), which


def nearest_distance(images: Tensor, reference: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """Root mean squared difference per pixel of images `[n, ...]` to the nearest of `reference` `[m, ...]`: `[n]`."""
    return nearest(images, reference, chunk=chunk)[0]


def image_attack(images: Tensor, members: Tensor, others: Tensor) -> Membership:
    """The attack on published images alone `[k, c, h, w]`: a record is taken for a member the nearer an image comes to it."""
    return membership(NEAREST, -nearest_distance(members, images), -nearest_distance(others, images))


def _closest(rows: Tensor, flat: Tensor, chunk: int) -> Tensor:
    """Positions in `flat` `[m, d]` of the nearest row to each of `rows` `[b, d]`, at most `chunk` of `flat` at a time."""
    best, which = rows.new_full((len(rows),), torch.inf), torch.zeros(len(rows), dtype=torch.long, device=rows.device)
    for start in range(0, len(flat), chunk):
        distance, at = torch.cdist(rows, flat[start : start + chunk]).min(1)
        which = torch.where(distance < best, at + start, which)
        best = torch.minimum(best, distance)
    return which


def _noise(like: Tensor, seed: int) -> torch.Generator:
    """The attacker's noise: it protects nobody, so a plain seed serves and results can be repeated."""
    return torch.Generator(like.device).manual_seed(seed)


def _scores(name: str, scores: Tensor | np.ndarray, who: str) -> np.ndarray:
    """Scores as float64 [n], finite and enough of them."""
    plain = torch.as_tensor(scores).detach().cpu().double().numpy()
    if plain.ndim != 1:
        raise BadInput(f"attack {name!r}: scores of {who} have shape {list(plain.shape)}; give [n], one per record")
    if len(plain) < LEAST_RECORDS:
        raise BadInput(
            f"attack {name!r}: {len(plain)} {who} are too few to judge it by; it takes {LEAST_RECORDS} or more"
        )
    if not np.isfinite(plain).all():
        raise BadInput(f"attack {name!r}: some scores of {who} are NaN or infinite; look for a model that diverged")
    return plain


def _rate_at(false_rates: np.ndarray, true_rates: np.ndarray, rate: float) -> float:
    """The largest true positive rate at a false positive rate of at most `rate`: no threshold is interpolated."""
    return float(true_rates[np.searchsorted(false_rates, rate + ROUNDING, side="right") - 1])


def _area(members: np.ndarray, others: np.ndarray) -> float:
    """Area under the curve from how many members and others have each score, lowest score first; exact in integers."""
    twice = int(members @ (2 * others.cumsum() - others))
    return twice / (2 * int(members.sum()) * int(others.sum()))


def _interval(members: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """Bootstrap interval of the area, from how many members and others have each score."""
    generator = np.random.default_rng(0)
    areas = [
        _area(*(generator.multinomial(part.sum(), part / part.sum()) for part in (members, others)))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(areas, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
