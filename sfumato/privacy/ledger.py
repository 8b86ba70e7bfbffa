"""The privacy ledger: what was paid for each private set, by every run together, and what may still be paid.

A spend is written three times. `reserve` records the whole planned cost, or refuses it when the budget cannot bear it;
`opened` records that the door opens, before the first private byte is read; `commit` records the events really taken. A
reservation that is never committed stands in full, and it can be cancelled only while its door is shut.

Promise: reservations made at once by any number of processes never overspend together. The check and the insert are one
exclusive transaction; should a lock ever fail, both would claim the same `seq` and the primary key lets one of them in.
Entries are only ever appended, each chained by sha256 to the one before; `verify` finds rows edited, deleted or moved,
and a ledger with a broken chain takes no further entry and states no total.

A sum holds under one relation. A spend stated under `add_remove` is priced under `replace_one` too; one stated under
`replace_one` may show how many records there are, so that an `add_remove` sum which holds it is infinite. A budget is
checked under `replace_one` as soon as one spend is stated so.

Not covered: a person who rewrites the file and every hash in it (note the last entry's hash elsewhere to catch that);
two sets that share some images, not all; plans or numbers of steps chosen by looking at private results (the sum
composes the events as if fixed in advance); a ledger that is lost, for a new one starts at zero (back it up); SQLite on
a network file system (point the URL at PostgreSQL).
"""

import hashlib
import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError

from sfumato.config import Relation
from sfumato.errors import BadInput, Refused
from sfumato.privacy import accountant
from sfumato.privacy.events import AnyEvent, Event, Uncertified

Kind = Literal["budget", "reserve", "open", "commit", "cancel", "look", "reuse", "override"]
Label = Literal["PUBLIC", "DP", "INTERNAL"]
Price = Callable[[Sequence[Event], float, Relation], float]
"""(events, delta, relation) -> epsilon of their composition, infinite where there is none."""

SCHEMA = "1"
"""Version of the tables and of what an entry holds; a ledger of another version is not touched."""

BUSY_SECONDS = 60
"""How long to wait while another process holds the ledger; it holds it for as long as one pricing takes."""

ADVISORY_LOCK = 0x5F0A_70
"""The number under which all Sfumato processes queue in one PostgreSQL database."""

FROM_CONTENT = frozenset({"digest", "parents", "artifact"})
"""Fields computed from content, by which a guess of the private images could be confirmed: never in a public view."""

_EVENTS = TypeAdapter(tuple[AnyEvent, ...])
_TABLES = sa.MetaData()
_ENTRIES = sa.Table(
    "entries",
    _TABLES,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("dataset", "kind", "body", "previous", "hash")),
)
_META = sa.Table("meta", _TABLES, sa.Column("key", sa.String(16), primary_key=True), sa.Column("value", sa.Text))


@dataclass(frozen=True)
class Entry:
    """One row. `body` and the hashes are INTERNAL (they hold or follow from the set's digest), not in the `repr`."""

    seq: int
    dataset: str
    kind: Kind
    body: dict[str, Any] = field(repr=False)
    previous: str = field(repr=False)
    hash: str = field(repr=False)

    def public(self) -> dict[str, Any]:
        """What reports and trackers may show: no digest of content, and no hash that one went into."""
        shown = {name: value for name, value in self.body.items() if name not in FROM_CONTENT}
        return {"seq": self.seq, "dataset": self.dataset, "kind": self.kind, **shown}


@dataclass(frozen=True)
class Reservation:
    """A planned cost, written down. `epsilon` is its certificate alone; None where there is none, and `why`."""

    seq: int
    dataset: str
    events: tuple[Event, ...]
    relation: Relation
    delta: float
    epsilon: float | None
    why: str | None
    insecure: bool
    hash: str = field(repr=False)


@dataclass(frozen=True)
class Budget:
    """The most that a private set may cost, all runs together."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Total:
    """What a private set has cost so far; `left` is None without a budget, or when asked in other terms."""

    epsilon: float
    delta: float
    relation: Relation
    spends: int
    left: float | None


@dataclass(frozen=True)
class Difference:
    """A certificate that `replay` does not find again; None stands for no certificate."""

    seq: int
    dataset: str
    recorded: float | None
    replayed: float | None


Spend = tuple[Entry, tuple[Event, ...]]
"""A `reserve` entry with the events that count: those committed, or all reserved ones while nothing is."""


def entry_label(entry: Entry) -> Label:
    """What an output may at best be labelled that stands on this entry (design section 3)."""
    if entry.kind in ("reserve", "open", "commit"):
        return "DP" if entry.body["epsilon"] is not None and not entry.body["insecure"] else "INTERNAL"
    return "INTERNAL" if entry.kind == "look" else "PUBLIC"


class Ledger:
    """The ledger at a database URL, created if it is not there; every call is one transaction on a fresh connection."""

    def __init__(self, url: str, clock: Callable[[], str], price: Price = accountant.epsilon):
        """`clock` tells the time as ISO-8601 in UTC; a `price` other than the accountant's shows in every entry."""
        self._clock, self._price, self._engine = clock, price, _engine(url)
        injected = f"injected: {getattr(price, '__name__', type(price).__name__)}"
        self._accountant = accountant.accountant_name() if price is accountant.epsilon else injected
        with self._transaction(exclusive=True) as connection:
            _prepare(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database; nothing is pending, every entry is on disk when its call returns."""
        self._engine.dispose()

    # The budget

    def set_budget(self, dataset: str, epsilon: float, delta: float) -> Entry:
        """Set or change what a private set may cost in all; Refused below what is spent already."""
        _check_name(dataset)
        _check_delta(delta)
        if not (math.isfinite(epsilon) and epsilon >= 0):
            raise BadInput(f"a budget of epsilon {epsilon} for '{dataset}' means nothing: give a number from 0 up")
        with self._append() as (entries, write):
            total = self._total(entries, dataset, delta, None)
            if not total.epsilon <= epsilon:
                raise Refused(
                    f"'{dataset}' has cost epsilon {total.epsilon:.4g} at delta {delta:g} ({total.relation}) in "
                    f"{total.spends} spends; a budget of {epsilon:.4g} is below that: set a larger one"
                )
            return write(dataset, "budget", {"epsilon": float(epsilon), "delta": float(delta)})

    def budget(self, dataset: str) -> Budget | None:
        """The budget in force, or None."""
        return _budget(self._checked(), dataset)

    # Spends

    def reserve(
        self,
        dataset: str,
        digest: str,
        events: Iterable[Event],
        relation: Relation,
        delta: float,
        *,
        stage: str,
        purpose: str,
        run: str,
        code_version: str,
        images: int | Literal["any"],
        parents: Sequence[str] = (),
        claim: dict[str, Any] | None = None,
        insecure: bool = False,
    ) -> Reservation:
        """Write down the whole cost of a plan before its door opens, or raise Refused with nothing written.

        dataset, digest: the private set's declared name and content digest (the digest stays INTERNAL).
        events, relation, delta: the mechanisms to be run, and the terms in which their certificate is stated. State
            under `add_remove` all that holds there.
        stage, purpose: which part of the run asks, and what for, in words.
        run, code_version: who asks; retries are told apart by their entries.
        images: how many images the cost covers; "any" where a released model may draw any number.
        parents: digests of the artifacts that go in.
        claim: what the paper's own analysis gives for these settings, if it gives anything (JSON).
        insecure: a test injected the noise generator; all that follows is INTERNAL.
        """
        _check_delta(delta)
        planned = _check_events(events)
        if not sum(_tally(planned).values()):
            raise BadInput(f"a reservation on '{dataset}' names no event: write an access without noise by look()")
        if relation not in get_args(Relation):
            raise BadInput(f"relation '{relation}' is unknown: choose one of {', '.join(get_args(Relation))}")
        if images != "any" and (isinstance(images, bool) or not isinstance(images, int) or images < 0):
            raise BadInput(f"images={images!r}: give the number of images covered, or 'any'")
        certificate = self._certificate(planned, delta, relation)  # of this run alone: no need to hold the ledger
        with self._append() as (entries, write):
            _check_set(entries, dataset, digest)
            self._check_budget(entries, dataset, planned, relation, delta)
            entry = write(
                dataset,
                "reserve",
                {
                    "digest": digest,
                    "events": _dump(planned),
                    "relation": relation,
                    "delta": float(delta),
                    **certificate,
                    "claim": claim,
                    "images": images,
                    "code_version": code_version,
                    "run": run,
                    "stage": stage,
                    "parents": list(parents),
                    "purpose": purpose,
                    "insecure": bool(insecure),
                },
            )
        return Reservation(
            entry.seq,
            dataset,
            planned,
            relation,
            float(delta),
            certificate["epsilon"],
            certificate["why"],
            bool(insecure),
            entry.hash,
        )

    def opened(self, reservation: Reservation) -> Entry:
        """Write that the door opens under a reservation, before the first byte is read; once only."""
        with self._append() as (entries, write):
            reserved, last = _standing(entries, reservation)
            if last is not None:
                raise Refused(f"{_title(reserved)} {_PAST[last.kind]} before: reserve anew for another access")
            return write(
                reserved.dataset,
                "open",
                {"reserve": reserved.seq, "epsilon": reserved.body["epsilon"], "insecure": reserved.body["insecure"]},
            )

    def commit(self, reservation: Reservation, events: Iterable[Event]) -> Entry:
        """Write the events really taken: those reserved, or fewer of them. More is Refused, and all stays reserved."""
        taken = _check_events(events)
        with self._append() as (entries, write):
            reserved, last = _standing(entries, reservation)
            if last is None or last.kind != "open":
                state = "was never opened" if last is None else _PAST[last.kind] + " before"
                raise Refused(f"{_title(reserved)} {state}: only a reservation whose door is open can be committed")
            excess = _tally(taken) - _tally(_events(reserved))
            if excess:
                (what, times), *_ = excess.items()
                raise Refused(
                    f"{_title(reserved)} does not cover what was done ({times} times too many: {what}): it stands in "
                    "full, the excess is in no account, and the result must not leave"
                )
            certificate = self._certificate(taken, reserved.body["delta"], reserved.body["relation"])
            return write(
                reserved.dataset,
                "commit",
                {"reserve": reserved.seq, "events": _dump(taken), **certificate, "insecure": reserved.body["insecure"]},
            )

    def cancel(self, reservation: Reservation) -> Entry:
        """Give a reservation back; Refused once its door was opened."""
        with self._append() as (entries, write):
            reserved, last = _standing(entries, reservation)
            if last is not None:
                raise Refused(f"{_title(reserved)} {_PAST[last.kind]} before: it can no longer be cancelled")
            return write(reserved.dataset, "cancel", {"reserve": reserved.seq})

    # What costs nothing

    def look(
        self,
        dataset: str,
        digest: str,
        reason: str,
        *,
        stage: str,
        run: str,
        code_version: str,
        parents: Sequence[str] = (),
    ) -> Entry:
        """Write, before it happens, an access without noise; all that comes of it is INTERNAL."""
        _check_reason("a look at", dataset, reason)
        with self._append() as (entries, write):
            _check_set(entries, dataset, digest)
            return write(
                dataset,
                "look",
                {
                    "digest": digest,
                    "reason": reason,
                    "stage": stage,
                    "run": run,
                    "code_version": code_version,
                    "parents": list(parents),
                },
            )

    def reuse(
        self, dataset: str, artifact: str, *, spends: Sequence[int], stage: str, run: str, code_version: str
    ) -> Entry:
        """Write that a cached artifact, which stands on the reservations `spends`, was used again."""
        with self._append() as (entries, write):
            _reserved(entries, spends, dataset)
            return write(
                dataset,
                "reuse",
                {
                    "artifact": artifact,
                    "spends": list(spends),
                    "stage": stage,
                    "run": run,
                    "code_version": code_version,
                },
            )

    def override(
        self,
        dataset: str,
        reason: str,
        *,
        artifact: str,
        claim: dict[str, Any] | None,
        missing: str,
        spends: Sequence[int],
        run: str,
        code_version: str,
    ) -> Entry:
        """Write that a person let an artifact leave on a claim alone; `missing` says why it has no certificate."""
        _check_reason("an override for", dataset, reason)
        with self._append() as (entries, write):
            _reserved(entries, spends, dataset)
            return write(
                dataset,
                "override",
                {
                    "reason": reason,
                    "artifact": artifact,
                    "claim": claim,
                    "missing": missing,
                    "spends": list(spends),
                    "run": run,
                    "code_version": code_version,
                },
            )

    # Reading

    def entries(self, dataset: str | None = None) -> list[Entry]:
        """All entries in order, or those of one set; readable also when the chain is broken."""
        with self._transaction(exclusive=False) as connection:
            rows, _ = _load(connection)
        return [_entry(row) for row in rows if dataset is None or row.dataset == dataset]

    def spends(self, dataset: str) -> list[Spend]:
        """The reservations that count, each with the events that count: committed, or else all that was reserved."""
        return _spends(self._checked(), dataset)

    def total(self, dataset: str, delta: float | None = None, relation: Relation | None = None) -> Total:
        """The cost of a private set so far, all spends composed.

        delta: by default the budget's, else the smallest among the spends (0 when nothing is spent).
        relation: by default `replace_one` as soon as one spend is stated so, else `add_remove`.
        """
        return self._total(self._checked(), dataset, delta, relation)

    def price_of(self, seqs: Sequence[int], delta: float, relation: Relation) -> float:
        """The epsilon of one release that stands on these reservations of one set; infinite without certificate."""
        _check_delta(delta)
        entries = self._checked()
        reserved = _reserved(entries, seqs)
        if len({entry.dataset for entry in reserved}) > 1:
            raise BadInput(f"reservations {sorted(set(seqs))} are of several private sets: price each set by itself")
        spends = [spend for one in reserved[:1] for spend in _spends(entries, one.dataset) if spend[0] in reserved]
        if len(spends) < len(reserved):
            raise BadInput(f"one of the reservations {sorted(set(seqs))} was cancelled: nothing can stand on it")
        return self._compose(spends, delta, relation)

    def verify(self) -> list[str]:
        """Every break in the chain of entries, one line each; empty when nothing was edited, deleted or moved."""
        with self._transaction(exclusive=False) as connection:
            return _breaks(*_load(connection))

    def replay(self, tolerance: float = 1e-6) -> list[Difference]:
        """Recompute each certificate from its entry; the ones that differ by more than `tolerance` (relative)."""
        entries = self._checked()
        reserved = {entry.seq: entry.body for entry in entries if entry.kind == "reserve"}
        differences = []
        for entry in entries:
            if entry.kind in ("reserve", "commit"):
                terms = reserved[entry.body.get("reserve", entry.seq)]
                now = self._certificate(_events(entry), terms["delta"], terms["relation"])["epsilon"]
                recorded = entry.body["epsilon"]
                known = recorded is not None and now is not None
                if not (math.isclose(recorded, now, rel_tol=tolerance) if known else recorded is now):
                    differences.append(Difference(entry.seq, entry.dataset, recorded, now))
        return differences

    # Pricing

    def _epsilon(self, events: Sequence[Event], delta: float, relation: Relation) -> float:
        """Price events; nothing costs nothing, and one uncertified access has no finite price."""
        if not sum(_tally(events).values()):
            return 0.0
        uncertified = any(isinstance(event, Uncertified) for event in events)
        return math.inf if uncertified else float(self._price(events, delta, relation))

    def _certificate(self, events: Sequence[Event], delta: float, relation: Relation) -> dict[str, Any]:
        """What an entry says of its price: epsilon, or none and why, and who computed it."""
        epsilon = self._epsilon(events, delta, relation)
        reasons = [event.reason for event in events if isinstance(event, Uncertified)]
        why = "; ".join(dict.fromkeys(reasons)) or f"the accountant finds no finite epsilon at delta {delta:g}"
        found = math.isfinite(epsilon)
        return {"epsilon": epsilon if found else None, "why": None if found else why, "accountant": self._accountant}

    def _compose(self, spends: Sequence[Spend], delta: float, relation: Relation) -> float:
        """Compose spends under one relation; `replace_one` statements do not carry over to `add_remove`."""
        if relation == "add_remove" and _relation(spends) == "replace_one":
            return math.inf
        return self._epsilon([event for _, events in spends for event in events], delta, relation)

    def _total(self, entries: list[Entry], dataset: str, delta: float | None, relation: Relation | None) -> Total:
        spends, budget = _spends(entries, dataset), _budget(entries, dataset)
        own = budget.delta if budget else min((entry.body["delta"] for entry, _ in spends), default=0.0)
        delta, strictest = own if delta is None else delta, _relation(spends)
        relation = strictest if relation is None else relation
        epsilon = self._compose(spends, delta, relation)
        in_terms = budget is not None and (delta, relation) == (budget.delta, strictest)
        return Total(epsilon, delta, relation, len(spends), max(0.0, budget.epsilon - epsilon) if in_terms else None)

    def _check_budget(
        self, entries: list[Entry], dataset: str, planned: tuple[Event, ...], relation: Relation, delta: float
    ) -> None:
        """Raise Refused when the set's budget cannot bear the planned events too."""
        budget = _budget(entries, dataset)
        if budget is None:
            return
        if delta != budget.delta:
            raise BadInput(f"delta {delta:g} differs from the budget of '{dataset}': use its delta {budget.delta:g}")
        spends = _spends(entries, dataset)
        relation = "replace_one" if relation == "replace_one" else _relation(spends)
        events = [event for _, counted in spends for event in counted]
        after = self._epsilon([*events, *planned], delta, relation)
        if after <= budget.epsilon:
            return
        before = self._epsilon(events, delta, relation)
        left = (
            f"epsilon {max(0.0, budget.epsilon - before):.4g} of {budget.epsilon:.4g} left for '{dataset}' "
            f"at delta {delta:g} ({relation}); this run"
        )
        if math.isfinite(after):
            raise Refused(f"{left} needs {after - before:.4g}: lower --epsilon, or raise the budget")
        raise Refused(
            f"{left} has no certificate ({self._certificate(planned, delta, relation)['why']}): choose a "
            "certified setting, or a private set without a budget"
        )

    # The database

    @contextmanager
    def _transaction(self, *, exclusive: bool) -> Iterator[sa.Connection]:
        """One transaction; whatever the database complains of becomes one line, and nothing is written."""
        try:
            with self._engine.begin() as connection:
                if exclusive:
                    _lock(connection)
                yield connection
        except sa.exc.SQLAlchemyError as error:
            cause = (str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__])[0]
            raise BadInput(
                f"the ledger {self._engine.url} cannot be used ({cause}): it must be there, writable, and "
                f"not held by another process for more than {BUSY_SECONDS} s"
            ) from error

    def _checked(self) -> list[Entry]:
        with self._transaction(exclusive=False) as connection:
            return _unbroken(connection)

    @contextmanager
    def _append(self) -> Iterator[tuple[list[Entry], Callable[[str, Kind, dict[str, Any]], Entry]]]:
        """Hold the ledger alone: all entries so far, and a function that appends one more. On an error, nothing is."""
        with self._transaction(exclusive=True) as connection:
            entries = _unbroken(connection)

            def write(dataset: str, kind: Kind, body: dict[str, Any]) -> Entry:
                body = {**body, "time": self._clock()}
                try:
                    text = _canonical(body)
                except (TypeError, ValueError) as error:
                    raise BadInput(f"a ledger entry for '{dataset}' cannot be written as JSON: {error}") from None
                seq, previous = len(entries) + 1, entries[-1].hash if entries else ""
                row = {
                    "seq": seq,
                    "dataset": dataset,
                    "kind": kind,
                    "body": text,
                    "previous": previous,
                    "hash": _hash(seq, dataset, kind, text, previous),
                }
                connection.execute(sa.insert(_ENTRIES).values(row))
                connection.execute(sa.update(_META).where(_META.c.key == "head").values(value=row["hash"]))
                return Entry(**{**row, "body": json.loads(text)})

            yield entries, write


def _engine(url: str) -> sa.Engine:
    """An engine that keeps no connection, so that a ledger which went away is noticed by the next call."""
    forms = "write sqlite:///folder/ledger.db or postgresql+psycopg://host/database"
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # not repeated here: it may hold a password
        raise BadInput(f"the ledger URL cannot be read: {forms}") from None
    options = {"poolclass": sa.NullPool, "hide_parameters": True}
    if parsed.get_backend_name() == "postgresql":
        try:
            return sa.create_engine(parsed, isolation_level="READ COMMITTED", **options)
        except (sa.exc.ArgumentError, ImportError) as error:
            raise BadInput(f"the ledger {parsed} needs a driver ({error}): install psycopg and {forms}") from None
    if parsed.get_backend_name() != "sqlite":
        raise BadInput(f"a ledger cannot be kept in {parsed.get_backend_name()}: {forms}")
    if parsed.database in (None, "", ":memory:") or parsed.query:
        raise BadInput(f"the ledger {parsed} is no plain file: write sqlite:///folder/ledger.db")
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


def _lock(connection: sa.Connection) -> None:
    """Wait until this transaction is the only one that may write: the one place where the databases differ."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{BUSY_SECONDS}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")


def _prepare(connection: sa.Connection) -> None:
    """Create the tables where there are none; BadInput for another version, or what cannot be written."""
    if not sa.inspect(connection).has_table("meta"):
        _TABLES.create_all(connection)
        connection.execute(sa.insert(_META), [{"key": "schema", "value": SCHEMA}, {"key": "head", "value": ""}])
    version = connection.scalar(sa.select(_META.c.value).where(_META.c.key == "schema"))
    if version != SCHEMA:
        raise BadInput(
            f"the ledger {connection.engine.url} has version {version}, this Sfumato keeps version {SCHEMA}:"
            " use the Sfumato that wrote it, or another ledger"
        )
    _ENTRIES.create(connection, checkfirst=True)  # where someone dropped it, verify tells
    connection.execute(sa.update(_META).where(_META.c.key == "schema").values(value=SCHEMA))  # can it be written?


def _load(connection: sa.Connection) -> tuple[list[sa.Row], str | None]:
    """All rows in order and the recorded hash of the last one, read by one statement and so at one moment."""
    joined = sa.select(_META.c.value.label("head"), _ENTRIES).select_from(_META.outerjoin(_ENTRIES, sa.true()))
    rows = connection.execute(joined.where(_META.c.key == "head").order_by(_ENTRIES.c.seq)).all()
    return [row for row in rows if row.seq is not None], rows[0].head if rows else None


def _breaks(rows: Sequence[sa.Row], head: str | None) -> list[str]:
    """Where the chain does not hold, by hash, by order, and at its end."""
    found, last, previous = [], 0, ""
    for row in rows:
        if row.seq != last + 1:
            found.append(f"entry {last + 1}: missing; entry {row.seq} comes next")
        if _hash(row.seq, row.dataset, row.kind, row.body, row.previous) != row.hash:
            found.append(f"entry {row.seq}: edited or moved; its hash is not that of its content")
        elif row.previous != previous and row.seq == last + 1:
            found.append(f"entry {row.seq}: does not follow entry {last}; one of them was exchanged")
        last, previous = row.seq, row.hash
    if previous != head:
        found.append(f"the end: entry {last} is not the last one written; entries were deleted or exchanged")
    return found


def _unbroken(connection: sa.Connection) -> list[Entry]:
    rows, head = _load(connection)
    if broken := _breaks(rows, head):
        raise Refused(f"the ledger {connection.engine.url} was tampered with ({broken[0]}): restore it from a backup")
    return [_entry(row) for row in rows]


def _entry(row: sa.Row) -> Entry:
    try:
        return Entry(row.seq, row.dataset, row.kind, json.loads(row.body), row.previous, row.hash)
    except ValueError:
        raise BadInput(f"entry {row.seq} of the ledger cannot be read: run verify") from None


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(*fields: Any) -> str:
    return hashlib.sha256(json.dumps(fields, separators=(",", ":"), default=repr).encode()).hexdigest()


def _dump(events: Sequence[Event]) -> list[dict[str, Any]]:
    return _EVENTS.dump_python(tuple(events), mode="json")


def _events(entry: Entry) -> tuple[Event, ...]:
    try:
        return _EVENTS.validate_python(entry.body["events"])
    except ValidationError:
        raise BadInput(f"entry {entry.seq} of the ledger names mechanisms unknown to this Sfumato: update it") from None


def _tally(events: Sequence[Event]) -> Counter[str]:
    """How often each mechanism runs: {its parameters: times}."""
    tally: Counter[str] = Counter()
    for event in events:
        parameters = event.model_dump(mode="json")
        times = [parameters.pop(name) for name in ("count", "steps") if name in parameters]
        tally[_canonical(parameters)] += math.prod(times)
    return tally


def _spends(entries: Sequence[Entry], dataset: str) -> list[Spend]:
    ends = {entry.body["reserve"]: entry for entry in entries if entry.kind in ("commit", "cancel")}
    reserved = [entry for entry in entries if (entry.dataset, entry.kind) == (dataset, "reserve")]
    ended = [(entry, ends.get(entry.seq, entry)) for entry in reserved]
    return [(entry, _events(end)) for entry, end in ended if end.kind != "cancel"]


def _relation(spends: Sequence[Spend]) -> Relation:
    """The relation under which all these spends can be stated together."""
    return "replace_one" if any(entry.body["relation"] == "replace_one" for entry, _ in spends) else "add_remove"


def _budget(entries: Sequence[Entry], dataset: str) -> Budget | None:
    found = [entry.body for entry in entries if (entry.dataset, entry.kind) == (dataset, "budget")]
    return Budget(found[-1]["epsilon"], found[-1]["delta"]) if found else None


_PAST = {"open": "was opened", "commit": "was committed", "cancel": "was cancelled"}


def _title(reserved: Entry) -> str:
    return f"reservation {reserved.seq} on '{reserved.dataset}'"


def _standing(entries: Sequence[Entry], reservation: Reservation) -> tuple[Entry, Entry | None]:
    """A reservation's own entry, and the latest one that opened or ended it."""
    reserved = next((entry for entry in entries if entry.hash == reservation.hash), None)
    if reserved is None:
        raise Refused(
            f"reservation {reservation.seq} on '{reservation.dataset}' is not in this ledger: reserve in the "
            "ledger that the run uses"
        )
    later = [entry for entry in entries if entry.kind in _PAST and entry.body["reserve"] == reserved.seq]
    return reserved, later[-1] if later else None


def _reserved(entries: Sequence[Entry], seqs: Sequence[int], dataset: str | None = None) -> list[Entry]:
    """The `reserve` entries of these numbers, of one set where it is given."""
    if dataset is not None:
        _check_name(dataset)
    found = {entry.seq: entry for entry in entries if entry.kind == "reserve" and dataset in (None, entry.dataset)}
    if unknown := [seq for seq in seqs if seq not in found]:
        where = "" if dataset is None else f" on '{dataset}'"
        raise BadInput(f"entry {unknown[0]} is no reservation{where}: name the reservations that it stands on")
    return [found[seq] for seq in sorted(set(seqs))]


def _check_set(entries: Sequence[Entry], dataset: str, digest: str) -> None:
    """A name means one content and a content one name, or budgets could be walked around. No digest is ever printed."""
    _check_name(dataset)
    if not isinstance(digest, str) or not digest:
        raise BadInput(f"the private set '{dataset}' comes without a content digest: compute it first")
    for entry in entries:
        if "digest" in entry.body and entry.dataset == dataset and entry.body["digest"] != digest:
            raise BadInput(f"the private set '{dataset}' changed since its last entry: register it under a new name")
        if "digest" in entry.body and entry.dataset != dataset and entry.body["digest"] == digest:
            raise BadInput(f"the private set '{dataset}' is in the ledger as '{entry.dataset}': use that name")


def _check_events(events: Iterable[Event]) -> tuple[Event, ...]:
    try:
        checked = _EVENTS.validate_python(tuple(events))
        _canonical(_dump(checked))
    except ValueError as error:
        cause = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise BadInput(f"the ledger cannot write these events ({cause}): use those of sfumato.privacy.events") from None
    return checked


def _check_name(dataset: str) -> None:
    if not isinstance(dataset, str) or not dataset.strip() or not dataset.isprintable():
        raise BadInput(f"{dataset!r} cannot name a private set: use a printable word")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise BadInput(f"delta {delta} is not between 0 and 1: take less than one over the number of records")


def _check_reason(what: str, dataset: str, reason: str) -> None:
    if not isinstance(reason, str) or not reason.strip():
        raise BadInput(f"{what} '{dataset}' needs a reason in words")
