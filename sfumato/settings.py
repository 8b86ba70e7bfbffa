"""All settings of a run as one frozen value, resolved from a preset and a person's changes.

Resolution: the defaults, then the preset (a short YAML diff with its reason and expected result), then
`section.field=value` pairs. Everything is checked here, before any work; a mistake is a `BadInput` that names the
setting, its value and the way out.
"""

import difflib
import functools
import json
import math
import operator
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import ConfigDict, Field, ValidationError

from sfumato.config import Data, MethodSection, Privacy, Release, SettingsOf
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.named_settings import AUTO_PRESET, DEFAULT_METHOD, DEFAULT_PRESET, known, presets

BELOW = "below_epsilon"

if TYPE_CHECKING:
    AnyMethod = MethodSection  # at run time it is one of those that there are
else:
    AnyMethod = Annotated[
        functools.reduce(operator.or_, (method.section for method in METHODS.values())), Field(discriminator="name")
    ]


DIGITS_LICENCE = "CC-BY-4.0"
"""Licence of the embedded digits (Alpaydin and Kaynak 1998, UCI Machine Learning Repository)."""
BUILT_IN_LICENCES = {"digits": DIGITS_LICENCE, "glyphs": "Apache-2.0", "shapes": "Apache-2.0"}
"""Licences of public images that nobody brings: the digits, and what this program draws."""
OF_WEIGHTS = ("network", "latent")
"""Sections that may bring weights from elsewhere (`from`)."""


class Settings(SettingsOf[AnyMethod]):
    """All settings of a run, whichever its method."""

    model_config = ConfigDict(defer_build=False)

    method: AnyMethod = METHODS[DEFAULT_METHOD].section()

    def what(self) -> dict[str, Any]:
        """The settings that decide the result, as plain JSON values: everything but `machine`; of folders of weights the name alone."""
        sections = self.model_dump(mode="json", exclude={"machine"})
        for section in OF_WEIGHTS:
            sections[section]["from"] = PurePath(sections[section]["from"]).name
        if self.privacy.epsilon == math.inf:
            sections["privacy"]["epsilon"] = "inf"
        return sections

    def only(self, *sections: str) -> "Settings":
        """These sections as they are and the defaults elsewhere: the settings that a stage depends on, which its cache key holds."""
        return Settings(**{name: getattr(self, name) for name in (*sections, "machine")})


def preset_for(preset: str, changes: Iterable[str] = ()) -> str:
    """The effective preset: the one named, else that of the embedded digits for these, and for all other data `auto`."""
    return preset or (DEFAULT_PRESET if _embedded(_parsed(changes)) else AUTO_PRESET)


def resolve(method: str, preset: str = "", changes: Iterable[str] = ()) -> Settings:
    """Settings for `method` from a preset and `section.field=value` pairs (values in YAML).

    Without a preset: `digits` for the embedded digits, `auto` for other data. What `auto` chooses is chosen once the data are known
    (`sfumato.recipe.auto.follow`); until then the fields that are set are exactly those that a person or the preset has set.
    """
    known("method", method, METHODS)
    diffs = [_parse(change) for change in changes]
    wanted = _merged(diffs)
    preset = preset or (DEFAULT_PRESET if _embedded(wanted) else AUTO_PRESET)
    available = presets()
    known("preset", preset, available)
    if preset == DEFAULT_PRESET and not _embedded(wanted):
        raise BadInput(
            f"preset {DEFAULT_PRESET!r} is made for the embedded 8x8 digits, not for data.private={wanted['data']['private']!r}: "
            f"leave --preset out, or use --preset {AUTO_PRESET}, which follows the data"
        )
    merged: dict[str, Any] = {"method": {"name": method}}
    chosen = available[preset]
    own = {BELOW: chosen.get(BELOW, {}), **chosen.get("methods", {}).get(method, {})}
    small = own.pop(BELOW)
    for diff in (chosen.get("settings", {}), own):
        _merge(merged, diff)
    _forget_other_kinds(merged, wanted)
    _merge(merged, wanted)
    privacy = merged.get("privacy")
    epsilon = privacy.get("epsilon", Privacy().epsilon) if isinstance(privacy, dict) else Privacy().epsilon
    for bound, diff in small.items():
        if isinstance(epsilon, int | float) and epsilon < bound:
            for step in (diff, wanted):
                _merge(merged, step)
    _suit_patches(merged)
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise BadInput(_explain(error)) from None


def release_of(settings: Mapping[str, Any]) -> Release:
    """Terms and form of a release, from a run's settings as plain values; those of earlier versions hold none.

    Images drawn after the embedded digits have the licence of these where no other is named, and built-in public images have their own.
    """
    try:
        terms = Release.model_validate(settings.get("release", {}))
    except ValidationError as error:
        raise BadInput(_explain(error, "release")) from None
    data, known = _inside(settings, "data"), dict[str, str]()
    if not terms.licence and data.get("private") == Data().private:
        known["licence"] = DIGITS_LICENCE
    licences = [BUILT_IN_LICENCES.get(source, "") for source in data.get("public", "").split("+")]
    if not terms.public_licence and all(licences):
        known["public_licence"] = " AND ".join(dict.fromkeys(licences))
    return terms.model_copy(update=known)


def release_from(changes: Iterable[str]) -> Release:
    """Terms and form as a person gives them, by `release.field=value`; what is not given is not set."""
    wanted = _merged(_parse(change) for change in changes)
    if strange := sorted(set(wanted) - {"release"}):
        raise BadInput(
            f"--set {strange[0]!r} has nothing to do with how images are handed over; only release.FIELD=VALUE has"
        )
    return release_of(wanted)


OF_A_KIND = (("network",), ("latent",), ("method", "network"))
"""Sections whose other fields have another meaning for another `kind`."""


def _forget_other_kinds(merged: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Drop what a preset says of a section whose `kind` a person changes: a width made for one network suits no other.

    Weights from elsewhere are a kind of their own, and come trained.
    """
    for path in OF_A_KIND:
        there, other = (functools.reduce(_inside, path[:-1], values) for values in (merged, wanted))
        before, kind = _inside(there, path[-1]), _inside(other, path[-1]).get("kind")
        if kind is not None and before and before.get("kind", kind) != kind:
            there[path[-1]] = {}
    for section in OF_WEIGHTS:
        if _inside(wanted, section).get("from"):
            merged.pop(section, None)
    if _inside(wanted, "network").get("from"):
        merged.pop("schedule", None)
        merged["pretraining"] = _inside(merged, "pretraining") | {"steps": 0}


def _suit_patches(merged: dict[str, Any]) -> None:
    """Give an autoencoder of patches its own defaults where neither preset nor person sets them: those of the section are for `kl`.

    A recipe does so by itself, and says why.
    """
    if _inside(merged, "recipe").get("kind", "none") == "none" and _inside(merged, "latent").get("kind") == "patch":
        from sfumato.networks.autoencoder import PATCHES

        merged["latent"] = PATCHES.model_dump(exclude_unset=True) | merged["latent"]


def written(value: Any) -> str:
    """A value as a person would write it after `--set`."""
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True).split("\n")[0]


def _inside(values: Any, name: str) -> dict[str, Any]:
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, dict) else {}


def _parsed(changes: Iterable[str]) -> dict[str, Any]:
    return _merged(_parse(change) for change in changes)


def _merged(diffs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for diff in diffs:
        _merge(merged, diff)
    return merged


def _embedded(wanted: dict[str, Any]) -> bool:
    """Whether the private data are the embedded digits, which are the default."""
    return bool(_inside(wanted, "data").get("private", Data().private) == Data().private)


def _merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, dict) else value


def _parse(change: str) -> dict[str, Any]:
    path, equals, text = change.partition("=")
    if not equals or not path.strip():
        raise BadInput(
            f"--set {change!r} is not of the form section.field=value, for example --set generation.images=500"
        )
    *outer, last = path.strip().split(".")
    tree = {last: value_of(text)}
    for key in reversed(outer):
        tree = {key: tree}
    return tree


def value_of(text: str) -> Any:
    """The value that a person means by the text behind `=`: YAML, but for `1e-5`, which it reads as text, and for what it cannot read."""
    try:
        value = yaml.safe_load(text) if text else ""
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _explain(error: ValidationError, *section: str) -> str:
    """One line for the first mistake: the setting, its value, what is allowed."""
    first = error.errors()[0]
    where, chosen = [*section, *(str(part) for part in first["loc"])], None
    if where[0] == "method" and len(where) > 1:
        chosen = METHODS[where.pop(1)].section  # pydantic puts the method's name after its section's
    path = ".".join(where)
    if first["type"] == "extra_forbidden":
        kind: Any = Settings
        for part in where[:-1]:
            kind = chosen if kind is Settings and part == "method" else kind.model_fields[part].annotation
        known = [field.alias or name for name, field in kind.model_fields.items()]
        near = difflib.get_close_matches(where[-1], known, n=1)
        hint = f"did you mean {'.'.join([*where[:-1], near[0]])!r}?" if near else f"known here: {', '.join(known)}"
        return f"unknown setting {path!r} (value {json.dumps(first['input'], default=str)}): {hint}"
    value = json.dumps(first["input"], default=str)
    if first["type"] in ("model_type", "model_attributes_type"):
        return f"setting {path!r} has value {value}: it is a section; set one of its settings, as {path}.NAME=VALUE"
    way_out = next((f"; write {form.format(path)}" for form, types in FORMS.items() if first["type"] in types), "")
    return f"setting {path!r} has value {value}: {first['msg'][0].lower()}{first['msg'][1:]}{way_out}"


FORMS = {
    "a list as {}=[first,second]": ("tuple_type", "list_type"),
    "names with their values as {}={{name: value}}": ("dict_type",),
}
"""How a value of several parts is written, and pydantic's names of the mistake that asks for it."""
