"""Several images that go on from one noised image, to see what the steps before it decide and what those after (Jiang et al. 2025, Figure 10).

Post-processing of a released model, as any drawing. Not covered: a judge, and moves to mean embeddings; what a run made of its images by
these is not made of continuations.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL.Image import Image

from sfumato.class_shares import shares_among
from sfumato.config import SEEDS, Generation
from sfumato.errors import BadInput
from sfumato.images import ImageSet, enlargement, grid, to_pixels
from sfumato.methods import METHODS
from sfumato.methods.parts import planned
from sfumato.released import ReleasedModel

FEWEST = 2
"""Continuations of one noised image that can be compared."""


@dataclass(frozen=True, eq=False)
class Continued:
    """Noised images, and the images that go on from each."""

    noised: np.ndarray
    """uint8 `[q, c, h, w]`, the noised images as a decoder shows them."""
    images: ImageSet
    """`q * each` images: all that go on from the first, then from the second, ..."""

    def picture(self) -> Image:
        """A row for each noised image, which stands first."""
        each = len(self.images) // len(self.noised)
        rows = self.images.pixels.reshape(len(self.noised), each, *self.noised.shape[1:])
        shown = np.concatenate([self.noised[:, None], rows], 1)
        return grid(shown.reshape(-1, *self.noised.shape[1:]), each + 1, enlargement(self.noised.shape[2]))


@torch.inference_mode()
def continued(
    model: ReleasedModel, count: int, each: int, *, classes: Sequence[str | int] = (), seed: int | None = None
) -> Continued:
    """`count` images of a model, `each` of which go on from one noised image.

    Noised image number i is drawn for the i-th of `classes`, by name or position (default: all), in turn; what goes on from it is of
    that class, the next, and so on round them. With a single class, or after one round, continuations differ by the noise of the sampler. The
    same `seed` on the same machine draws the same. `BadInput` where the method has no such noised image, where `count` is no multiple of
    `each`, or where two continuations would be one image.
    """
    settings, parts = model.settings, model.parts
    method = METHODS[settings.method.name]
    if method.query is None or method.resume is None:
        able = ", ".join(name for name, other in METHODS.items() if other.query)
        raise BadInput(
            f"{settings.method.name!r} does not retrieve by a noised image, so that nothing can be continued: take a model of {able}"
        )
    check_numbers(count, each)
    model.checked_shares(count, classes=classes, seed=seed)
    chosen = (classes,) if isinstance(classes, str) else tuple(classes)
    there = np.flatnonzero(shares_among((), model.classes, chosen)) if chosen else np.arange(len(model.classes))
    if each > len(there) and not draws_noise(settings.generation):
        raise BadInput(
            f"{each} continuations of {len(there)} classes: the sampler of this model draws no noise, so that those of one class would be "
            f"one image; give at most {len(there)}"
        )
    start = secrets.randbelow(SEEDS) if seed is None else seed
    generator = torch.Generator(model.device).manual_seed(start)
    firsts = np.arange(count // each)
    own, y = there[firsts % len(there)], there[(firsts[:, None] + np.arange(each)) % len(there)].reshape(-1)
    x = method.query(settings, parts, torch.from_numpy(own).to(model.device), generator)
    wanted = torch.from_numpy(y).to(model.device)
    drawn = method.resume(settings, parts, x.repeat_interleave(each, 0), wanted, generator)
    if parts.alignment:
        drawn = planned(parts.alignment).to_private(drawn, wanted, generator)
    shown = [to_pixels(parts.codec.decode(one)) for one in (x, drawn)]
    return Continued(shown[0], ImageSet(shown[1], y.astype(np.int64), model.classes))


def check_numbers(count: int, each: int) -> None:
    """Refuse (`BadInput`) a number of images that is no multiple of the continuations of each noised one, or fewer of these than two."""
    if each < FEWEST:
        raise BadInput(f"{each} continuations of a noised image: give {FEWEST} or more")
    if count < 1 or count % each:
        fewer, more = max(each, count - count % each), count - count % each + each
        near = f"{fewer}" if fewer == more else f"{fewer} or {more}"
        raise BadInput(f"{count} images, {each} from each noised one: give a multiple of {each}, such as {near}")


def draws_noise(generation: Generation) -> bool:
    """Whether two walks from one point differ."""
    return generation.solver == "ddpm" or bool(
        generation.churn if generation.solver == "heun" else generation.solver != "pndm" and generation.eta
    )
