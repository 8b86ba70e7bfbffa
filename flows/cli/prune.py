"""`sfumato prune`: what is left in the home of work that is over."""

from typing import Annotated

import typer

from flows.cli.options import OUT
from tasks.runtime.environment import configure


def prune(
    days: Annotated[float, typer.Option(min=0, help="Leave what was changed within so many days.")] = 30,
    unended: Annotated[
        bool,
        typer.Option(
            "--unended",
            help="Remove too what runs that were stopped or died would go on from: they begin again, and pay for steps again.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it; otherwise it is shown alone.")] = False,
) -> None:
    """Show what is left in the home of work that is over, with its size; with --yes, remove it.

    The ledger, what was paid for, finished runs and what was published always stay.
    """
    place = configure()
    from rich.filesize import decimal

    from tasks.prune import leftovers, remove

    kinds = leftovers(place, days)
    going = [one for one in kinds if unended or not one.unended]
    for one in kinds:
        stays = "" if one in going else "  stay: a stopped run goes on from them; --unended removes them too"
        OUT.print(f"{one.title:<42}{len(one.paths):>6}{decimal(one.size):>12}{stays}", highlight=False, soft_wrap=True)
    size = decimal(sum(one.size for one in going))
    if yes:
        remove(place, going)
        OUT.print(f"removed: {size}", highlight=False)
    else:
        OUT.print(f"nothing was removed; `sfumato prune --yes` removes {size}", highlight=False)
