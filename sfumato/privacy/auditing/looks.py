"""Accesses without noise: images are scored against private ones. All results are INTERNAL and may not leave."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.alignment import ClassMaps, aligned
from sfumato.backbone import Backbone
from sfumato.config import Evaluation
from sfumato.diffusion.edm import ImageDenoiser, clean_image
from sfumato.diffusion.objective import Corrupt
from sfumato.diffusion.samplers import NoisePredictor
from sfumato.diffusion.schedule import NoiseSchedule
from sfumato.evaluation import extractors, scores, two_samples
from sfumato.evaluation.attack_results import CopyCheck, Membership
from sfumato.evaluation.classifier import default_steps
from sfumato.evaluation.copies import check_copies
from sfumato.evaluation.extractors import FeatureReader
from sfumato.evaluation.membership import Models, canary_scores, image_attack, loss_attacks, membership
from sfumato.evaluation.utility import spread
from sfumato.images import ImageSet, shape_of, to_pixels, to_unit
from sfumato.latents import CHUNK, PIXELS, Codec
from sfumato.privacy.auditing.audit import epsilon_lower_bound
from sfumato.privacy.auditing.canaries import Canaries
from sfumato.privacy.auditing.data_profile import DataProfile, profile_of
from sfumato.privacy.auditing.findings import Bound
from sfumato.privacy.door import Access, inspecting, looking
from sfumato.privacy.engine.kernel_mean import squared_distances
from sfumato.progress import Progress, in_percent, parts_of, silent
from sfumato.sources import Inspection

REAL = "real training images"
"""Name of the row to compare with: the private training images judged as if they were synthetic. Its `readable` flatters, since
the reader learnt from these very images; `cnn` says how well they are read unseen."""
CEILING = "ceiling of the autoencoder"
"""Name of the row of real images that went through the autoencoder and back: nothing drawn in its latents can do better."""
CANARY_ROUNDS = 100
"""Rounds of examples at which a canary's loss is compared; more hardly sharpen the guess."""
ATTACKED = 1000
"""Training records, and held-out ones, that are attacked at most."""


@dataclass(frozen=True)
class Copied:
    """Results of the copy check; INTERNAL, the pairs above all."""

    check: CopyCheck
    to_train: Tensor
    """`[n]`, distance of each image to its nearest training record."""
    to_test: Tensor
    """`[n]`, the same to the nearest held-out record."""
    pairs: np.ndarray
    """uint8 `[k, 2, c, h, w]`, the closest images, nearest first, each before its training record."""
    entries: dict[str, str]
    """Ledger entries of the looks, with their labels."""


@dataclass(frozen=True)
class Judged:
    """Scores of the judged sets; INTERNAL."""

    rows: dict[str, scores.Scores]
    """Scores of the judged sets by name, those of as many real images included."""
    real: ImageSet
    """The first held-out images of each class."""
    entries: dict[str, str]
    """Ledger entries of the looks, with their labels."""


def judged(
    access: Access,
    sets: Mapping[str, tuple[Tensor, Tensor]],
    *,
    classes: int,
    extractor: FeatureReader,
    how: Evaluation,
    seed: int,
    device: torch.device,
    shown: int,
    codec: Codec = PIXELS,
    backbone: Backbone | None = None,
    progress: Progress = silent,
    briefly: Collection[str] = (),
) -> Judged:
    """Scores of each named set of images `[n, c, h, w]` in [-1, 1] with labels `[n]`, against the private images.

    One reader, trained on the private training images, says for all sets what is readable; distances are measured in the
    features of `extractor`, and those of `backbone` and in the latents of `codec` where there are any. The held-out images
    are read once. As many real images (`how.images`, or all where there are fewer) are judged too, and in latents the same
    after the autoencoder. `shown` held-out images of each class come back to be looked at. The sets named in `briefly`
    teach the fast classifiers alone.

    Many parameters: one look serves all scores, so that the private images are read once.
    """
    with (
        looking(replace(access, purpose=f"{access.purpose}: train the judge"), "train") as train,
        looking(replace(access, purpose=f"{access.purpose}: held-out images"), "test") as test,
    ):
        real, labels = to_unit(train.images.pixels), torch.as_tensor(train.images.labels)
        further = {"frechet_backbone": extractors.backbone(backbone.whitened, device)} if backbone else {}
        further |= {"frechet_latents": extractors.latents(codec.encode, device)} if codec != PIXELS else {}
        held_out = to_unit(test.images.pixels), torch.as_tensor(test.images.labels)
        best = tensors(train.images, how.images)
        fast = how.model_copy(update={"classifiers": "fast"})
        steps = [
            default_steps(len(real)),
            *(
                scores.scoring_steps(*images, classes, fast if name in briefly else how)
                for name, images in {**sets, REAL: best}.items()
            ),
            *([two_samples.STEPS] if codec != PIXELS else []),
        ]
        parts = parts_of(in_percent(progress), steps)  # the steps follow from how many records there are
        bench = scores.make_bench(
            *held_out,
            trained_on=best[0],
            reader=scores.train_reader(real, labels, classes=classes, seed=seed, device=device, progress=next(parts)),
            extractor=extractor,
            how=how,
            further=further,
            seed=seed,
            device=device,
        )
        rows = {
            name: scores.scores_of(
                *images, replace(bench, how=fast) if name in briefly else bench, progress=next(parts)
            )
            for name, images in sets.items()
        }
        rows[REAL] = scores.scores_of(*best, bench, repeats=True, progress=next(parts))
        if codec != PIXELS:
            again = [(_through(codec, x, device), y) for x, y in (best, held_out)]
            rows[CEILING] = scores.ceiling(again[0], again[1], bench, progress=next(parts))
        places = [np.flatnonzero(test.images.labels == label)[:shown] for label in range(classes)]
        return Judged(rows, test.images.subset(np.concatenate(places)), {**train.entries, **test.entries})


def _through(codec: Codec, images: Tensor, device: torch.device) -> Tensor:
    """Images `[n, c, h, w]` in [-1, 1] as they come back from an autoencoder, in the grey levels of a stored image."""
    again = [codec.decode(codec.encode(piece.to(device))).cpu() for piece in images.split(CHUNK)]
    return to_unit(to_pixels(torch.cat(again)))


def tensors(images: ImageSet, count: int) -> tuple[Tensor, Tensor]:
    """At most `count` images, spread evenly over the set, as `[n, c, h, w]` in [-1, 1] with labels `[n]`."""
    part = images.subset(spread(len(images), count).numpy())
    return to_unit(part.pixels), torch.as_tensor(part.labels)


def attacked(
    access: Access,
    images: ImageSet,
    models: Models | None,
    *,
    seed: int,
    device: torch.device,
    codec: Codec = PIXELS,
    maps: ClassMaps | None = None,
    progress: Progress = silent,
) -> tuple[tuple[Membership, ...], dict[str, str]]:
    """Run membership attacks on the released images, and on the model where one is released; also returns the looks' entries.

    At most `ATTACKED` records of each part, spread evenly over it, are attacked.

    Many parameters: one look serves all attacks, so that the private images are read once.
    """
    with _both_parts(access, "attack") as (train, test, entries):
        members, others = tensors(train, ATTACKED), tensors(test, ATTACKED)
        attacks = [image_attack(to_unit(images.pixels), members[0], others[0])]
        if models:
            inside, outside = (
                (aligned(codec.encode(x.to(device)), y.to(device), codec.largest_norm(shape_of(x)), maps), y.to(device))
                for x, y in (members, others)
            )
            attacks = loss_attacks(models, inside, outside, seed=seed, progress=progress) + attacks
        return tuple(attacks), entries


def guessed(
    corrupt: Corrupt,
    start: nn.Module,
    tuned: nn.Module,
    canaries: Canaries,
    *,
    delta: float,
    seed: int,
    device: torch.device,
    codec: Codec = PIXELS,
    maps: ClassMaps | None = None,
) -> tuple[Bound, Membership]:
    """A lower bound on epsilon at `delta` from how well the denoiser `tuned` from `start` reveals the canaries' coins.

    A canary with several images gets the mean of their scores.

    Many parameters: each stands in the statement of the game: what was trained, from what, on which canaries.
    """
    x, y = to_unit(canaries.pixels).to(device), torch.as_tensor(canaries.labels).to(device)
    x = aligned(codec.encode(x), y, codec.largest_norm(shape_of(x)), maps)
    scores = canary_scores(corrupt, start, tuned, x, y, rounds=CANARY_ROUNDS, seed=seed)
    scores = scores.unflatten(0, (len(canaries), canaries.each)).mean(1).cpu().numpy()
    attack = membership("canaries", scores[canaries.included], scores[~canaries.included])
    return epsilon_lower_bound(scores, canaries.included, delta=delta), attack


def copied(access: Access, images: ImageSet) -> Copied:
    """Whether released images repeat training records, and the closest pairs to look at."""
    with _both_parts(access, "look for copies") as seen:
        distances = check_copies(*(to_unit(part.pixels) for part in (images, seen.train, seen.test)))
        pairs = [(images.pixels[pair.image], seen.train.pixels[pair.record]) for pair in distances.check.closest]
        return Copied(*distances, np.array(pairs), seen.entries)


def profiled(
    access: Access,
    public: Inspection | None,
    *,
    learnt_from: ImageSet | None = None,
    whole: bool = True,
    progress: Progress = silent,
) -> tuple[DataProfile, dict[str, str]]:
    """The profile of the private set, compared with public pictures if there are any; with the entry of the look.

    With `whole` it also says why no run would begin that learns from the public images as a run reads them, `learnt_from`.
    """
    with inspecting(access, public=learnt_from, whole=whole, progress=progress) as seen:
        profile = profile_of(access.private.name, seen.inspection, public, progress=progress)
        return profile.model_copy(update={"unfit": seen.unfit, "copied": seen.copied}), seen.entries


def stopped(
    access: Access,
    network: NoisePredictor,
    schedule: NoiseSchedule,
    sample: Callable[[ImageDenoiser, Tensor], Tensor],
    *,
    classes: int,
    device: torch.device,
    codec: Codec = PIXELS,
) -> tuple[np.ndarray, dict[str, str]]:
    """An image of each class where sampling stops, uint8 `[stops, 2, classes, c, h, w]`: by the mean of the private records of the class, weighted by
    their likelihoods, and by `network`. Also the entry of the look.

    `sample` samples by a denoiser from the same noise whenever it is called; its second argument says of which shape, `[classes, c, h, w]`, and the result
    is `[stops, classes, c, h, w]`. Nothing bounds or hides a record here: late images are records (Anonymous 2025, Figure 7).

    Many parameters: two samplers, and the one look that serves both.
    """
    with looking(access, "train") as train:
        records, labels = codec.encode(to_unit(train.images.pixels).to(device)), torch.as_tensor(train.images.labels)
        y, like = torch.arange(classes, device=device), records.new_empty(classes, *records.shape[1:])

        def empirical(x: Tensor, sigma: float) -> Tensor:
            means = [_posterior_mean(records[labels == label], x[label, None], sigma) for label in range(classes)]
            return torch.cat(means)

        def neural(x: Tensor, sigma: float) -> Tensor:
            return clean_image(schedule, network, x, y, sigma)

        both = torch.stack([sample(denoise, like) for denoise in (empirical, neural)], 1)
        return np.stack([to_pixels(codec.decode(one)) for one in both.flatten(0, 1)]).reshape(
            *both.shape[:3], *train.images.pixels.shape[1:]
        ), train.entries


def _posterior_mean(records: Tensor, x: Tensor, sigma: float) -> Tensor:
    """E[record | x] of records `[n, ...]`, all as likely before, at x `[b, ...]`; x where there is none."""
    if not len(records):
        return x
    weights = (-squared_distances(x.flatten(1).double(), records.flatten(1).double()) / (2 * sigma**2)).softmax(1)
    return (weights @ records.flatten(1).double()).to(x).view_as(x)


class _BothParts(NamedTuple):
    """The training and the held-out images, and the ledger entries of the looks at them, with their labels."""

    train: ImageSet
    test: ImageSet
    entries: dict[str, str]


@contextlib.contextmanager
def _both_parts(access: Access, what: str) -> Iterator[_BothParts]:
    """The training and the held-out images, in two looks."""
    with (
        looking(replace(access, purpose=f"{access.purpose}: {what}, training images"), "train") as train,
        looking(replace(access, purpose=f"{access.purpose}: {what}, held-out images"), "test") as test,
    ):
        yield _BothParts(train.images, test.images, {**train.entries, **test.entries})
