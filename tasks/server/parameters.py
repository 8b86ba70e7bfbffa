"""Whether the flows of `flows.deployments` can take the parameters in prefect.yaml, told before anything starts.

Importing the flows takes seconds; the settings of a method, which their forms are made of, are there in a moment.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.named_settings import DEFAULT_METHOD, known, presets
from sfumato.section import Section
from sfumato.settings import resolve

Kind = TypeVar("Kind", bound=Section)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
FLOWS = "flows.deployments."
BY_DATA = "by data"
"""In place of a preset: that of the embedded digits for these, and for all other data the one that follows them."""
PREPARE = "prepare"
"""The flow of the public half alone, whose method is a parameter."""


class Images(Section):
    """Where private and public images lie, as a form has it."""

    private: str | None = None
    public: str | None = None


class OfMethod(Section):
    """The parameters of a method's flow."""

    preset: str = BY_DATA
    data: Images = Images()
    epsilon: Annotated[float, Field(gt=0)] | None = None
    publish_to: str = ""
    licence: str = ""
    settings: dict[str, Any] | None = None
    another_edition: bool = False
    new_version: bool = False
    go_on: bool = False

    def changes(self) -> Iterator[tuple[str, Any]]:
        """Setting and value, of the fields above the folded ones."""
        yield from {
            "data.private": self.data.private,
            "data.public": self.data.public,
            "privacy.epsilon": self.epsilon,
            "release.licence": self.licence or None,
        }.items()


class OfPublicHalf(Section):
    """The parameters of `prepare`."""

    method: str = DEFAULT_METHOD
    preset: str = ""
    changes: list[str] | None = None


def check_parameters(file: Path) -> None:
    """`BadInput` for the first deployment whose parameters its flow cannot take, by themselves or with those of a schedule: its runs would fail."""
    try:
        deployments = yaml.safe_load(file.read_text(encoding="utf-8"))["deployments"]
    except yaml.YAMLError as error:
        raise BadInput(f"{file.name} is not YAML: {' '.join(str(error).split())}") from None
    for deployment in deployments:
        own = deployment.get("parameters") or {}
        schedules = [schedule.get("parameters") or {} for schedule in deployment.get("schedules") or []]
        if deployment["entrypoint"].startswith(FLOWS):
            for values in ({}, *schedules):
                try:
                    _check(deployment["entrypoint"].removeprefix(FLOWS), {**own, **values})
                except BadInput as error:
                    raise BadInput(f"{file.name}: the deployment {deployment['name']!r}: {error}") from None


def _check(flow: str, values: Mapping[str, Any]) -> None:
    if flow == PREPARE:
        public = _read(OfPublicHalf, values)
        resolve(public.method, public.preset, public.changes or [])
        return
    method, _, preset = flow.partition("__")
    names = {name.replace("-", "_"): name for name in (*METHODS, *presets())}
    known("flow", method, [name.replace("-", "_") for name in METHODS])
    start = resolve(names[method], names.get(preset, preset))
    _refuse_texts({"epsilon": values.get("epsilon")}, start.privacy)
    parameters = _read(OfMethod, {"preset": names.get(preset, BY_DATA), **values})
    settings = {section: inside for section, inside in (parameters.settings or {}).items() if inside is not None}
    _refuse_texts(settings, start, "settings")
    if "name" in (settings.get("method") or {}):
        raise BadInput("settings.method.name is no parameter: the entrypoint names the method")
    changes = dict(_leaves(settings))
    for path, value in parameters.changes():
        if value is not None and changes.setdefault(path, value) != value:
            raise BadInput(
                f"{path} is given twice, as {value!r} and in the settings as {changes[path]!r}: leave one out"
            )
    chosen = "" if parameters.preset == BY_DATA else parameters.preset
    resolve(names[method], chosen, [f"{path}={json.dumps(value)}" for path, value in changes.items()])


def _read(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """The parameters as their flow takes them; `BadInput` for the first that it does not."""
    for name in values:
        if name not in kind.model_fields:
            raise BadInput(f"it has the parameter {name!r}, and takes {', '.join(kind.model_fields)}")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        path, about = ".".join(map(str, first["loc"])), f"{first['msg'][0].lower()}{first['msg'][1:]}"
        raise BadInput(f"parameter {path!r} has value {json.dumps(first['input'], default=str)}: {about}") from None


def _leaves(values: Mapping[str, Any], *path: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, *path, str(name))
        else:
            yield ".".join((*path, str(name))), value


def _refuse_texts(values: Mapping[str, Any], section: Section, *path: str) -> None:
    """`BadInput` for a text such as `1e-5` in place of a number: YAML wants a point in it, and Prefect takes no text for a number."""
    for name, value in values.items():
        field = next((one for key, one in type(section).model_fields.items() if name in (key, one.alias)), None)
        inner = getattr(section, str(name), None)
        if isinstance(value, dict) and isinstance(inner, Section):
            _refuse_texts(value, inner, *path, str(name))
        elif field and isinstance(value, str) and (number := _number(value)) is not None:
            wanted: Any = Annotated[field.annotation, *field.metadata, Field()]
            with contextlib.suppress(ValidationError):
                if isinstance(TypeAdapter(wanted).validate_python(number), int | float):
                    place = ".".join([*path, str(name)])
                    raise BadInput(f"{place} is the text {value!r}, where a number belongs: write {_as_yaml(value)}")


def _number(text: str) -> int | float | None:
    """The number that a person means by a text; None where it is none."""
    value = yaml.safe_load(_as_yaml(text)) if NUMBER.fullmatch(text) else None
    return value if isinstance(value, int | float) else None


def _as_yaml(text: str) -> str:
    """A number so that YAML reads it as one: `1.0e-5` for `1e-5`."""
    digits, e, exponent = text.lower().partition("e")
    if not e:
        return text
    return f"{digits if '.' in digits else f'{digits}.0'}e{exponent if exponent[0] in '+-' else f'+{exponent}'}"
