"""The flows of prefect.yaml: for each method one whose form in the Prefect UI shows its settings, and the public half alone.

`flows.deployments.NAME` is the flow of a method, with `-` written `_`; its form shows the embedded digits, and where `data.private` is
changed in it, what is left as it is follows the data (preset `auto`). The form of `flows.deployments.NAME__PRESET` starts from that preset. What a person changes in the form is what `--set` is in the terminal. They are
made from the list of methods when they are asked for, so a new method has its flow, and an entry in prefect.yaml deploys it.
"""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_origin

from prefect import Flow, flow
from pydantic import Field, WithJsonSchema, create_model
from pydantic.fields import FieldInfo

from artifacts.record import RunRecord
from flows import synthesize as whole
from flows.rehearse import rehearse_public
from sfumato.config import Data, Section
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.named_settings import DEFAULT_METHOD, presets
from sfumato.settings import resolve
from tasks.planning import Wishes, plan_run
from tasks.runtime.environment import configure, now
from tasks.runtime.heartbeat import attended, named
from tasks.server.parameters import BY_DATA

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
    """The flow of one method. Its form begins with what most people change; all other settings are folded, and are those of a preset."""
    start = resolve(method, preset)
    form, images = form_of(start), images_of(start.data)
    first = images()

    @flow(
        name="synthesize",
        flow_run_name=named(f"{method}-{preset}" if preset else method),
        persist_result=False,
        validate_parameters=True,
    )
    @attended
    def run(
        preset: Annotated[Literal[(BY_DATA, *presets())], titled("Preset")] = preset or BY_DATA,  # type: ignore[valid-type]
        data: Annotated[images, titled("Data")] = first,  # type: ignore[valid-type]  # Prefect reads the form off the signature
        epsilon: Annotated[float, Field(gt=0), titled("Epsilon")] = start.privacy.epsilon,
        publish_to: Annotated[str, titled("Publish to")] = "",
        licence: Annotated[str, titled("Licence")] = "",
        settings: Annotated[folded(form), titled("All other settings")] = None,  # type: ignore[valid-type]
        another_edition: Annotated[bool, titled("Another edition")] = False,
        new_version: Annotated[bool, titled("New version")] = False,
        go_on: Annotated[bool, titled("Go on")] = False,
    ) -> RunRecord:
        """Turn private images into a synthetic set.

        Args:
            preset: Settings to start from. `by data` takes `digits` for the embedded digits and `auto` for all other data, which follows them.
            data: Where the private and the public images lie.
            epsilon: The most that the private images may cost; smaller protects more.
            publish_to: Folder or URL to publish to; `.` takes the folder of the run, empty keeps the result in the store.
            licence: Licence of the published images as SPDX calls it, such as CC-BY-4.0. Publishing needs one.
            settings: What is done, section by section. What is left as it is follows the preset, or the data where the recipe chooses.
                All are checked, and the cost is known, before any private image is opened.
            another_edition: Draw other images than in the editions published before. A released model draws them at no
                cost; a method that pays for each image pays again, and is refused where the budget does not bear it.
                Each edition has a folder of its own in `publish_to`.
            new_version: The private set changed since its last entry in the ledger: begin a version of its own. Records that an earlier version
                holds too count together with what that cost, and versions of a set of persons always do.
            go_on: Pay even where the rehearsal with public images fails; ledger, report and card say so.
        """
        chosen = "" if preset == BY_DATA else preset
        short = {
            "data.private": (data.private, first.private),  # type: ignore[attr-defined]
            "data.public": (data.public, first.public),  # type: ignore[attr-defined]
            "privacy.epsilon": (epsilon, resolve(method, chosen).privacy.epsilon),
            "release.licence": (licence, ""),
        }
        wishes = Wishes(publish_to, new_version, another_edition, go_on)
        return whole.run_changed(method, chosen, both(short, settings and list(changes(settings, start))), wishes)

    return run


AS_IT_IS, CHANGE = "as it is", "change"
"""Titles of a folded section and of an open one: the form shows them as two buttons, and the fields of the second alone."""


def folded(kind: type[Section]) -> Any:
    """The type of a section that a person may leave as it is: None, or the section."""
    return Annotated[None, WithJsonSchema({"type": "null", "title": AS_IT_IS})] | kind


def titled(title: str) -> FieldInfo:
    """The title of a parameter in the form, where Prefect would show its name."""
    info: FieldInfo = Field(json_schema_extra={"title": title})
    return info


def images_of(data: Data) -> type[Section]:
    """The places of private and public images as a form of their own."""
    fields: dict[str, Any] = {}
    for name in ("private", "public"):
        about = type(data).model_fields[name].description
        fields[name] = (str, Field(default=getattr(data, name), title=f"{name.capitalize()} images", description=about))
    return create_model("images", __base__=Section, __cls_kwargs__={"title": "Images"}, **fields)


def both(short: Mapping[str, tuple[Any, Any]], inside: Sequence[str] | None) -> list[str]:
    """The changes of the folded settings, and those of the fields above them (value, value where it is left as it is).

    `BadInput` for a setting that is changed in both, to two values.
    """
    above = [f"{path}={json.dumps(value)}" for path, (value, before) in short.items() if value != before]
    inside = list(inside or ())
    for one in above:
        path = one.partition("=")[0]
        for other in inside:
            if other.partition("=")[0] == path and other != one:
                raise BadInput(f"{path} is given twice, as {one} and as {other}: leave one of the two as it is")
    return [*inside, *(one for one in above if one not in inside)]


def form_of(values: Section, *path: str) -> type[Section]:
    """The settings as a form of their own: the same titles, help and bounds, with these values as what it starts from.

    Each section of the whole is folded: None where it is left as it is.
    """
    fields: dict[str, Any] = {}
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        kind: Any = field.annotation
        if (*path, name) == CHOSEN:
            continue
        if isinstance(value, Section):
            kind = form_of(value, *path, name)
            kind, value = (kind, kind()) if path else (folded(kind), None)
        elif field.metadata:
            kind = Annotated[kind, *field.metadata]
        elif isinstance(value, int) and get_origin(kind) is Literal:
            kind = Annotated[
                kind, WithJsonSchema({"type": "integer"})
            ]  # Prefect's form shows no 0 in a list to choose from
        section = getattr(values, name)
        about = field.description or (type(section).__doc__ if isinstance(section, Section) else "") or ""
        typed = field.alias or name
        shown, text = typed.replace("_", " ").capitalize(), " ".join([about, *bounds(field)])
        fields[name] = (kind, Field(default=value, title=shown, description=text, alias=field.alias))
    doc, own = type(values).__doc__, {"title": CHANGE}
    return create_model("-".join(path) or "settings", __base__=Section, __doc__=doc, __cls_kwargs__=own, **fields)


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
        if value is None and isinstance(before, Section):  # folded
            continue
        if isinstance(value, Section) and isinstance(before, Section):
            yield from changes(value, before, *path, name)
        elif value != before:
            typed = field.alias or name
            yield f"{'.'.join([*path, typed])}={json.dumps(shown[typed])}"


@flow(name="prepare", flow_run_name=named("prepare-{method}"), persist_result=False, validate_parameters=True)
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
