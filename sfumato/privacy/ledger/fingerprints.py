"""Fingerprints of private records, by which the ledger recognises near copies of a set under any name.

The ledger stores a keyed hash of each record's pixels alone: the least of the eight turns and flips and of their negatives, so
that none of these changes it, nor does a class, a file name or a format. Grey stored as colour counts as grey. A record of a
single level has no fingerprint, since it shows nothing. From `SIDE_FROM` pixels up there is a second one, of the signs of the
`WAVES` x `WAVES` lowest frequencies of the small grey picture, again the least of the same sixteen: most small changes (a new
compression, a little noise, another size or brightness) leave all signs unchanged in some share of the records, and a small
share is enough. The key is the ledger's own, the fingerprints lie in a table of its database beside the entries, and neither
ever leaves.

Two sets match where at least `SHARE` of the smaller one's records, and at least `FEWEST`, also occur in the other.

Not covered: smaller overlaps; images changed so much that no fingerprint matches, such as moved by a pixel of thirty-two or
turned by a few degrees; a person who can write the ledger's database and empties the table.
"""

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa
from PIL import Image

from sfumato.privacy.ledger.balance import version_of
from sfumato.privacy.ledger.chain import Entry, Write
from sfumato.privacy.ledger.joins import RECORDS, Version, are_joined, are_parted, numbered

SHARE = 0.01
"""Share of the smaller set's records that must occur in the other for the two to be joined."""
FEWEST = 5
"""Smallest number of records in common, however small the set."""
QUARTER_TURNS = 4
"""Turns of a picture by a right angle, which all have one fingerprint."""
BATCH_BYTES = 2**24
"""Bytes of pixels processed at a time."""
SIDE_FROM = 16
"""Smallest side of a picture that has a second fingerprint; of smaller ones, such as digits of 8x8, many are alike."""
SIDE, WAVES = 32, 10
"""Side of the small picture and frequencies along it. With fewer, the halves of MNIST match (8: 3 % of their records)."""
LEAST_WAVE, WAVES_SHOWN = 1e-2, 0.5
"""A frequency weaker than this, in grey levels, has no sign of its own; a picture with fewer than this share has no print."""
WHITE = 255
"""The grey level of white (`sfumato.images`, which the ledger does without)."""
KINDS = 2
"""Fingerprints of a record."""
KEY_BYTES, PRINT_BYTES = 32, 8
"""Lengths of the key and of a fingerprint; by chance two of a million records share one in 3.7e7 ledgers."""
KEY = "print key"
"""Name of the key in the ledger's own table."""

_PRINTS = sa.Table(
    "fingerprints",
    sa.MetaData(),
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("dataset", sa.Text, nullable=False),
    sa.Column("records", sa.Integer, nullable=False),
    sa.Column("prints", sa.LargeBinary, nullable=False),
)
_META = sa.table("meta", sa.column("key"), sa.column("value"))


NONE = 0
"""Stands for a missing fingerprint."""


@dataclass(frozen=True, eq=False)
class Prints:
    """Fingerprints of a set; INTERNAL."""

    records: int
    """Records in all, those without a fingerprint included."""
    values: np.ndarray
    """uint64 `[n, KINDS]`, of the records that have any; `NONE` where one has not this kind."""


def prints_of(pictures: Iterable[np.ndarray], key: bytes) -> Prints:
    """Fingerprints of pictures uint8 `[h, w, c]`, each of its own shape."""
    records, values = 0, [np.zeros((0, KINDS), np.uint64)]
    for batch in _batches(pictures):
        records += len(batch)
        levels = batch.reshape(len(batch), -1)
        shown = batch[levels.min(1) != levels.max(1)]
        exact = [_hashed(form, key, 0) for form in _least(shown)]
        alike = [_hashed(form, key, 1) if form else NONE for form in _least_waves(shown)]
        values.append(np.array([exact, alike], dtype=np.uint64).T)
    return Prints(records, np.concatenate(values))


def match(one: Prints, other: Prints) -> bool:
    """Whether enough records of the smaller set are in the other for both to count as one."""
    small, large = sorted((one, other), key=lambda prints: prints.records)
    shared = (np.isin(small.values, large.values) & (small.values != NONE)).any(1)
    return int(shared.sum()) >= max(FEWEST, SHARE * small.records)


def _batches(pictures: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Pictures of one shape each, `[n, h, w, c]`, grey where all channels are equal."""
    waiting: dict[tuple[int, ...], list[np.ndarray]] = {}
    for picture in pictures:
        grey = picture.shape[2] == 1 or bool((picture == picture[:, :, :1]).all())
        pixels = picture[:, :, :1] if grey else picture
        alike = waiting.setdefault(pixels.shape, [])
        alike.append(pixels)
        if len(alike) * pixels.size >= BATCH_BYTES:
            yield np.stack(waiting.pop(pixels.shape))
    yield from (np.stack(alike) for alike in waiting.values())


def _least(batch: np.ndarray) -> Iterator[bytes]:
    """The least of each picture's turns, flips and their negatives, as bytes that begin with the shape."""
    turned = [np.rot90(flipped, times, (1, 2)) for flipped in (batch, batch[:, ::-1]) for times in range(QUARTER_TURNS)]
    heads = [repr(form.shape[1:]).encode() for form in turned]
    tops = [np.ascontiguousarray(form[:, 0]) for form in turned]  # the top row mostly decides, and is little to compare
    tops += [WHITE - top for top in tops]
    for i in range(len(batch)):
        firsts = [heads[k % len(turned)] + top[i].tobytes() for k, top in enumerate(tops)]
        least = min(firsts)
        same = [k for k, first in enumerate(firsts) if first == least]
        yield least + min(
            (turned[k][i] if k < len(turned) else WHITE - turned[k - len(turned)][i]).tobytes() for k in same
        )


def _least_waves(batch: np.ndarray) -> Iterator[bytes]:
    """The signs of each picture's lowest frequencies, as bytes: the least of its turns, flips and their negatives.

    Nothing for a picture that is too small or shows too little.
    """
    if min(batch.shape[1:3]) < SIDE_FROM:
        yield from [b""] * len(batch)
        return
    waves = _COSINES @ np.array([_small(pixels) for pixels in batch]).reshape(-1, SIDE, SIDE) @ _COSINES.T
    flip = (-1.0) ** np.arange(WAVES)  # what turning a picture round does to its frequencies along that side
    forms = [
        np.packbits((wave > LEAST_WAVE).reshape(len(batch), -1)[:, 1:], axis=1)
        for diagonal in (waves, waves.transpose(0, 2, 1))
        for upright in (diagonal, diagonal * flip[:, None])
        for level in (upright, upright * flip)
        for wave in (level, -level)
    ]
    strong = (np.abs(waves) > LEAST_WAVE).mean((1, 2)) >= WAVES_SHOWN
    for i in range(len(batch)):
        yield min(form[i].tobytes() for form in forms) if strong[i] else b""


def _small(pixels: np.ndarray) -> np.ndarray:
    """A picture `[h, w, c]` in grey, `[SIDE, SIDE]`."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels)).convert("L")
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=np.float64)


_COSINES = np.cos(np.pi / SIDE * np.outer(np.arange(WAVES), np.arange(SIDE) + 0.5)) * (2 / SIDE) ** 0.5
"""`[WAVES, SIDE]`, the lowest frequencies of the discrete cosine transform (DCT-II)."""


def _hashed(form: bytes, key: bytes, kind: int) -> int:
    digest = hashlib.blake2b(form, key=key, digest_size=PRINT_BYTES, salt=bytes([kind])).digest()
    return int.from_bytes(digest, "little") or 1  # none is `NONE`


# In the ledger's database; every call within a transaction of the ledger


def key_of(connection: sa.Connection) -> bytes:
    """The key of this ledger's fingerprints, created on first use."""
    stored = connection.scalar(sa.select(_META.c.value).where(_META.c.key == KEY))
    if stored is None:
        stored = secrets.token_hex(KEY_BYTES)
        connection.execute(sa.insert(_META).values(key=KEY, value=stored))
    return bytes.fromhex(stored)


def stored_prints(connection: sa.Connection) -> dict[tuple[str, str], Prints]:
    """The fingerprints of every set, by its name and the digest of its content."""
    _PRINTS.create(connection, checkfirst=True)
    rows = connection.execute(sa.select(_PRINTS)).all()
    return {
        (row.dataset, row.digest): Prints(
            row.records, np.frombuffer(row.prints, dtype="<u8").astype(np.uint64).reshape(-1, KINDS)
        )
        for row in rows
    }


def keep_prints(connection: sa.Connection, dataset: str, digest: str, prints: Prints) -> None:
    """Store the fingerprints of a set, in place of earlier ones of the same content."""
    _PRINTS.create(connection, checkfirst=True)
    connection.execute(sa.delete(_PRINTS).where(_PRINTS.c.digest == digest))
    row = {"records": prints.records, "prints": prints.values.astype("<u8").tobytes()}
    connection.execute(sa.insert(_PRINTS).values(digest=digest, dataset=dataset, **row))


def write_joins(
    connection: sa.Connection, entries: Sequence[Entry], write: Write, dataset: str, digest: str, prints: Prints
) -> list[Entry]:
    """Store the fingerprints of a set's present version and write the joins that follow from them, except those already written or
    denied by a person."""
    stored = stored_prints(connection)
    keep_prints(connection, dataset, digest, prints)
    own = Version(dataset, version_of(entries, dataset))
    seen = {(e.dataset, e.body["digest"]): version for e, version in numbered(entries) if "digest" in e.body}
    written = []
    for place, others in stored.items():
        other = seen.get(place, own)
        if other == own or are_joined(entries, own, other) or are_parted(entries, own, other):
            continue
        if match(prints, others):
            body = {"other": other.dataset, "other_version": other.number, "by": RECORDS}
            written.append(write(dataset, "join", body))
    return written
