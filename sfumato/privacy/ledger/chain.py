"""An append-only list of entries in a database, each chained to the one before by sha256.

Promise: an append is one exclusive transaction that sees every entry before it and is on disk when it returns; should a
lock ever fail, two writers would claim the same `seq` and the primary key lets one of them in. `breaks` finds rows
edited, deleted or moved, and a broken chain takes no further entry. SQLite (one file) or PostgreSQL (by URL).

Each head is signed (`sfumato.privacy.ledger.signing`), so that a chain whose hashes were all computed anew is found out, and
noted beside the key once it is on disk, so that a chain whose end was cut off is found out too. The heads noted are read
before the entries: what others append meanwhile is not missed.

Entries stand in the order in which they were written; the time in them is what the clock said, and nothing follows from
it. Not covered: who holds the key; SQLite on a network file system.
"""

import hashlib
import json
import secrets
import sqlite3
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from sfumato.errors import BadInput, Refused, without_secret_options
from sfumato.privacy.ledger.signing import (
    Head,
    Keys,
    Signer,
    canonical,
    head_of,
    is_signed_value,
    missing_heads,
    signed,
)

SCHEMA, UNSIGNED = "2", "1"
"""Version of the tables and of what an entry holds; a ledger of another version is not touched."""

BUSY_SECONDS = 60
"""How long to wait while another process holds the ledger; it holds it for as long as one pricing takes."""

SILENT_SECONDS = 600
"""How long a PostgreSQL server keeps the ledger for a process that says nothing, as one that is pricing does."""

CONNECT_SECONDS = 15
"""How long to wait for a PostgreSQL server to answer."""

ADVISORY_LOCK = 0x5F0A_70
"""The number under which all Sfumato processes queue in one PostgreSQL database."""

MIGRATED, REKEYED = "migrate", "key"
"""Entries that say from where heads are signed, and that another key signs from there on."""
OF_THE_LEDGER = ""
"""Stands for a set's name in an entry that concerns the whole ledger."""
RECOVERY, LOSS = "recovery", "loss"
COVERING = (RECOVERY, LOSS)
"""Kinds of entries that make up for missing heads: their content was written again, or declared lost."""

FROM_CONTENT = frozenset({"digest", "parents", "artifact", "finding", "salt", "covers", "was_hash"})
"""Fields computed from content, by which a guess of the private images could be confirmed: never in a public view.
So is the salt of each entry, without which its hash and all that is built on it tell nothing of the content."""

SALT_BYTES = 32
"""Fresh entropy in each entry."""

_TABLES = sa.MetaData()
_ENTRIES = sa.Table(
    "entries",
    _TABLES,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("dataset", "kind", "body", "previous", "hash")),
    sa.Column("signature", sa.Text, nullable=False, server_default=""),
)
_META = sa.Table("meta", _TABLES, sa.Column("key", sa.String(16), primary_key=True), sa.Column("value", sa.Text))


@dataclass(frozen=True)
class Entry:
    """One row. `body` is INTERNAL (it holds the set's digest and the salt), and not in the `repr`; nor are the hashes.

    Since the salt never leaves the ledger, the hash of an entry that has one may be shown: it confirms no guess of the content.
    """

    seq: int
    dataset: str
    kind: str
    body: dict[str, Any] = field(repr=False)
    previous: str = field(repr=False)
    hash: str = field(repr=False)

    def public(self) -> dict[str, Any]:
        """The view for reports and trackers: without digests of content and without hashes that depend on one."""
        shown = {name: value for name, value in self.body.items() if name not in FROM_CONTENT}
        return {"seq": self.seq, "dataset": self.dataset, "kind": self.kind, **shown}


Write = Callable[[str, str, dict[str, Any]], Entry]
"""(dataset, kind, body) -> the entry that was appended."""


class Appending(NamedTuple):
    """A transaction that may append to the chain."""

    entries: list[Entry]
    """All so far; it grows as `write` appends."""
    write: Write
    connection: sa.Connection
    """For tables beside the entries."""


class Chain:
    """The chain at a database URL, created if it is not there; every call is one transaction on a fresh connection."""

    def __init__(self, url: str, clock: Callable[[], str], keys: Keys):
        """`clock` tells the time as ISO-8601 in UTC; `keys` holds the key that signs, and the heads seen."""
        self._clock, self._keys, self._engine = clock, keys, _engine(url)
        self._place = _place(self._engine.url)
        with self._transaction(exclusive=True) as connection:
            _prepare(connection, keys, self._place)
            self._ledger = _load(connection).ledger
        keys.remember_place(self._place, self._ledger)

    @property
    def url(self) -> str:
        """Its address, without a password."""
        return _shown(self._engine.url)

    def close(self) -> None:
        """Let go of the database; nothing is pending, every entry is on disk when its call returns."""
        self._engine.dispose()

    def entries(self) -> list[Entry]:
        """All entries in order; `Refused` where the chain is broken."""
        with self._transaction(exclusive=False) as connection:
            return _unbroken(connection)[1]

    def unchecked_entries(self) -> list[Entry]:
        """All entries in order, also where the chain is broken."""
        with self._transaction(exclusive=False) as connection:
            rows = _load(connection).rows
        return [_entry(row) for row in rows]

    def breaks(self, *, own: bool = False) -> list[str]:
        """Every break in the chain, one line each; empty when nothing was edited, deleted, moved, cut off or signed by others.

        `own` leaves out what was seen before and is not there.
        """
        seen = self.seen()
        with self._transaction(exclusive=False) as connection:
            book = _load(connection)
        if broken := _breaks(book):
            return broken
        lost = [] if own else missing_heads(seen, present([_entry(row) for row in book.rows]))
        return _forgeries(book) + [f"entry {head.seq}: seen before, and not in this ledger" for head in lost]

    def keys_known(self) -> set[str]:
        """The public keys that sign this ledger, or did, or signed another in its place."""
        with self._transaction(exclusive=False) as connection:
            book = _load(connection)
        former = {_entry(row).body["was"] for row in book.rows if row.kind == REKEYED}
        return {book.key, *former, *self._keys.public_keys(self._place, book.ledger)}

    def names(self) -> set[str]:
        """The ids of this ledger, and of others that lay at its place."""
        return {self._ledger, *self._keys.at(self._place)}

    def new_key(self, reason: str) -> Entry:
        """Go on under another key, since the one so far is lost; an entry says so and why. `BadInput` where it is there."""
        with self._transaction(exclusive=True) as connection:
            book, entries = _unbroken(connection)
            signer = self._keys.new_key(book.ledger, book.key)
            connection.execute(sa.update(_META).where(_META.c.key == "key").values(value=signer.public_key))
            body = {"reason": reason, "was": book.key, "now": signer.public_key, "time": self._clock()}
            entry = _append(connection, book, signer, entries, OF_THE_LEDGER, REKEYED, body)
        self._remember(book.ledger, [Head(entry.seq, entry.hash, entry.previous)])
        return entry

    def seen(self) -> list[Head]:
        """All heads that were noted of this ledger, and of others in its place."""
        return self._keys.seen(self._place, self._ledger)

    def see(self, heads: Sequence[Head]) -> None:
        """Refuse where the chain lacks one of these heads, and note it as seen, so that every later call detects the gap."""
        entries = self.unchecked_entries()
        if lost := missing_heads(heads, present(entries)):
            self._remember(self._ledger, lost)
            self._refuse_gap(entries, [*self.seen(), *lost], spending=True)

    def whole_entries(self) -> list[Entry]:
        """All entries in order; `Refused` where the chain lacks one that was seen before, or is broken.

        One reading: what is checked is what is returned, whatever others append meanwhile.
        """
        seen = self.seen()
        with self._transaction(exclusive=False) as connection:
            book = _load(connection)
        entries = [_entry(row) for row in book.rows]
        self._refuse_gap(entries, seen, spending=True)
        _refuse_broken(book, self._engine.url)
        return entries

    def lacks(self, heads: Sequence[Head] = ()) -> list[Head]:
        """The heads, seen before or among `heads`, that are neither in the chain nor made up for, the latest first."""
        seen = self.seen()
        return missing_heads([*seen, *heads], present(self.unchecked_entries()))

    def signed_head(self) -> dict[str, Any]:
        """Ledger id, number and hash of the last entry (0 and empty before the first), public key, and the signature of these."""
        with self._transaction(exclusive=False) as connection:
            book, entries = _unbroken(connection)
        seq, last = (entries[-1].seq, entries[-1].hash) if entries else (0, "")
        return signed(head_of(book.ledger, seq, last, book.key), self._keys.signer(book.ledger, book.key))

    def sign(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """The value, signed by the key of this ledger."""
        with self._transaction(exclusive=False) as connection:
            book = _load(connection)
        return signed(value, self._keys.signer(book.ledger, book.key))

    @contextmanager
    def appending(self, *, spending: bool = False) -> Iterator[tuple[list[Entry], Write]]:
        """Hold the chain alone: all entries so far, and a function that appends one more, to them too. On an error, nothing is.

        Refused where the chain is broken, and where it lacks a head seen before: for `spending`, and for everything where
        it was cut off; a copy that grew by itself takes what costs nothing.
        """
        with self.appending_beside(spending=spending) as (entries, write, _):
            yield entries, write

    @contextmanager
    def beside(self) -> Iterator[sa.Connection]:
        """One transaction for tables that are kept beside the entries."""
        with self._transaction(exclusive=True) as connection:
            yield connection

    @contextmanager
    def appending_beside(self, *, spending: bool = False, recovering: bool = False) -> Iterator[Appending]:
        """`appending`, with the connection, for tables that are kept beside the entries and change with them.

        `recovering` what the ledger lacks is never refused.
        """
        seen = self.seen()
        with self._transaction(exclusive=True) as connection:
            book, entries = _unbroken(connection)
            if not recovering:
                self._refuse_gap(entries, seen, spending)
            signer = self._keys.signer(book.ledger, book.key)

            def write(dataset: str, kind: str, body: dict[str, Any]) -> Entry:
                body = {"time": self._clock(), **body}  # a decision's own time is signed
                entries.append(_append(connection, book, signer, entries, dataset, kind, body))
                return entries[-1]

            yield Appending(entries, write, connection)
        known = {head.hash for head in seen}
        new = [Head(one.seq, one.hash, one.previous) for one in entries if one.hash not in known]
        self._remember(book.ledger, new)

    def _refuse_gap(self, entries: Sequence[Entry], seen: Sequence[Head], spending: bool) -> None:
        lost = missing_heads(seen, present(entries))
        cut = (entries[-1].hash if entries else "") in {head.previous for head in lost}
        if lost and (cut or spending):
            raise Refused(
                f"the ledger {self.url} lacks entry {lost[0].seq}, which was seen before ({len(lost)} in all): bring back the "
                "ledger that holds it, or write what is known of it anew with sfumato ledger recover (with --declare-loss REASON "
                "where home and runs were deleted, as in a checkout cloned again)"
            )

    def _remember(self, ledger: str, heads: Sequence[Head]) -> None:
        try:
            self._keys.remember(ledger, heads)
        except BadInput as error:  # the entries are on disk; the next append notes these heads too
            warnings.warn(f"the last entry of the ledger was not noted beside its key: {error}", stacklevel=1)

    @contextmanager
    def _transaction(self, *, exclusive: bool) -> Iterator[sa.Connection]:
        """One transaction; an error of the database becomes one line, and nothing is written."""
        with _explained(self._engine), self._engine.begin() as connection:
            _bound(connection)
            if exclusive:
                _lock(connection)
            yield connection


def migrate(url: str, clock: Callable[[], str], keys: Keys) -> Entry | None:
    """Bring the ledger at a URL from the earlier format to this one: the entry that says so, None where it is of this one.

    Every entry stays as it is, to the byte; from the one that is appended on, heads are signed. `Refused` where its chain
    is broken. One transaction: all of it happens, or nothing.
    """
    if not is_there(url):
        raise BadInput(
            f"there is no ledger at {_shown(sa.make_url(url))} to migrate: a new one is made by the first run"
        )
    engine = _engine(url)
    place = _place(engine.url)
    with _explained(engine), engine.begin() as connection:
        _bound(connection)
        _lock(connection)
        recorded = {}
        if sa.inspect(connection).has_table("meta"):
            recorded = {row.key: row.value for row in connection.execute(sa.select(_META))}
        if recorded.get("schema") != UNSIGNED:
            return None
        ledger, signer = keys.new_ledger(place)
        connection.exec_driver_sql("ALTER TABLE entries ADD COLUMN signature TEXT DEFAULT '' NOT NULL")
        added = {"ledger": ledger, "key": signer.public_key}
        connection.execute(sa.insert(_META), [{"key": name, "value": value} for name, value in added.items()])
        connection.execute(sa.update(_META).where(_META.c.key == "schema").values(value=SCHEMA))
        book = _load(connection)
        if broken := _breaks(book):
            raise Refused(f"the ledger {_shown(engine.url)} was tampered with ({broken[0]}): restore it from a backup")
        entries = [_entry(row) for row in book.rows]
        body = {"from": UNSIGNED, "to": SCHEMA, "signed_from": len(entries) + 1, "time": clock()}
        entries.append(_append(connection, book, signer, entries, OF_THE_LEDGER, MIGRATED, body))
    engine.dispose()
    keys.remember_place(place, ledger)
    keys.remember(ledger, [Head(one.seq, one.hash, one.previous) for one in entries])
    return entries[-1]


@contextmanager
def _explained(engine: sa.Engine) -> Iterator[None]:
    """One line for an error of the database."""
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        cause = (str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"the ledger {_shown(engine.url)} cannot be used ({cause}): it must be there, writable, and "
            f"not held by another process for more than {BUSY_SECONDS} s"
        ) from error


@contextmanager
def queueing(url: str, name: str, waiting: Callable[[], object]) -> Iterator[None]:
    """Wait until nobody holds `name` at a PostgreSQL ledger, and hold it; `waiting` is called before a wait. SQLite has no queue.

    The server gives the name back when this process dies, also with its whole machine, after a minute or two of silence.
    Not covered: a connection that breaks while the name is held, after which another process may hold it too.
    """
    if sa.make_url(url).get_backend_name() != "postgresql":
        yield
        return
    # Two numbers of 32 bits: a queue of its own beside the one number of `ADVISORY_LOCK`.
    key = struct.unpack(">ii", hashlib.blake2b(name.encode(), digest_size=8).digest())
    engine = _engine(url).execution_options(isolation_level="AUTOCOMMIT")
    with ExitStack() as stack:
        with _explained(engine):
            connection = stack.enter_context(engine.connect())
            for setting, value in PATIENT.items():
                connection.exec_driver_sql(f"SET {setting} = {value}")
            if not connection.exec_driver_sql(f"SELECT pg_try_advisory_lock{key}").scalar():
                waiting()
                connection.exec_driver_sql(f"SELECT pg_advisory_lock{key}")
        stack.callback(connection.invalidate)  # to hang up gives the name back, whatever state the connection is in
        yield


PATIENT = {
    **{"lock_timeout": 0, "statement_timeout": 0},
    **{"tcp_keepalives_idle": 60, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 6},
}
"""A connection that waits in a queue as long as it takes, and that the server asks for a sign of life."""


def is_there(url: str) -> bool:
    """Whether there is a chain to open: False only for an SQLite file that no one has written yet."""
    parsed = sa.make_url(url)
    return parsed.get_backend_name() != "sqlite" or bool(parsed.database and Path(parsed.database).exists())


def _engine(url: str) -> sa.Engine:
    """An engine that keeps no connection, so that a ledger which went away is noticed by the next call."""
    forms = "write sqlite:///folder/ledger.db or postgresql+psycopg://host/database"
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # not repeated here: it may hold a password
        raise BadInput(f"the ledger URL (SFUMATO_LEDGER, if set) cannot be read: {forms}") from None
    options = {"poolclass": sa.NullPool, "hide_parameters": True}
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        options |= {"isolation_level": "READ COMMITTED", "connect_args": {"connect_timeout": CONNECT_SECONDS}}
        if password := parsed.query.get("password"):  # there, messages would show it
            parsed = parsed.difference_update_query(["password"]).set(password=str(password))
        try:
            return sa.create_engine(parsed.set(drivername="postgresql+psycopg"), **options)
        except ImportError as error:
            raise BadInput(
                f"the ledger {_shown(parsed)} needs psycopg ({error}): pip install 'sfumato[postgres]'"
            ) from None
    if parsed.get_backend_name() != "sqlite":
        raise BadInput(f"a ledger cannot be kept in {parsed.drivername}: {forms}")
    if parsed.database in (None, "", ":memory:") or parsed.query:
        raise BadInput(f"the ledger {_shown(parsed)} is no plain file: write sqlite:///folder/ledger.db")
    path = Path(parsed.database).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)
    except OSError as error:
        raise BadInput(f"the ledger {path} cannot be created ({error.strerror}): choose another folder") from None

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous=FULL")
        with suppress(sqlite3.OperationalError):  # kept in the file once set; a file just in use is as safe without it
            connection.execute("PRAGMA journal_mode=WAL")
        return connection

    return sa.create_engine(parsed, creator=connect, **options)


def _shown(url: sa.URL) -> str:
    """An address for a message: SQLAlchemy hides the password behind the user, and here other secrets are."""
    return without_secret_options(str(url))


def _bound(connection: sa.Connection) -> None:
    """Wait no longer than `BUSY_SECONDS` for others, and be cut off by the server when this machine falls silent."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{BUSY_SECONDS}s'")
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{SILENT_SECONDS}s'")


def _lock(connection: sa.Connection) -> None:
    """Wait until this transaction is the only one that may write: the one place where the databases differ."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")


class _Book(NamedTuple):
    """All rows and recorded values, read by one statement and so at one moment; a missing value is empty."""

    rows: list[sa.Row[Any]]
    head: str | None
    """Recorded hash of the last entry."""
    ledger: str
    """The ledger's id."""
    key: str
    """Its public key."""


def _place(url: sa.URL) -> str:
    """The place of a database, independent of how its URL is written and of the user."""
    if url.get_backend_name() == "sqlite":
        return str(Path(url.database or "").resolve())
    return str(url.set(username=None, password=None))


def _prepare(connection: sa.Connection, keys: Keys, place: str) -> None:
    """Create the tables where there are none; BadInput for another version, or what cannot be written."""
    if not sa.inspect(connection).has_table("meta"):
        ledger, signer = keys.new_ledger(place)
        _TABLES.create_all(connection)
        written = {"schema": SCHEMA, "head": "", "ledger": ledger, "key": signer.public_key}
        connection.execute(sa.insert(_META), [{"key": name, "value": value} for name, value in written.items()])
    version = connection.scalar(sa.select(_META.c.value).where(_META.c.key == "schema"))
    if version == UNSIGNED:
        raise BadInput(
            f"the ledger {_shown(connection.engine.url)} is of the earlier format, without signatures: sfumato migrate keeps all its "
            "entries and signs from now on"
        )
    if version != SCHEMA:
        raise BadInput(
            f"the ledger {_shown(connection.engine.url)} has version {version}, this Sfumato keeps version {SCHEMA}:"
            " use the Sfumato that wrote it, or another ledger"
        )
    _ENTRIES.create(connection, checkfirst=True)  # where someone dropped it, verify tells
    connection.execute(sa.update(_META).where(_META.c.key == "schema").values(value=SCHEMA))  # can it be written?


def _append(
    connection: sa.Connection,
    book: _Book,
    signer: Signer,
    before: Sequence[Entry],
    dataset: str,
    kind: str,
    body: dict[str, Any],
) -> Entry:
    """Write one entry and its signed head.

    Many parameters: each is a field of the entry that it writes, or where it goes.
    """
    try:
        text = canonical({**body, "salt": secrets.token_hex(SALT_BYTES)})
    except (TypeError, ValueError) as error:
        raise BadInput(f"a ledger entry for '{dataset}' cannot be written as JSON: {error}") from None
    seq, previous = len(before) + 1, before[-1].hash if before else ""
    hash = _hash(seq, dataset, kind, text, previous)
    row = {"seq": seq, "dataset": dataset, "kind": kind, "body": text, "previous": previous, "hash": hash}
    signature = signed(head_of(book.ledger, seq, hash, signer.public_key), signer)["signature"]
    connection.execute(sa.insert(_ENTRIES).values(**row, signature=signature))
    connection.execute(sa.update(_META).where(_META.c.key == "head").values(value=hash))
    return Entry(**{**row, "body": json.loads(text)})


def _load(connection: sa.Connection) -> _Book:
    """All rows in order, and what is recorded beside them."""

    def meta(name: str) -> sa.Label[Any]:
        return sa.select(_META.c.value).where(_META.c.key == name).scalar_subquery().label(f"its_{name}")

    one = sa.select(sa.literal(1).label("one")).subquery()
    joined = sa.select(meta("head"), meta("ledger"), meta("key"), _ENTRIES)
    joined = joined.select_from(one.outerjoin(_ENTRIES, sa.true())).order_by(_ENTRIES.c.seq)
    rows = connection.execute(joined).all()
    return _Book(
        [row for row in rows if row.seq is not None], rows[0].its_head, rows[0].its_ledger or "", rows[0].its_key or ""
    )


def present(entries: Sequence[Entry]) -> set[str]:
    """The hashes of all entries, and those that an entry makes up for."""
    made_up = [entry.body["covers"] for entry in entries if entry.kind in COVERING]
    return {entry.hash for entry in entries} | {hash for covers in made_up for _, hash in covers}


def _forgeries(book: _Book) -> list[str]:
    """Entries whose head was not signed by the ledger's key; those before the first signed one excepted where it says so."""
    faults, key = [], book.key
    unsigned = next((row.seq for row in book.rows if row.kind == MIGRATED), 0)
    for row in reversed(book.rows):
        if row.seq >= unsigned and not _is_signed(book, row, key):
            faults.append(
                f"entry {row.seq}: not signed by the ledger's key; it was written or chained anew by somebody else"
            )
        if row.kind == REKEYED:
            key = _entry(row).body["was"]
    return faults[::-1]


def _is_signed(book: _Book, row: sa.Row[Any], key: str) -> bool:
    return is_signed_value({**head_of(book.ledger, row.seq, row.hash, key), "signature": row.signature}, key)


def _breaks(book: _Book) -> list[str]:
    """The breaks of the chain, by hash, by order, and at its end."""
    faults, last, previous = [], 0, ""
    for row in book.rows:
        if row.seq != last + 1:
            faults.append(f"entry {last + 1}: missing; entry {row.seq} comes next")
        if _hash(row.seq, row.dataset, row.kind, row.body, row.previous) != row.hash:
            faults.append(f"entry {row.seq}: edited or moved; its hash is not that of its content")
        elif row.previous != previous and row.seq == last + 1:
            faults.append(f"entry {row.seq}: does not follow entry {last}; one of them was exchanged")
        last, previous = row.seq, row.hash
    if previous != book.head:
        faults.append(f"the end: entry {last} is not the last one written; entries were deleted or exchanged")
    return faults


def _unbroken(connection: sa.Connection) -> tuple[_Book, list[Entry]]:
    """The stored rows and their entries; `Refused` unless they are chained up to a head that the ledger's key signed."""
    book = _load(connection)
    _refuse_broken(book, connection.engine.url)
    return book, [_entry(row) for row in book.rows]


def _refuse_broken(book: _Book, url: sa.URL) -> None:
    """`Refused` unless the rows read at this address are chained up to a head that the ledger's key signed."""
    broken = _breaks(book)
    if not broken and book.rows and not _is_signed(book, book.rows[-1], book.key):
        broken = [f"entry {book.rows[-1].seq}: not signed by the ledger's key"]
    if broken:
        raise Refused(f"the ledger {_shown(url)} was tampered with ({broken[0]}): restore it from a backup")


def _entry(row: sa.Row[Any]) -> Entry:
    try:
        return Entry(row.seq, row.dataset, row.kind, json.loads(row.body), row.previous, row.hash)
    except ValueError:
        raise BadInput(f"entry {row.seq} of the ledger cannot be read: run verify") from None


def _hash(*fields: Any) -> str:
    return hashlib.sha256(json.dumps(fields, separators=(",", ":"), default=repr).encode()).hexdigest()
