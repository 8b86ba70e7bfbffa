"""The nearest public image of each image, so that a person sees whether drawn images repeat public ones.

Nearness is distance in the features of an extractor that learnt from public images alone, each feature divided by its
spread over them.

Label: that of the images; the search itself looks at no private one.
Not covered: images that repeat a private record (`sfumato.evaluation.copies`); likeness that these features do not see.
"""

import torch
from torch import Tensor

from sfumato.evaluation.utility import spread

MOST_PUBLIC = 50_000
"""Largest number of public images that are searched, spread evenly over all of them."""


def searched(public: int) -> Tensor:
    """Positions int64 `[m]` of those of `public` images that are searched, m = `MOST_PUBLIC` at most."""
    return spread(public, MOST_PUBLIC)


def nearest(features: Tensor, public_features: Tensor) -> Tensor:
    """For features `[n, d]` of images the position of the nearest of public ones `[m, d]`, m >= 1: int64 `[n]`."""
    scale = public_features.double().std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    return torch.cdist(features.double() / scale, public_features.double() / scale).argmin(1)
