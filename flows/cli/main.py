"""The command `sfumato`: everything a person can do from a terminal.

Mistakes end with one line and exit code 2, refusals of the ledger or of a label with exit code 3. The file of a command is imported when
the command is called, so that help answers at once.
"""

import atexit
import difflib
import gc
import importlib
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from sfumato import __version__
from sfumato.errors import BadInput, Refused, Stopped, Unnamed, without_passwords
from tasks.runtime.environment import configure, where

COMMANDS = {
    "run": "run",
    "plan": "run",
    "rehearse": "run",
    "show": "results",
    "report": "results",
    "publish": "results",
    "request-release": "approve",
    "approve": "approve",
    "generate": "generate",
    "verify-card": "verify_card",
    "audit": "audit",
    "explain": "explain",
    "settings": "settings",
    "presets": "settings",
    "migrate": "migrate",
    "prune": "prune",
    "ledger": "ledger",
    "check": "check",
    "compare": "compare",
    "sweep": "compare",
    "reproduce": "reproduce",
    "serve": "serve",
    "status": "serve",
}
"""Every command, in the order in which help shows it, and its file beside this one, in which it is a function of its name, or the group
`app`. These files import what is heavy when a command is called, so that help may load them all."""


class Commands(TyperGroup):
    """The list of commands, each loaded at its first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name; None where there is none."""
        return load(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant by the first argument; a misspelt one is refused with those of nearly its name."""
        if args and args[0] not in COMMANDS and (near := difflib.get_close_matches(args[0], COMMANDS)):
            ctx.fail(f"No such command {args[0]!r}: did you mean {' or '.join(map(repr, near))}?")
        return super().resolve_command(ctx, args)


def load(name: str) -> Any:
    """A command with all that belongs to it."""
    module = importlib.import_module(f"flows.cli.{COMMANDS[name]}")
    if hasattr(module, "app"):
        group = typer.main.get_command(module.app)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name)(getattr(module, name.replace("-", "_")))
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=Commands,
    help="Private images in, synthetic images with a differential-privacy statement out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sfumato {__version__}")
        raise typer.Exit


@app.callback()
def _whole(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Private images in, synthetic images with a differential-privacy statement out."""


SIGNALLED = 128
"""Offset from the number of a signal to the exit code of a process that it ended."""
INTERRUPTED, TERMINATED = SIGNALLED + signal.SIGINT, SIGNALLED + signal.SIGTERM
COLLECTED_AFTER = (50_000, 20, 20)
"""Python's collector of circular garbage runs after so many new objects. At its own 700 a third of the time in which a cached run
loads its libraries is spent on looking through what is loaded for good."""
ERR = Console(stderr=True)


def quiet_logs() -> None:
    """Show warnings of libraries in the terminal, and nothing of Prefect, whose log is in its UI.

    Opacus gives the root logger a handler of its own when it is imported, through which Prefect's lines would come, unless
    there is one already.
    """
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: not record.name.startswith(("prefect", "EventsWorker")))
    logging.basicConfig(handlers=[handler])


CHANGE = re.compile(r"[a-z_]+(\.[a-z_]+)*=.*", re.DOTALL)
"""Pattern of a change of a setting."""


def each_with_set(arguments: Sequence[str]) -> list[str]:
    """Expand `--set A=1 B=2` to `--set A=1 --set B=2`, since an option takes one value."""
    expanded: list[str] = []
    changing = False
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if changing and CHANGE.fullmatch(argument):
            expanded.append("--set")
        else:
            changing = before == "--set" or argument.startswith("--set=")
        expanded.append(argument)
    return expanded


def _carry_out() -> None:
    """The command; in a further process that torchrun started, help with it."""
    if where().processes == 1:
        return _command()
    from tasks.runtime.distributed import with_helpers

    with_helpers(_command, _help_with)


def _command() -> None:
    code = app(args=each_with_set(sys.argv[1:]), standalone_mode=False)
    if isinstance(code, int) and code:  # typer turns Ctrl-C into a number that it returns
        raise typer.Exit(code)


class Terminated(SystemExit):
    """A SIGTERM as an exception that no code in between handles as an ordinary error."""


def _terminate(number: int, _: FrameType | None) -> None:
    raise Terminated(SIGNALLED + number)


def main() -> None:
    """Run the command; a person's mistake, a refusal or a signal ends it with one line and its exit code."""
    gc.set_threshold(*COLLECTED_AFTER)
    atexit.register(_end_soon)
    quiet_logs()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        _carry_out()
    except (BadInput, Refused, Stopped) as ended:
        _ended_by(_pointed(ended))
    except (typer.Abort, KeyboardInterrupt):
        _stopped(INTERRUPTED)
    except Terminated:
        _stopped(TERMINATED)
    except typer.Exit as leave:
        if leave.exit_code == INTERRUPTED:
            _stopped(INTERRUPTED)
        sys.exit(leave.exit_code)
    except Exception as error:
        if hasattr(error, "format_message"):
            if message := error.format_message():  # empty where help was shown instead
                message += _setting_of(getattr(error, "option_name", ""))
                ERR.print(
                    f"[bold red]sfumato:[/] {escape(message)} (see sfumato --help)", soft_wrap=True, highlight=False
                )
            sys.exit(2)
        if heartbeat := sys.modules.get("tasks.runtime.heartbeat"):
            _ended_by(heartbeat.what_ended(error))
        causes = list(_causes(error))
        # Ctrl-C reaches the embedded server too, whose silence then hides the cause.
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
            _stopped(INTERRUPTED)
        reason = next((text for cause in causes for sign, text in DISK.items() if sign in str(cause)), None)
        if reason is None and any(_of_prefect(cause) for cause in causes):
            reason = _no_server()
        if reason is None:
            raise
        ERR.print(
            f"[bold red]sfumato:[/] {reason} ({escape(str(where().home))}): {GO_ON}", soft_wrap=True, highlight=False
        )
        sys.exit(BadInput.exit_code)


SETTINGS_NAMED = 3
"""The most settings that a hint spells out."""


def _setting_of(option: str) -> str:
    """How to set what somebody tried as an option, where a setting has its name; otherwise empty."""
    name = option.lstrip("-").replace("-", "_")
    if not name:
        return ""
    from flows.cli.setting_rows import each
    from sfumato.settings import Settings

    paths = [place.path for place in each(Settings()) if place.path.rpartition(".")[2] == name]
    if len(paths) > SETTINGS_NAMED:
        return f"; {len(paths)} settings have this name: sfumato settings lists them"
    return f"; as a setting: {' or '.join(f'--set {path}=VALUE' for path in paths)}" if paths else ""


def _ended_by(error: BadInput | Refused | Stopped | None) -> None:
    if error:
        ERR.print(f"[bold red]sfumato:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(error.exit_code)


def _pointed(error: BadInput | Refused | Stopped) -> BadInput | Refused | Stopped:
    if not isinstance(error, Unnamed):
        return error
    from tasks.runtime.internal import pointed

    return pointed(error, where().home)


COUNTS_AT_THE_END = "triton"
"""A library that complains at the very end, in dozens of lines, of its own objects that are still there; torch may have loaded it."""


def _end_soon() -> None:
    """Spare the end of Python the look for garbage through all that is loaded, which takes a second or two, and a person a library's complaint.

    It is registered first and so runs last: all that is to be said has been said.
    """
    gc.freeze()
    if COUNTS_AT_THE_END in sys.modules:
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _help_with(job: str) -> None:
    from tasks.private import fine_tune_beside

    configure()
    fine_tune_beside(job)


DISK = {
    "No space left on device": "no space left on the disk; free some",
    "disk is full": "no space left on the disk; free some",
    "Disk quota exceeded": "the disk quota is used up; free some space",
    "Read-only file system": "the disk is read-only; make it writable, or set SFUMATO_HOME to another place",
    "readonly database": "the disk is read-only; make it writable, or set SFUMATO_HOME to another place",
}
"""Texts in libraries' errors about the disk, and the message for a person."""
GO_ON = "what was finished is kept, nothing is half-written, and the same command goes on from there"


def _of_prefect(error: BaseException) -> bool:
    """Whether this error of Prefect's means that its server does not answer."""
    return type(error).__module__.startswith("httpx") or "Failed to reach API at" in str(error)


def _no_server() -> str:
    from prefect.settings import PREFECT_API_URL

    at = f" at {without_passwords(PREFECT_API_URL.value())}" if PREFECT_API_URL.value() else ""
    return f"the Prefect server{at} does not answer; should it have ended, start it again (`sfumato serve`)"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and all its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _stopped(code: int) -> NoReturn:
    ERR.print(
        "[bold red]sfumato:[/] stopped. Finished stages are kept; what was reserved and not committed stands in full in the ledger. "
        "The same command goes on from there.",
        soft_wrap=True,
    )
    sys.exit(code)
