"""Selection of public classes: the public denoiser learns from those alone that private images resemble (Li et al. 2024, PrivImage).

Behind the door each private record votes, in its own class, for the public class that a public classifier takes it for (`ballot`); the histogram
leaves with noise (`sfumato.privacy.mechanisms.noisy_votes`). All else here is post-processing of it. With few steps a denoiser learns a part of the
public images better than all of them.

Of a mixture, whole sources may be chosen in the same way (`sources_of`, `preferred`, `joined`): letters or shapes, say, whichever the private images are nearer to.

One vote a record, so that one cell of the histogram moves by 1; the paper's records vote for several classes each, and pay for that.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sfumato.backbone import Backbone
from sfumato.held_out import positions
from sfumato.images import ImageSet

Ballot = Callable[[Tensor, Tensor], Tensor]
"""From images `[b, c, h, w]` in [-1, 1] and their classes `[b]` to the option that each votes for, int64 `[b]`."""


def ballot(backbone: Backbone, of: Sequence[int] = ()) -> Ballot:
    """From images `[b, c, h, w]` in [-1, 1] and their classes `[b]` to the public class that each resembles most, int64 `[b]`; or to the
    source whose classes together are likeliest, where `of` names the source of each public class."""

    @torch.no_grad()
    def vote(x: Tensor, y: Tensor) -> Tensor:
        logits = backbone.logits(x)
        if not of:
            return logits.argmax(1)
        sources = torch.tensor(of, device=x.device).expand(len(x), -1)
        return logits.new_zeros(len(x), max(of) + 1).scatter_add_(1, sources, logits.softmax(1)).argmax(1)

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


def sources_of(classes: Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    """The source of each class of a public mixture, as a position among the `names` of its sources; empty for one source alone. Where the name of one
    begins that of another, the longer one that fits."""
    if len(names) == 1:
        return ()
    fitting = ([n for n, name in enumerate(names) if one.startswith(f"{name}:")] for one in classes)
    return tuple(max(some, key=lambda n: len(names[n])) for some in fitting)


def fewest(of: Sequence[int]) -> int:
    """The number of classes of the source that has fewest; 0 where there are none."""
    return min((of.count(source) for source in set(of)), default=0)


def preferred(votes: Tensor, count: int) -> list[int]:
    """The `count` sources with most of the votes `[classes, options]`, those of all private classes together, in ascending order."""
    return sorted(votes.sum(0).argsort(descending=True, stable=True)[:count].tolist())


def joined(images: ImageSet, of: Sequence[int], into: int) -> ImageSet:
    """The images with the classes of each source joined into so many, neighbours with neighbours: how many classes a public denoiser has does
    not then tell which source it learnt from, and is known before the votes."""
    ranks = {source: rank for rank, source in enumerate(dict.fromkeys(of))}
    places = [tuple(of[:number]).count(source) for number, source in enumerate(of)]
    numbers = [
        ranks[source] * into + place * into // of.count(source) for source, place in zip(of, places, strict=True)
    ]
    members = [
        [images.classes[old] for old, new in enumerate(numbers) if new == one] for one in range(into * len(ranks))
    ]
    names = tuple(some[0] if len(some) == 1 else f"{some[0]} to {some[-1]}" for some in members)
    return ImageSet(images.pixels, np.array(numbers)[images.labels], names)


def chosen(images: ImageSet, classes: Sequence[int], seed: int) -> ImageSet:
    """The images of these public classes, numbered anew in this order.

    They are ordered so that of those which `held_out(images, seed)` withholds as many as possible are withheld of the choice as well; where they are
    too few, others stand beside them, which the autoencoder and the backbone have seen.
    """
    learnt, withheld = (
        part[np.isin(images.labels[part], classes)] for part in map(Tensor.numpy, positions(len(images), seed))
    )
    order = withheld_first(np.concatenate([withheld, learnt]), seed)
    numbers = np.full(len(images.classes), -1)
    numbers[list(classes)] = np.arange(len(classes))
    return ImageSet(images.pixels[order], numbers[images.labels[order]], tuple(images.classes[one] for one in classes))


def withheld_first(order: np.ndarray, seed: int) -> np.ndarray:
    """The same things `[n]` in an order of which `held_out` withholds the first ones."""
    free, held = (part.numpy() for part in positions(len(order), seed))
    placed = np.empty_like(order)
    placed[np.concatenate([held, free])] = order
    return placed
