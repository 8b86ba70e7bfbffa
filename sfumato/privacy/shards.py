"""Models of single shards: a hash assigns each record to a shard by itself, and a model learns one shard without protection.

The models are INTERNAL. They serve a mechanism that bounds the influence of one model, and so of one record.
"""

import hashlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.alignment import ClassMaps, encoded
from sfumato.images import ImageSet
from sfumato.latents import PIXELS, Codec
from sfumato.privacy.door import Access, looking

Trained = TypeVar("Trained", bound=nn.Module)


def dealt(images: ImageSet, shards: int, key: str) -> np.ndarray:
    """The shard, 0 to `shards` - 1, of each record, int64 `[n]`, by a hash of its pixels and class name under `key`.

    As on which side of the split it lies, a record never changes shard when others come or go, and equal records stand
    together. The key keeps the two hashes apart and is no secret. A group is dealt as a whole, by its number.
    """

    def shard(record: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(record, digest_size=8, key=key.encode()).digest(), "big") % shards

    if images.groups is not None:
        return np.array([shard(group.tobytes()) for group in images.groups], dtype=np.int64)
    names = (images.classes[label] for label in images.labels)
    each = zip(images.pixels, names, strict=True)
    return np.array([shard(repr((p.shape, name)).encode() + p.tobytes()) for p, name in each], dtype=np.int64)


def shard_trained(
    access: Access,
    train: Callable[[Tensor, Tensor], nn.Module],
    *,
    shard: int,
    shards: int,
    key: str,
    device: torch.device,
    codec: Codec = PIXELS,
    maps: ClassMaps | None = None,
) -> tuple[nn.Module, dict[str, str]]:
    """Train on the records `[n, c, h, w]` and labels `[n]` that a keyed hash assigns to one of `shards` shards.

    Returns the model and the entry of the look. The shard may lack classes, or be empty, and is trained on all the same: a run
    refused for the content of one shard would reveal single records, whatever its certificate says.

    Many parameters: what is done to private records is named where it is called, and hides in no other value.
    """
    with looking(access, "train") as visit:
        own = visit.images.subset(dealt(visit.images, shards, key) == shard)
        return train(*encoded(own, codec, maps, device)), visit.entries


def shards_trained(
    access: Access,
    train: Callable[[list[tuple[Tensor, Tensor]]], Trained],
    *,
    shards: int,
    key: str,
    device: torch.device,
    codec: Codec = PIXELS,
    maps: ClassMaps | None = None,
) -> tuple[Trained, dict[str, str]]:
    """Train on records `[n, c, h, w]` and labels `[n]` of each of `shards` shards, in one look; returns what was trained and the entry.

    `train` has to keep shards apart: what it makes of one may not depend on another's records (`sfumato.adapters`). Nor may the records
    that it gets, so that each shard is encoded by itself: in a batch of another length products round in another way, and training enlarges that.
    No shard is refused for its content, as by `shard_trained`.

    Many parameters: what is done to private records is named where it is called, and hides in no other value.
    """
    with looking(access, "train") as visit:
        shard = dealt(visit.images, shards, key)
        own = [encoded(visit.images.subset(shard == place), codec, maps, device) for place in range(shards)]
        return train(own), visit.entries
