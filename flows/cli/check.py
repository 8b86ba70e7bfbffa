"""`sfumato check`: a data sheet of a private collection before anything is run on it."""

from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.markup import escape

from flows.cli.options import OUT
from sfumato.errors import BadInput
from sfumato.named_settings import DEFAULT_METHOD
from tasks.runtime.environment import configure


def check(
    private: Annotated[str, typer.Argument(metavar="DATA", help="The private images: a folder, a table, a file.")],
    public: Annotated[str, typer.Option("--public", metavar="SOURCE", help="Also compare with these.")] = "",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="data.FIELD=VALUE", help="How the images are read; repeatable."),
    ] = None,
) -> None:
    """Say what is in a private collection: classes, sizes, duplicates, broken files. INTERNAL; costs nothing.

    Example: sfumato check scans/ --public textures/ --set data.group=prefix
    """
    from sfumato.preflight import for_sheet, private_set
    from sfumato.settings import resolve

    place = configure()
    if strange := [change for change in changes or [] if not change.startswith("data.")]:
        raise BadInput(f"--set {strange[0]!r} has nothing to do with how images are read; only data.FIELD=VALUE has")
    asked = resolve(DEFAULT_METHOD, changes=changes or [])
    data = asked.data.model_copy(update={"private": private, "public": public})
    settings, warnings = for_sheet(asked.model_copy(update={"data": data}), str(place.data))
    from artifacts.reports.data_sheet import sheet_page
    from tasks.data_sheet import check_data

    sheet, path = check_data(private_set(settings), settings.data if public else None)
    OUT.print(Markdown(sheet_page(sheet)))
    OUT.print(f"sheet (INTERNAL)  {path}", soft_wrap=True, highlight=False, markup=False)
    for warning in warnings:
        OUT.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True, highlight=False)
    if sheet.refused:
        raise BadInput(sheet.refused)
