"""Fingerprints of private records, by which near copies of a set are known under whatever name they come.

Of each record the ledger keeps what a keyed hash makes of its pixels alone: the least of the eight turns and flips, and
of their negatives, so that none of these changes it, nor a class, a file name or a format. Grey kept as colour is grey.
A record of one level alone has none, since it shows nothing. The key is the ledger's own, the fingerprints lie in a
table of its database beside the entries, and neither ever leaves.

Two sets match where at least `SHARE` of the smaller one's records, and at least `FEWEST`, are found in the other.

Not covered: overlaps below that; images changed so much that no fingerprint finds them; whoever can write the ledger's
database, and empties the table.
"""

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from sfumato.privacy.balance import version_of
from sfumato.privacy.chain import Entry, Write
from sfumato.privacy.joins import RECORDS, Version, are_joined, are_parted, numbered

SHARE = 0.01
"""Share of the smaller set's records that must be found in the other for the two to be joined."""
FEWEST = 5
"""Records that must be found, however small the set."""
BATCH_BYTES = 2**24
"""Pixels that are worked on at a time."""
KEY_BYTES, PRINT_BYTES = 32, 8
"""Lengths of the key and of a fingerprint; by chance two of a million records share one in 3.7e7 ledgers."""
KEY = "print key"
"""Where the key stands in the ledger's own table."""

_PRINTS = sa.Table(
    "fingerprints",
    sa.MetaData(),
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("dataset", sa.Text, nullable=False),
    sa.Column("records", sa.Integer, nullable=False),
    sa.Column("prints", sa.LargeBinary, nullable=False),
)
_META = sa.table("meta", sa.column("key"), sa.column("value"))


@dataclass(frozen=True, eq=False)
class Prints:
    """Fingerprints of a set; INTERNAL."""

    records: int
    """Records in all, those without a fingerprint included."""
    values: np.ndarray
    """uint64 `[n]`, one for each record that has one."""


def prints_of(pictures: Iterable[np.ndarray], key: bytes) -> Prints:
    """Fingerprints of pictures uint8 `[h, w, c]`, each of its own shape."""
    records, found = 0, []
    for batch in _batches(pictures):
        records += len(batch)
        shown = batch[batch.reshape(len(batch), -1).min(1) != batch.reshape(len(batch), -1).max(1)]
        found += [_hashed(form, key) for form in _least(shown)]
    values = np.frombuffer(b"".join(found), dtype="<u8").astype(np.uint64)
    return Prints(records, values)


def match(one: Prints, other: Prints) -> bool:
    """Whether enough records of the smaller set are in the other for both to count as one."""
    small, large = sorted((one, other), key=lambda prints: prints.records)
    return int(np.isin(small.values, large.values).sum()) >= max(FEWEST, SHARE * small.records)


def _batches(pictures: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Pictures of one shape each, `[n, h, w, c]`, grey where all channels are equal."""
    waiting: dict[tuple[int, ...], list[np.ndarray]] = {}
    for picture in pictures:
        grey = picture.shape[2] == 1 or bool((picture == picture[:, :, :1]).all())
        kept = picture[:, :, :1] if grey else picture
        alike = waiting.setdefault(kept.shape, [])
        alike.append(kept)
        if len(alike) * kept.size >= BATCH_BYTES:
            yield np.stack(waiting.pop(kept.shape))
    yield from (np.stack(alike) for alike in waiting.values())


def _least(batch: np.ndarray) -> Iterator[bytes]:
    """Of each picture the least of its turns, flips and their negatives, as bytes that begin with the shape."""
    turned = [np.rot90(flipped, times, (1, 2)) for flipped in (batch, batch[:, ::-1]) for times in range(4)]
    forms = [np.ascontiguousarray(form) for one in turned for form in (one, 255 - one)]
    heads = [repr(form.shape[1:]).encode() for form in forms]
    for i in range(len(batch)):
        yield min(head + form[i].tobytes() for head, form in zip(heads, forms, strict=True))


def _hashed(form: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(form, key=key, digest_size=PRINT_BYTES).digest()


# In the ledger's database; every call within a transaction of the ledger


def key_of(connection: sa.Connection) -> bytes:
    """The key of this ledger's fingerprints, made at its first use."""
    kept = connection.scalar(sa.select(_META.c.value).where(_META.c.key == KEY))
    if kept is None:
        kept = secrets.token_hex(KEY_BYTES)
        connection.execute(sa.insert(_META).values(key=KEY, value=kept))
    return bytes.fromhex(kept)


def kept_prints(connection: sa.Connection) -> dict[tuple[str, str], Prints]:
    """The fingerprints of every set, by its name and the digest of its content."""
    _PRINTS.create(connection, checkfirst=True)
    rows = connection.execute(sa.select(_PRINTS)).all()
    return {
        (row.dataset, row.digest): Prints(row.records, np.frombuffer(row.prints, dtype="<u8").astype(np.uint64))
        for row in rows
    }


def keep_prints(connection: sa.Connection, dataset: str, digest: str, prints: Prints) -> None:
    """Keep the fingerprints of a set, instead of those that there were of this content."""
    _PRINTS.create(connection, checkfirst=True)
    connection.execute(sa.delete(_PRINTS).where(_PRINTS.c.digest == digest))
    row = {"records": prints.records, "prints": prints.values.astype("<u8").tobytes()}
    connection.execute(sa.insert(_PRINTS).values(digest=digest, dataset=dataset, **row))


def write_joins(
    connection: sa.Connection, entries: Sequence[Entry], write: Write, dataset: str, digest: str, prints: Prints
) -> list[Entry]:
    """Keep the fingerprints of a set's present version and write the joins that follow, but for those that are there already
    or that a person denied."""
    kept = kept_prints(connection)
    keep_prints(connection, dataset, digest, prints)
    own = Version(dataset, version_of(entries, dataset))
    seen = {(e.dataset, e.body["digest"]): version for e, version in numbered(entries) if "digest" in e.body}
    written = []
    for place, others in kept.items():
        other = seen.get(place, own)
        if other == own or are_joined(entries, own, other) or are_parted(entries, own, other):
            continue
        if match(prints, others):
            body = {"other": other.dataset, "other_version": other.number, "by": RECORDS}
            written.append(write(dataset, "join", body))
    return written
