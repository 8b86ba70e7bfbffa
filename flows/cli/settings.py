"""`sfumato settings` and `sfumato presets`: what can be set, and what there is to start from."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from flows.cli.options import OUT
from flows.cli.setting_rows import listed
from sfumato.methods import METHODS
from sfumato.named_settings import DEFAULT_METHOD, known
from sfumato.named_settings import presets as all_presets


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
    table = Table(title=f"settings of {method}, and their defaults", title_justify="left")
    for column in ("setting", "default", "meaning"):
        table.add_column(column, overflow="fold")
    for path, default, meaning in listed(whole):
        if not section or path.split(".")[0] == section:
            table.add_row(path, escape(default), escape(meaning))
    OUT.print(table)


def presets() -> None:
    """List the presets: each a short change of the defaults, why there is one, and what to expect of it."""
    table = Table(title="presets: sfumato run METHOD --preset NAME", title_justify="left")
    for column in ("preset", "why", "what to expect"):
        table.add_column(column, overflow="fold")
    for name, preset in all_presets().items():
        table.add_row(name, escape(str(preset["why"])), escape(str(preset["expect"])))
    OUT.print(table)
