"""Accesses without noise: judging images against private ones. Whatever comes out is INTERNAL and may not leave."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from sfumato.evaluation import scores
from sfumato.images import ImageSet, to_unit
from sfumato.privacy.door import Access, looking
from sfumato.progress import Progress, silent

REAL = "real training images"
"""Name of the row to compare with: the private training images judged as if they were synthetic."""


def judged(
    access: Access,
    sets: Mapping[str, tuple[Tensor, Tensor]],
    *,
    classes: int,
    seed: int,
    device: torch.device,
    progress: Progress = silent,
) -> tuple[dict[str, scores.Scores], dict[int, str]]:
    """Scores of each named set of images `[n, c, h, w]` in [-1, 1] with labels `[n]`, against the private images.

    One judge, trained on the private training images, serves all sets. Returns the scores by name, the real images' row
    included, and the ledger entries of the two looks with their labels.
    """
    with (
        looking(replace(access, purpose=f"{access.purpose}: train the judge"), "train") as train,
        looking(replace(access, purpose=f"{access.purpose}: held-out images"), "test") as test,
    ):
        real = {
            "real_train": to_unit(train.images.pixels),
            "real_train_labels": torch.as_tensor(train.images.labels),
            "real_test": to_unit(test.images.pixels),
            "real_test_labels": torch.as_tensor(test.images.labels),
            "classes": classes,
            "seed": seed,
            "device": device,
        }
        judge = scores.train_judge(
            real["real_train"], real["real_train_labels"], classes=classes, seed=seed, device=device, progress=progress
        )
        rows = {
            name: scores.judge(images, labels, judge_model=judge, progress=progress, **real)
            for name, (images, labels) in sets.items()
        }
        rows[REAL] = scores.reference(judge_model=judge, progress=progress, **real)
        return rows, {**train.entries, **test.entries}


def tensors(images: ImageSet, count: int) -> tuple[Tensor, Tensor]:
    """At most `count` images, spread evenly over the set, as `[n, c, h, w]` in [-1, 1] with labels `[n]`."""
    chosen = torch.linspace(0, len(images) - 1, min(count, len(images))).round().long().numpy()
    part = images.subset(chosen)
    return to_unit(part.pixels), torch.as_tensor(part.labels)
