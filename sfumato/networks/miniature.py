"""A denoiser in small: the same layers in the same order, with fewer channels, no repetitions within a level, and on smaller images.

Whether a network mixes records, and how it uses its parameters, lies in its layers and not in their sizes, so that a plan looks at the
miniature and needs neither the memory nor the time of the network itself. Not covered: what rounding does in the large one, which is
looked at itself before its first private step.
"""

import math

from sfumato.config import Network
from sfumato.networks.build import PER_POSITION, SINGLE, resolved

Shape = tuple[int, int, int]
CHANNELS = 4
"""Largest width, and length of the vector of time and class; a transformer's heads may ask for more."""
SIDE = 2
"""Side of a U-Net's last level: at 1, its normalisation would see two numbers."""
SIDES = {"mlp": 4, "refinenet": 8}
"""Sides of networks that any side fits, by kind."""
POSITIONS = 4
"""Side of a transformer in squares, where the settings give their side."""


def miniature(settings: Network, shape: Shape) -> tuple[Network, Shape]:
    """Settings of a denoiser for images or latents of `shape` (c, h, w), and that shape, in small; one from elsewhere stays as it is.

    The miniature attends at the same levels. The settings must fit the shape.
    """
    if settings.config:
        return settings, shape
    known, (channels, height, width) = resolved(settings, shape[1]), shape
    most, changes = CHANNELS, dict[str, object](condition=min(known.condition, CHANNELS))
    if known.kind == "unet":
        halvings = len(known.multipliers) - 1
        height = width = SIDE << halvings
        levels = [level for level in range(halvings + 1) if shape[1] >> level in known.attention]
        changes["attention"] = tuple(height >> level for level in levels)
        changes["blocks"], changes["transformer"] = (
            min(known.blocks, 1),
            min(known.transformer, 1),
        )  # the others repeat the first
        narrow = min(known.width, CHANNELS)
        changes["attention_heads"] = math.gcd(known.attention_heads, narrow)
        changes["head_channels"] = math.gcd(known.head_channels, narrow) if known.head_channels else 0
    elif known.kind == "dit":
        whole = math.lcm(known.heads, PER_POSITION)
        most = -(-CHANNELS // whole) * whole
        # Where squares are left to the network, it chooses the same ones by sides above or below the limit, even or odd as before.
        height, width = (POSITIONS * known.patch or min(side, SINGLE + 2 - side % 2) for side in (height, width))
    else:
        height = width = SIDES[known.kind]
    return known.model_copy(update={**changes, "width": min(known.width, most)}), (channels, height, width)
