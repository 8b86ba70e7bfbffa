"""The flows of prefect.yaml: for each method one whose form in the Prefect UI shows its settings, and the public half alone.

`flows.deployments.NAME` is the flow of a method, with `-` written `_`; its form shows the embedded digits, and where `data.private` is
changed in it, what is left as it is follows the data (preset `auto`). The form of `flows.deployments.NAME__PRESET` starts from that preset. What a person changes in the form is what `--set` is in the terminal. They are
made from the list of methods when they are asked for, so a new method has its flow, and an entry in prefect.yaml deploys it.
"""

import functools
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_origin

from prefect import Flow, flow
from pydantic import Field, WithJsonSchema, create_model
from pydantic.fields import FieldInfo

from artifacts.record import RunRecord
from flows import synthesize as whole
from flows.rehearse import rehearse_public
from sfumato.config import Section
from sfumato.methods import METHODS
from sfumato.named_settings import DEFAULT_METHOD, presets
from sfumato.settings import resolve
from tasks.planning import Wishes, plan_run
from tasks.runtime.environment import configure, now
from tasks.runtime.heartbeat import attended

BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
CHOSEN = ("method", "name")
"""The setting that a form has not: its flow is of one method."""


def __getattr__(name: str) -> Flow:
    """The flow of a method, see above."""
    method, _, preset = name.partition("__")
    known = {known.replace("-", "_"): known for known in (*METHODS, *presets())}
    if known.get(method) not in METHODS or (preset and known.get(preset) not in presets()):
        raise AttributeError(f"there is no flow {name!r}: a method, or a method and a preset with __ between them")
    return of_method(known[method], known[preset] if preset else "")


@functools.cache
def of_method(method: str, preset: str) -> Flow:
    """The flow of one method, with a form whose values are those of a preset."""
    form = form_of(resolve(method, preset))
    start = form()

    @flow(
        name="synthesize",
        flow_run_name=f"{method}-{preset}" if preset else method,
        persist_result=False,
        validate_parameters=True,
    )
    @attended
    def run(
        settings: form = start,  # type: ignore[valid-type]  # Prefect reads the form, which is made here, off the signature
        publish_to: str = "",
        another_edition: bool = False,
        new_version: bool = False,
        go_on: bool = False,
    ) -> RunRecord:
        """Turn private images into a synthetic set.

        Args:
            settings: What is done. What is left as it is may be another value where epsilon is small, or where the private data
                are not those of the form and the recipe chooses. All are checked, and the cost is known, before any private image is opened.
            publish_to: Folder or URL to publish to; `.` takes the folder of the run, empty keeps the result in the store. Needs
            `release.licence` in the settings.
            another_edition: Draw other images than in the editions published before. A released model draws them at no
                cost; a method that pays for each image pays again, and is refused where the budget does not bear it.
                Each edition has a folder of its own in `publish_to`.
            new_version: The private set changed since its last entry in the ledger: count what it costs afresh.
            go_on: Pay even where the rehearsal with public images fails; ledger, report and card say so.
        """
        wishes = Wishes(publish_to, new_version, another_edition, go_on)
        return whole.run_changed(method, preset, list(changes(settings, start)), wishes)

    return run


def form_of(values: Section, *path: str) -> type[Section]:
    """The settings as a form of their own: the same titles, help and bounds, with these values as what it starts from."""
    fields: dict[str, Any] = {}
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        kind: Any = field.annotation
        if (*path, name) == CHOSEN:
            continue
        if isinstance(value, Section):
            kind = form_of(value, *path, name)
            value = kind()
        elif field.metadata:
            kind = Annotated[kind, *field.metadata]
        elif isinstance(value, int) and get_origin(kind) is Literal:
            kind = Annotated[
                kind, WithJsonSchema({"type": "integer"})
            ]  # Prefect's form shows no 0 in a list to choose from
        about = field.description or (type(value).__doc__ if isinstance(value, Section) else "") or ""
        typed = field.alias or name
        title, text = typed.replace("_", " ").capitalize(), " ".join([about, *bounds(field)])
        fields[name] = (kind, Field(default=value, title=title, description=text, alias=field.alias))
    return create_model("-".join(path) or "settings", __base__=Section, __doc__=type(values).__doc__, **fields)


def bounds(field: FieldInfo) -> Iterator[str]:
    """The bounds of a number as a person reads them; the form refuses a value outside, and does not show where they are."""
    limits = [
        f"{words} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, words in BOUNDS.items()
        if isinstance(getattr(limit, name, None), int | float)
    ]
    if limits:
        yield f"({', '.join(limits)})"


def changes(section: Section, start: Section, *path: str) -> Iterator[str]:
    """The differences from the form's initial values, as `section.field=value`."""
    shown = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value, before = getattr(section, name), getattr(start, name)
        if isinstance(value, Section) and isinstance(before, Section):
            yield from changes(value, before, *path, name)
        elif value != before:
            typed = field.alias or name
            yield f"{'.'.join([*path, typed])}={json.dumps(shown[typed])}"


@flow(name="prepare", flow_run_name="prepare-{method}", persist_result=False, validate_parameters=True)
@attended
def prepare(method: str = DEFAULT_METHOD, preset: str = "", changes: list[str] | None = None) -> None:
    """Make the public half of a run beforehand: autoencoder, denoiser, extractor, knowledge base, rehearsal. Opens no private image.

    Args:
        method: Which method the run will be of, for example `rapid`.
        preset: Named settings to start from; empty takes `digits` for the embedded digits and `auto` for other data.
        changes: Further settings as `section.field=value`; those of the run, or it will not find what was made.
    """
    configure()
    rehearse_public(plan_run(method, preset, changes or []), f"prepare-{method}-{now()}")
