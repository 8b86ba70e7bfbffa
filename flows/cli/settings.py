"""`sfumato settings` and `sfumato presets`: what can be set, and what there is to start from."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from flows.cli.options import OUT
from flows.cli.setting_rows import listed
from sfumato.methods import METHODS
from sfumato.named_settings import DEFAULT_METHOD, known
from sfumato.named_settings import presets as all_presets

BORDERS = 10
"""Characters of a row of three columns that are lines and space around them."""


def settings(
    method: Annotated[str, typer.Argument(help=f"One of: {', '.join(METHODS)}.")] = DEFAULT_METHOD,
    section: Annotated[str, typer.Option(help="One section alone, such as fine_tuning.")] = "",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print docs/settings.md: all settings, of all methods.")
    ] = False,
) -> None:
    """List every setting of a method with its default and what it means: what --set takes.

    Example: sfumato settings dp-sgd --section fine_tuning
    """
    known("method", method, METHODS)
    if markdown:
        from flows.cli.settings_page import page

        return print(page(), end="")
    from sfumato.settings import Settings

    whole = Settings(method=METHODS[method].section())
    if section:
        known("section", section, type(whole).model_fields)
    rows = [row for row in listed(whole) if not section or row.path.split(".")[0] == section]
    OUT.print(_table(f"settings of {method}, and their defaults", ("setting", "default", "meaning"), rows))


def presets() -> None:
    """List the presets: each a short change of the defaults, why there is one, and what to expect of it."""
    rows = [(name, str(preset["why"]), str(preset["expect"])) for name, preset in all_presets().items()]
    OUT.print(_table("presets: sfumato run METHOD --preset NAME", ("preset", "why", "what to expect"), rows))


def _table(title: str, heads: tuple[str, str, str], rows: Sequence[tuple[str, str, str]]) -> Table:
    """Name, value or text, text. Widths are given, since Rich takes long to measure hundreds of long texts."""
    table = Table(title=title, title_justify="left")
    left = OUT.width - BORDERS
    for place, head in enumerate(heads[:-1]):
        longest = max(len(text) for text in (head, *(row[place] for row in rows)))
        width = max(len(head), min(longest, left // (len(heads) - place)))
        table.add_column(head, overflow="fold", width=width)
        left -= width
    table.add_column(heads[-1], overflow="fold", width=max(len(heads[-1]), left))
    for row in rows:
        table.add_row(*(escape(text) for text in row))
    return table
