"""Selection of public classes: the public denoiser learns from those alone that private images resemble (Li et al. 2024, PrivImage).

Behind the door each private record votes, in its own class, for the public class that a public classifier takes it for (`ballot`); the histogram
leaves with noise (`sfumato.privacy.mechanisms.noisy_votes`). All else here is post-processing of it. With few steps a denoiser learns a part of the
public images better than all of them.

One vote a record, so that one cell of the histogram moves by 1; the paper's records vote for several classes each, and pay for that.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sfumato.backbone import Backbone
from sfumato.held_out import positions
from sfumato.images import ImageSet


def ballot(backbone: Backbone) -> Callable[[Tensor, Tensor], Tensor]:
    """From images `[b, c, h, w]` in [-1, 1] and their classes `[b]` to the public class that each resembles most, int64 `[b]`."""

    @torch.no_grad()
    def vote(x: Tensor, y: Tensor) -> Tensor:
        return backbone.logits(x).argmax(1)

    return vote


def elected(votes: Tensor, count: int) -> list[int]:
    """The `count` public classes that win votes `[classes, options]`: each private class in turn names its best that is still left.

    So every private class has its say, however small it is, and the number of winners tells nothing. In ascending order.
    """
    options = votes.shape[1]
    if not 1 <= count <= options:
        raise ValueError(f"{count} of {options} public classes cannot be chosen")
    wishes = [iter(row) for row in votes.argsort(dim=1, descending=True, stable=True).tolist()]
    winners: list[int] = []
    while True:
        for wish in wishes:
            winners.append(next(option for option in wish if option not in winners))
            if len(winners) == count:
                return sorted(winners)


def chosen(images: ImageSet, classes: Sequence[int], seed: int) -> ImageSet:
    """The images of these public classes, numbered anew in this order.

    They are ordered so that of those which `held_out(images, seed)` withholds as many as possible are withheld of the choice as well; where they are
    too few, others stand beside them, which the autoencoder and the backbone have seen.
    """
    learnt, withheld = (
        part[np.isin(images.labels[part], classes)] for part in map(Tensor.numpy, positions(len(images), seed))
    )
    free, held = (part.numpy() for part in positions(len(learnt) + len(withheld), seed))
    order = np.empty(len(free) + len(held), np.int64)
    order[np.concatenate([held, free])] = np.concatenate([withheld, learnt])
    numbers = np.full(len(images.classes), -1)
    numbers[list(classes)] = np.arange(len(classes))
    return ImageSet(images.pixels[order], numbers[images.labels[order]], tuple(images.classes[one] for one in classes))
