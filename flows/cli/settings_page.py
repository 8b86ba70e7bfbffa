"""The page of all settings, docs/settings.md, from the settings themselves: name, default, what is allowed, what it does.

Nothing on it is written by hand: what a setting means is its own description, what is allowed its own check. Not covered: what one setting
asks of another, which a plan says.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from flows.cli.setting_rows import each, meaning
from sfumato.config import Section
from sfumato.methods import METHODS
from sfumato.named_settings import presets
from sfumato.settings import Settings, written

COMMAND = "sfumato settings --markdown"
HEAD = f"""\
# Settings

Every setting, as `{COMMAND}` prints it; a test compares the two. `sfumato settings METHOD` shows those of one method in the terminal.
`--set section.field=value` sets one, as YAML, and may be given several times; a mistake ends with one line before any work. The defaults stand
here. [Presets](#presets) change some of them, and where none is named, `digits` holds for the embedded digits and `auto`, [the recipe](recipe.md),
for all other data: `sfumato plan` shows what a run would take.
"""
COLUMNS = ("setting", "default", "allowed", "what it does")
WORDS = {
    "string": "text",
    "number": "number",
    "integer": "whole number",
    "boolean": "`true` or `false`",
    "null": "`null`",
}
"""Types of JSON schema, as a person says them."""
SEVERAL = {"text": "texts", "number": "numbers", "whole number": "whole numbers"}


def page() -> str:
    """The whole page, Markdown: sections that all methods have, the sections of the methods, the presets."""
    shared = Settings()
    parts = [HEAD]
    for name, section in shared:
        if name != "method" and isinstance(section, Section):
            parts += [f"## {name}\n", *_section(section, name)]
    parts += [
        "## Outside the sections\n",
        _table(COLUMNS, (_row(name, shared, name) for name, value in shared if not isinstance(value, Section))),
    ]
    parts += [
        "## method\n",
        f"The section of the method itself. `method.name` is {_choices(list(METHODS))}; a command sets it.\n",
    ]
    for name, method in METHODS.items():
        parts += [f"### {name}\n", *_section(method.section(), "method")]
    parts += [
        "## Presets\n",
        "`--preset NAME`: a short change of the defaults, why there is one, and what to expect of it.\n",
    ]
    parts += [_table(("preset", "why", "what to expect"), _preset_rows())]
    return "\n".join(parts)


def _section(section: Section, name: str) -> Iterator[str]:
    yield " ".join((type(section).__doc__ or "").split()) + "\n"
    if rows := list(_rows(section, name)):
        yield _table(COLUMNS, rows)
    else:
        yield "It has no settings of its own.\n"


def _rows(section: Section, name: str) -> Iterator[tuple[str, ...]]:
    yield from (_row(path, owner, field) for path, owner, field in each(section, name) if path != "method.name")


def _row(path: str, owner: Section, field: str) -> tuple[str, ...]:
    schema = type(owner).model_json_schema()["properties"][path.rpartition(".")[2]]
    return f"`{path}`", f"`{written(getattr(owner, field))}`", allowed(schema), meaning(owner, field)


def _preset_rows() -> Iterator[tuple[str, ...]]:
    for name, preset in presets().items():
        yield f"`{name}`", str(preset["why"]), str(preset["expect"])


def _table(columns: tuple[str, ...], rows: Any) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def allowed(schema: Mapping[str, Any]) -> str:
    """What a JSON schema allows, in words: choices, or a type with its bounds."""
    if "enum" in schema or "const" in schema:
        return _choices(schema.get("enum") or [schema["const"]])
    if "anyOf" in schema:
        return " or ".join(map(allowed, schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        return _list(schema)
    if kind == "object":
        return f"for each name a {allowed(schema['additionalProperties'])}"
    if "$ref" in schema:
        return "filled in"
    return ", ".join([WORDS[kind], *_bounds(schema)]) if kind in WORDS else "text"


def _list(schema: Mapping[str, Any]) -> str:
    of = schema["prefixItems"] if "prefixItems" in schema else [schema["items"]]
    one = allowed(of[0])
    if one == "filled in":
        return one
    kind, comma, bounds = one.partition(", ")
    several = SEVERAL.get(kind, f"of {one}") + (comma + bounds if kind in SEVERAL else "")
    count = f"{len(of)} " if len(of) > 1 else "one or more " if schema.get("minItems") == 1 else ""
    return f"list: {count}{several}"


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        yield f"{_plain(low)} to {_plain(high)}"
    elif low is not None:
        yield f"{_plain(low)} or more"
    if "exclusiveMinimum" in schema:
        yield f"above {_plain(schema['exclusiveMinimum'])}"
    if high is not None and low is None:
        yield f"at most {_plain(high)}"
    if "exclusiveMaximum" in schema:
        yield f"below {_plain(schema['exclusiveMaximum'])}"
    if "multipleOf" in schema:
        yield f"a multiple of {_plain(schema['multipleOf'])}"
    if "maxLength" in schema:
        yield f"at most {schema['maxLength']:,} characters"
    if "pattern" in schema:
        yield f"of the form `{schema['pattern']}`"


def _plain(number: float) -> str:
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:g}"


def _choices(values: list[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)
