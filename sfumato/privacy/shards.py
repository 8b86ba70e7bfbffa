"""Models of single shards: a hash deals each record to a shard by itself, and a model learns one shard without protection.

What comes of it is INTERNAL. It serves a mechanism that bounds what one model, and so one record, can change.
"""

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.errors import BadInput
from sfumato.images import ImageSet, to_unit
from sfumato.latents import PIXELS, Codec
from sfumato.privacy.door import Access, looking


def dealt(images: ImageSet, shards: int, key: str) -> np.ndarray:
    """The shard, 0 to `shards` - 1, of each record, int64 `[n]`, by a hash of its pixels and class name under `key`.

    As on which side of the split it lies, a record never changes shard when others come or go, and equal records stand
    together. The key keeps the two hashes apart and is no secret.
    """

    def shard(pixels: np.ndarray, label: int) -> int:
        digest = hashlib.blake2b(repr((pixels.shape, images.classes[label])).encode(), digest_size=8, key=key.encode())
        digest.update(np.ascontiguousarray(pixels).data)
        return int.from_bytes(digest.digest(), "big") % shards

    return np.array([shard(*record) for record in zip(images.pixels, images.labels, strict=True)], dtype=np.int64)


def check_shards(access: Access, shards: int, key: str) -> dict[int, str]:
    """Deal all records once, before any work; `BadInput` for a shard that lacks a class. Returns the entry of the look."""
    with looking(access, "train") as visit:
        where = dealt(visit.images, shards, key)
        for shard in range(shards):
            _shard(visit.images, where, shard, f"{shard + 1} of {shards} of {access.private.name!r}", key)
        return visit.entries


def _shard(images: ImageSet, where: np.ndarray, shard: int, told: str, key: str) -> ImageSet:
    """The records that `where` deals to `shard`; `BadInput` where these lack a class."""
    own = images.subset(where == shard)
    if lacking := set(range(len(own.classes))) - set(own.labels.tolist()):
        raise BadInput(
            f"shard {told} holds no record of the class {own.classes[min(lacking)]!r}: use fewer members, or another key than {key!r}"
        )
    return own


def shard_trained(
    access: Access,
    train: Callable[[Tensor, Tensor], nn.Module],
    *,
    shard: int,
    shards: int,
    key: str,
    device: torch.device,
    codec: Codec = PIXELS,
) -> tuple[nn.Module, dict[int, str]]:
    """What `train` makes of the records `[n, c, h, w]` and labels `[n]` that a keyed hash deals to one of `shards` shards.

    Returns the model and the entry of the look. `BadInput` for a shard that lacks a class.
    """
    with looking(access, "train") as visit:
        told = f"{shard + 1} of {shards} of {access.private.name!r}"
        own = _shard(visit.images, dealt(visit.images, shards, key), shard, told, key)
        x = codec.encode(to_unit(own.pixels).to(device))
        y = torch.as_tensor(own.labels).to(device)
        return train(x, y), visit.entries
