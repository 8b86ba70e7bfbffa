"""`sfumato audit`: try to break a finished run."""

from typing import Annotated

import typer

from flows.cli.options import OUT, RunName
from sfumato.errors import Refused
from tasks.runtime.environment import configure

CANARIES = 200
"""Canaries of an audit; at the delta of a few thousand records more do not sharpen the bound."""


def audit(
    run: RunName = "latest",
    canaries: Annotated[int, typer.Option(help="How many made-up images to guess by.")] = CANARIES,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="machine.FIELD=VALUE", help="Change the machine; repeatable.")
    ] = None,
) -> None:
    """Try to break a finished run: white-box tests, canaries, membership attacks, copies. INTERNAL; costs nothing, trains once more where DP-SGD did."""
    from artifacts.record import load_record, run_folder

    load_record(configure().runs, run)  # before a server is started: a slip is told at once
    from artifacts.reports.audit import AUDIT_PICTURE, AUDIT_REPORT, verdict
    from tasks.server.embedded import begin_server

    answering = begin_server()
    from flows.audit import audit_run

    answering.wait()
    record = audit_run(run, canaries, changes)
    result, folder = record.audit, run_folder(record)
    assert result  # the audit has just stored it
    for line in (verdict(result), f"report   {folder / AUDIT_REPORT}", f"picture  {folder / AUDIT_PICTURE}"):
        OUT.print(line, soft_wrap=True, highlight=False, markup=False)
    if result.refuted:
        raise Refused(f"run {record.run} must not be published: the audit refutes its promise ({result.reason})")
