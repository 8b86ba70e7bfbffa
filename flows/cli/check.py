"""`sfumato check`: a data sheet of a private collection before anything is run on it, and whether a run on it would begin."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.markup import escape

from flows.cli.options import OUT
from sfumato.errors import BadInput, first_names, in_full
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

    Ends with exit code 2 where a run on these images would be refused, by the same checks.

    Example: sfumato check scans/ --public textures/ --set data.group=prefix
    """
    from sfumato.preflight import brought_to, for_profile, left_out, private_set
    from sfumato.settings import resolve
    from tasks.planning import plan_run

    place = configure()
    if strange := [change for change in changes or [] if not change.startswith("data.")]:
        raise BadInput(f"--set {strange[0]!r} has nothing to do with how images are read; only data.FIELD=VALUE has")
    sides = {"data.private": private} | ({"data.public": public} if public else {})
    all_changes = [*(changes or []), *(f"{name}={json.dumps(one)}" for name, one in sides.items())]
    request = resolve(DEFAULT_METHOD, changes=all_changes)
    looked_at = request.model_copy(update={"data": request.data.model_copy(update={"public": public})})
    settings, warnings = for_profile(looked_at, str(place.data))
    from artifacts.reports.data_profile import profile_page
    from tasks.data_profile import Intended, check_data

    run: Intended | str
    try:
        planned = plan_run(DEFAULT_METHOD, changes=all_changes)
        settings, warnings = planned.settings, tuple(dict.fromkeys((*warnings, *planned.warnings)))
        size, channels = brought_to(planned.plan.facts.shape)
        run = Intended(settings.data.model_copy(update={"channels": channels}), size, settings.seed)
    except BadInput as refusal:
        run = in_full(refusal)
    warnings = (*warnings, *left_out(settings.data))
    profile, path = check_data(private_set(settings), settings.data if public else None, run)
    warnings = (*warnings, *_beside_declared(profile.classes, request.data.classes))
    OUT.print(Markdown(profile_page(profile)))
    OUT.print(f"sheet (INTERNAL)  {path}", soft_wrap=True, highlight=False, markup=False)
    for warning in warnings:
        OUT.print(f"[yellow]warning:[/] {escape(warning)}", soft_wrap=True, highlight=False)
    if profile.refused:
        raise BadInput(profile.refused)


def _beside_declared(images: Mapping[str, int], declared: Sequence[str]) -> Iterator[str]:
    """Lines on classes that `data.classes` names and no image has, and on images of classes that it does not name; `images` counts those of each class."""
    if empty := [name for name in declared if not images.get(name)]:
        yield f"data.classes names {first_names(empty)}, of which there is no image: is it written as in the data?"
    if declared and (others := [name for name in images if name not in declared]):
        yield f"data.classes does not name {first_names(others)}: {sum(images[name] for name in others):,} images are left out"
