"""`sfumato request-release` and `sfumato approve`: somebody decides whether a run's images may leave."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import OUT, RunName
from sfumato.errors import BadInput
from tasks.runtime.environment import configure

AcceptClaim = Annotated[
    str,
    typer.Option(metavar="REASON", help="Ruling for INTERNAL images on the paper's claim, as sfumato publish does."),
]
AcceptCopies = Annotated[
    str, typer.Option(metavar="REASON", help="Say why images that repeat training records may leave, as there.")
]


def request_release(
    run: RunName = "latest",
    days: Annotated[float, typer.Option(min=0.01, help="How long the form waits for an answer.")] = 14,
    accept_claim: AcceptClaim = "",
    accept_copies: AcceptCopies = "",
) -> None:
    """Ask for a decision in Prefect's UI: a form with name, role, reason and licence, beside the report that may leave.

    Needs a server (sfumato serve). Its worker shows the form and is free again; without a worker this command waits for the answer.
    What is typed there is recorded as "name as typed, not verified"; sfumato approve signs.
    """
    from artifacts.record import load_record

    place = configure()
    from tasks.approval import releasable
    from tasks.server import requests

    api = requests.server()
    record = load_record(place.runs, run)
    releasable(record, accept_claim, accept_copies)
    if page := requests.ask(api, record.run, days):
        OUT.print(f"asked: {page}", soft_wrap=True, markup=False, highlight=False)
        return
    from flows.release import release

    OUT.print(f"no worker is there: waiting for the answer in {requests.pages(api)}/runs", soft_wrap=True, markup=False)
    OUT.print(f"run {record.run} was {release(record.run, days)}", soft_wrap=True, markup=False)


def approve(
    run: RunName = "latest",
    key: Annotated[str, typer.Option(metavar="FILE", help="Your own Ed25519 key, PEM; it signs the decision.")] = "",
    name: Annotated[str, typer.Option(help="Who you are, as the card will say.")] = "",
    role: Annotated[str, typer.Option(help="In which office you decide.")] = "",
    reason: Annotated[str, typer.Option(help="Why the images may leave.")] = "",
    refuse: Annotated[str, typer.Option(metavar="REASON", help="Refuse instead, and say why.")] = "",
    licence: Annotated[
        str,
        typer.Option(metavar="SPDX", help="Licence of the images, such as CC-BY-4.0; else release.licence of the run."),
    ] = "",
    accept_claim: AcceptClaim = "",
    accept_copies: AcceptCopies = "",
) -> None:
    """Decide whether a run's images may leave, and sign run, digests and decision with your Ed25519 key.

    The decision goes into ledger, report and card. Make a key once: openssl genpkey -algorithm ed25519 -out approver.pem

    Example: sfumato approve latest --key approver.pem --name "A. Jones" --role "data protection officer" --reason "as agreed"
    """
    from artifacts.record import load_record
    from sfumato.privacy.ledger.decisions import APPROVED, NEW_KEY, approver_of
    from sfumato.privacy.ledger.vetoes import REFUSED
    from sfumato.settings import release_from, release_of

    place = configure()
    record = load_record(place.runs, run)
    if not key:
        raise BadInput(f"a decision is signed: give your own Ed25519 key by --key FILE ({NEW_KEY} makes one)")
    approver = approver_of(Path(key))
    if reason and refuse:
        raise BadInput("--reason approves and --refuse refuses: give one of them")
    for option, value in (("--name", name), ("--role", role), ("--reason", reason or refuse)):
        if not value.strip():
            raise BadInput(f"a decision says who decides, in which office and why: {option} is missing")
    from tasks.approval import Ruling, decide, releasable

    terms = release_from([f"release.licence={licence}"]) if licence else release_of(record.settings)
    releasable(record, accept_claim, accept_copies)
    decision = decide(
        record, Ruling(REFUSED if refuse else APPROVED, name, role, refuse or reason, terms.licence), approver
    )
    OUT.print(f"run {record.run} was {decision.in_words()}", soft_wrap=True, markup=False, highlight=False)
    OUT.print(f"public key {decision.public_key}", soft_wrap=True, markup=False, highlight=False)
