"""`sfumato ledger`: what each private set has cost, what it may cost, and whether the books are in order."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import ERR, OUT
from sfumato.errors import BadInput, Refused
from sfumato.privacy.ledger.signing import SHOWN_LETTERS, fingerprint
from tasks.runtime.environment import Where, configure

if TYPE_CHECKING:
    from sfumato.privacy.ledger.ledger import Entry, Ledger
    from sfumato.privacy.ledger.recovery import Known

app = typer.Typer(
    help=(
        "The privacy ledger: what each private set has cost.\n\nEvery entry is signed by a key that lies outside the home "
        "(SFUMATO_KEYS; a team gives one by SFUMATO_LEDGER_KEY): back that folder up. A ledger that was rewritten, cut off or "
        "begun anew is refused; `recover` says how to go on, and `witness` writes its state where nobody here can change it."
    ),
    no_args_is_help=True,
    add_completion=False,
)
SHOWN_BREAKS = 3
"""Largest number of faults of a broken ledger that are shown."""

OneSet = Annotated[
    str, typer.Argument(help="A private set: its name in the ledger, or the path or source of its images.")
]
Reason = Annotated[str, typer.Option(help="Why, in words; it stands in the ledger and in every card.")]
SetName = Annotated[str, typer.Argument(help="Name of a private set; all of them if left out.")]


@app.command("show")
def show(
    dataset: SetName = "", as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Show what was reserved, spent, looked at and reused, and what is left."""
    from flows.cli.ledger_screen import ledger_lines, ledger_object
    from tasks.prices import cached_prices

    place = configure()
    with cached_prices(place), place.ledger() as ledger:
        if lost := ledger.lacks():
            ERR.print(
                f"This ledger lacks entry {lost[0].seq}, which was seen before ({len(lost)} in all): more was spent than it shows; "
                "see sfumato ledger recover"
            )
        dataset = _known_set(ledger, dataset) if dataset else ""
        if as_json:
            print(ledger_object(ledger, dataset))
        else:
            for part in ledger_lines(ledger, dataset):
                OUT.print(part)


@app.command("budget")
def budget(
    dataset: OneSet,
    epsilon: Annotated[float, typer.Option(help="The most that it may cost, all runs together.")],
    delta: Annotated[
        float | None,
        typer.Option(help="The delta at which that is counted; runs must use the same. Default: that of its spends."),
    ] = None,
    name: Annotated[str, typer.Option(help="The data.name of the runs on this path, where they set one.")] = "",
) -> None:
    """Set what a private set may cost; a run that would go beyond is refused before it opens an image (exit code 3)."""
    from sfumato.preflight import set_named
    from sfumato.sources import Reading
    from tasks.checks import unlike_known

    with configure().ledger() as ledger:
        known = _known(ledger)
        named = set_named(dataset, known)
        unlike = ""
        if not name and dataset not in known:
            with contextlib.suppress(BadInput):  # images that cannot be read may have a budget
                unlike = unlike_known(named, dataset, Reading("train"))
        if unlike:
            raise BadInput(
                f"{unlike}: for another collection give --name NAME, and --set data.name=NAME to its runs; for the set in the ledger its name alone, {named}"
            )
        dataset = name or named
        if epsilon < 0:
            raise BadInput(f"--epsilon {epsilon:g}: a budget below nothing binds nothing; give a number from 0 up")
        if delta is not None and not 0 < delta < 1:
            raise BadInput(f"--delta {delta:g}: give a number above 0 and below 1, such as 1e-5")
        delta = ledger.total(dataset).delta if delta is None else delta
        if not delta:
            raise BadInput(f"'{dataset}' has no spends yet to take a delta from: name one with --delta")
        ledger.set_budget(dataset, epsilon, delta)
        left = ledger.total(dataset).left
    OUT.print(f"'{dataset}' may cost epsilon {epsilon:g} at delta {delta:g}; {left:.4f} left", markup=False)


@app.command("join")
def join(dataset: OneSet, other: OneSet, reason: Reason) -> None:
    """Say that two private sets hold the same people or things: from now on the budget of each binds what both cost."""
    from artifacts.reports.spending import totals
    from flows.cli.ledger_screen import total_lines
    from sfumato.preflight import set_named

    with configure().ledger() as ledger:
        known = _known(ledger)
        entry = ledger.join(set_named(dataset, known), set_named(other, known), reason)
        for part in total_lines(totals(ledger, entry.dataset)):
            OUT.print(part, markup=False, soft_wrap=True)


@app.command("differ")
def differ(dataset: OneSet, other: OneSet, reason: Reason) -> None:
    """Say that two private sets, or with the same name twice the versions of one, have nothing in common, whatever was found.

    From now on each counts by itself. The reason stands in the ledger and in every card: you answer for it.
    """
    from artifacts.reports.spending import totals
    from flows.cli.ledger_screen import total_lines
    from sfumato.preflight import set_named

    with configure().ledger() as ledger:
        known = _known(ledger)
        entry = ledger.differ(set_named(dataset, known), set_named(other, known), reason)
        for part in total_lines(totals(ledger, entry.dataset)):
            OUT.print(part, markup=False, soft_wrap=True)


@app.command("verify")
def verify(
    at: Annotated[
        str, typer.Option("--witness", metavar="FILE|URL", help="Also look for every head that a witness holds.")
    ] = "",
) -> None:
    """Check that no entry was edited, deleted, moved, cut off or signed by others (exit code 3 where one was).

    What was seen before must be there: in the folder of keys, in the folders of runs, and at a witness if one is named.
    """
    from artifacts import witness
    from artifacts.upload import shown

    place = configure()
    with place.ledger() as ledger:
        _whole(ledger)
        sources = _known_outside(ledger, place, witness.read_witness(at) if at else ())
        if at and not sources:
            raise BadInput(f"{shown(at)} holds no head that this ledger's key signed: name the witness of this ledger")
        if lost := ledger.lacks([head for one in sources for head in one.heads]):
            raise Refused(
                f"the ledger {ledger.url} lacks entry {lost[0].seq}, which was seen before: sfumato ledger recover"
            )
        head = ledger.signed_head()
        OUT.print(
            f"{len(ledger.entries())} entries, chain whole, signed by key {fingerprint(head['public_key'])[:SHOWN_LETTERS]}"
        )


@app.command("witness")
def witness_(
    to: Annotated[str, typer.Option("--to", metavar="FILE|URL", help="A file, or any URL that fsspec knows.")],
) -> None:
    """Write the ledger's signed head to a place outside, after those that are there: with it, its owner cannot cut it either."""
    from artifacts import witness
    from artifacts.upload import shown

    with configure().ledger() as ledger:
        _whole(ledger)
        head = ledger.signed_head()
    witness.write_witness(head, to)
    OUT.print(f"head {head['seq']} of ledger {head['ledger']} is at {shown(to)}", markup=False, soft_wrap=True)


@app.command("recover")
def recover(
    copies: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="DB|FILE", help="A copy of this ledger, or a run's ledger-head.json; repeatable."
        ),
    ] = None,
    loss: Annotated[
        str,
        typer.Option(
            "--declare-loss", metavar="REASON", help="Go on without what nobody knows; cards show the reason."
        ),
    ] = "",
    key: Annotated[
        str, typer.Option("--new-key", metavar="REASON", help="Go on under a new key, since the one so far is lost.")
    ] = "",
) -> None:
    """Make a ledger that lacks entries whole: what runs and copies know counts again, by entries that say so.

    Lost file, older backup, cut end: without options, the spends that the runs of this home know are written anew. Two
    copies that both grew: recover each from the other with --from. What stays unknown is declared lost with a reason.
    """
    place = configure()
    with place.ledger() as ledger:
        if key:
            entry = ledger.new_key(key)
            OUT.print(f"entry {entry.seq}: signed by key {fingerprint(entry.body['now'])[:SHOWN_LETTERS]} from here on")
            if not ledger.lacks():
                return
        sources = [*_known_outside(ledger, place), *(_copy(ledger, place, one) for one in copies or [])]
        for entry in ledger.recover(sources, loss):
            OUT.print(_recovered_line(entry), markup=False, soft_wrap=True)


@app.command("replay")
def replay(
    slow: Annotated[
        bool, typer.Option("--slow", help="By dp-accounting alone, none of our own pricing: minutes.")
    ] = False,
) -> None:
    """Compute every certificate again from the entries and print the differences (exit code 3 where one is too small)."""
    from artifacts.card import slow_price
    from sfumato.verify_card import MARGIN
    from tasks.runtime.progress import progress

    with configure().ledger() as ledger:
        _whole(ledger)
        with progress("replay") as show:
            different = (
                ledger.replay(MARGIN - 1, price=slow_price, progress=show) if slow else ledger.replay(progress=show)
            )
        for one in different:
            OUT.print(
                f"entry {one.seq} of '{one.dataset}' ({one.relation}): recorded {one.recorded}, replayed {one.replayed}",
                markup=False,
                soft_wrap=True,
            )
        # Another accountant may compute less: then the certificate is larger than necessary, which is safe.
        wrong = [
            one for one in different if not (slow and one.recorded and one.replayed and one.replayed < one.recorded)
        ]
        if wrong:
            raise Refused(
                f"{len(wrong)} certificates cannot be reproduced: another accountant version, or an entry that was forged"
            )
        priced = sum(entry.kind in ("reserve", "recovered", "commit") for entry in ledger.entries())
    verdict = f"{len(different)} above dp-accounting's price, none below" if different else "all reproduced"
    OUT.print(f"{priced} certificates, {verdict}")


@app.command("key")
def key() -> None:
    """Print the public key that checks what this ledger signs, and its fingerprint: hand them on apart from any folder."""
    with configure().ledger() as ledger:
        public = ledger.signed_head()["public_key"]
    OUT.print(f"{public}\nfingerprint {fingerprint(public)}", markup=False, soft_wrap=True, highlight=False)


@app.command("export")
def export(
    dataset: OneSet,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="A new or empty folder.")] = "ledger",
) -> None:
    """Write entries, totals and a picture of the spending into a folder. INTERNAL: it says when images were looked at."""
    from artifacts.publish import unwritable
    from artifacts.reports.spending import export as write
    from sfumato.image_folder import free_folder
    from tasks.runtime.progress import progress

    with configure().ledger() as ledger:
        dataset = _known_set(ledger, dataset)
        folder = free_folder(Path(to))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with progress("export") as show:
                files = write(ledger, dataset, folder, progress=show)
        except OSError as error:
            raise unwritable(error, folder) from error
    for file in files:
        OUT.print(str(file), markup=False, soft_wrap=True)


def _whole(ledger: "Ledger") -> None:
    if breaks := ledger.verify():
        raise Refused(f"the ledger {ledger.url} was tampered with: {'; '.join(breaks[:SHOWN_BREAKS])}")


def _known_outside(ledger: "Ledger", place: Where, more: Iterable[str] = ()) -> "list[Known]":
    """The content of this ledger from statements and cards of runs, and from other texts."""
    from artifacts import witness

    return ledger.known_from([*witness.texts_in_runs(place.runs), *more])


def _copy(ledger: "Ledger", place: Where, at: str) -> "Known":
    """The content of another copy of the ledger, or of a statement of it."""
    url = at if "://" in at else f"sqlite:///{Path(at).expanduser().absolute()}"
    if "://" not in at:
        with contextlib.suppress(OSError, ValueError):
            for known in ledger.known_from([Path(at).expanduser().read_text(encoding="utf-8")]):
                return known
    from sfumato.privacy.ledger.chain import is_there

    if not is_there(url):
        raise BadInput(f"there is no ledger at {at}: name a copy of this ledger, or the ledger-head.json of a run")
    with replace(place, ledger_url=url).ledger() as other:
        return ledger.known_from_copy(other)


def _recovered_line(entry: "Entry") -> str:
    body = entry.body
    if entry.kind == "recovered":
        return f"entry {entry.seq}: '{entry.dataset}', entry {body['was']} of run {body.get('run', '')} counts again"
    if entry.kind == "budget":
        return f"entry {entry.seq}: '{entry.dataset}' may cost epsilon {body['epsilon']:g} again"
    if entry.kind in ("check", "decision"):
        veto = "the audit refutes its promise" if entry.kind == "check" else f"{body['name']} refuses it"
        return f"entry {entry.seq}: '{entry.dataset}', run {body['run']}: {veto} again"
    unknown = f", {body['unknown']} of them unknown ({body['reason']})" if "unknown" in body else ""
    return f"entry {entry.seq}: makes up for {len(body['covers'])} entries seen before{unknown}"


def _known_set(ledger: "Ledger", dataset: str) -> str:
    """The set of the ledger that a person means; `BadInput`, with near names, where it knows none."""
    from sfumato.preflight import set_named

    known = _known(ledger)
    if (name := set_named(dataset, known)) not in known:
        raise BadInput(f"the ledger knows no private set {name!r} (known: {', '.join(known) or 'none'})")
    return name


def _known(ledger: "Ledger") -> list[str]:
    from sfumato.privacy.ledger.chain import OF_THE_LEDGER

    return [name for name in dict.fromkeys(entry.dataset for entry in ledger.entries()) if name != OF_THE_LEDGER]
