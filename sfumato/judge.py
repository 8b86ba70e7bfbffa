"""A judge of what was drawn: a linear head, paid for, on features of a public classifier.

The head was trained on private records with noise (`sfumato.privacy.mechanisms.noisy_head`), so that whatever it says of drawn
images is post-processing and costs nothing more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfumato.backbone import Backbone
from sfumato.images import ImageSet, to_unit

CHUNK = 1000
"""Images judged at once."""


def unit(features: Tensor) -> Tensor:
    """Features `[n, d]` with a constant, scaled to norm 1, float64 `[n, d + 1]`; zeros where they are not finite."""
    found = torch.cat([features.double(), features.new_ones(len(features), 1, dtype=torch.float64)], 1)
    scaled = found / found.norm(dim=1, keepdim=True)
    return scaled.where(scaled.isfinite().all(1, keepdim=True), 0.0)


@dataclass(frozen=True, eq=False)
class PaidJudge:
    """Tells the private classes apart."""

    backbone: Backbone
    head: Tensor
    """`[classes, directions + 1]`."""
    scale: float
    """What logits are multiplied by."""

    def log_probabilities(self, images: Tensor) -> Tensor:
        """Of each class, `[n, classes]`, for images `[n, c, h, w]` in [-1, 1]; differentiable where gradients are on."""
        features = self.backbone.whitened(images, self.head.shape[1] - 1)
        return (self.scale * unit(features) @ self.head.T).log_softmax(1).to(images.dtype)

    @torch.no_grad()
    def of_set(self, images: ImageSet, device: torch.device) -> Tensor:
        """Log-probabilities of the images of a set, `[n, classes]` on the CPU."""
        parts = [images.pixels[at : at + CHUNK] for at in range(0, len(images), CHUNK)]
        return torch.cat([self.log_probabilities(to_unit(part).to(device)).cpu() for part in parts])


def relabelled(images: ImageSet, judged: Tensor) -> ImageSet:
    """Each image with the judge's class; `judged` `[n, classes]` are log-probabilities."""
    return ImageSet(images.pixels, judged.argmax(1).numpy(), images.classes)


def agreeing(images: ImageSet, judged: Tensor) -> np.ndarray:
    """Positions of the images whose class is the judge's."""
    return np.flatnonzero(judged.argmax(1).numpy() == images.labels)


def surest(images: ImageSet, judged: Tensor, wanted: Sequence[int]) -> np.ndarray:
    """Positions of `wanted[c]` images drawn as class c, in order of class: those that the judge agrees with first, the surest of each first.

    Where fewer agree, the surest others of the class fill up, and where fewer were drawn, others, so that there are as many as were asked for.
    """
    labels = torch.from_numpy(images.labels)
    sure = judged.gather(1, labels[:, None])[:, 0].numpy()
    order = np.lexsort((-sure, judged.argmax(1) != labels))
    chosen = np.concatenate([order[images.labels[order] == label][:count] for label, count in enumerate(wanted)])
    others = order[~np.isin(order, chosen)]
    return np.concatenate([chosen, others[: sum(wanted) - len(chosen)]])
