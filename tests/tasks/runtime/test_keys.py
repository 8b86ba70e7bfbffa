"""What cache keys are made of goes with the format of the home: where a key of before means nothing any more, the home is refused in one line,
so that no schedule makes its stages again, and pays for the private ones, unseen.

Written down in `key_shapes.json`; after a change that `LATER` cannot keep out of the keys, raise `artifacts.store.VERSION`, then

    python -m tests.tasks.runtime.test_keys
"""

import inspect
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from artifacts.references import PublicModel, Ref
from artifacts.store import VERSION
from sfumato.config import LATER, NOT_HASHED
from sfumato.methods import METHODS
from sfumato.settings import Settings
from tasks import central, distillation, embedding, evolution, generation, pretrained, private, public, rates
from tasks.runtime.caching import Stage, marks

STORED = Path(__file__).with_name("key_shapes.json")
MAKING = (public, pretrained, private, evolution, central, distillation, embedding, rates)
DRAWING = (generation.generate_privately,)
"""Stages that pay, and those whose results they take. What is measured afterwards is measured again at no cost."""
UNPAID = {"evaluation", "rehearsal", "recipe"}
"""Sections of settings that no such stage is given."""


def shapes() -> dict[str, list[str]]:
    """What each key holds: of stages the parameters, of values the fields, without those that a default leaves out; a value may move."""
    stages = [one for module in MAKING for one in vars(module).values() if isinstance(one, Stage)]
    named = {f"{one.fn.__module__}.{one.fn.__name__}": one.fn for one in (*stages, *DRAWING)}
    held = {name: sorted(held_by(function)) for name, function in named.items()}
    kinds: set[type[BaseModel]] = {method.section for method in METHODS.values()}
    for function in named.values():
        hints = typing.get_type_hints(function)
        hashed = (name for name in parameters(function) if NOT_HASHED not in marks(function).get(name, ()))
        kinds |= {kind for name in hashed for kind in values_in(hints[name])}
    todo, seen = list(kinds), set()
    while todo:
        kind = todo.pop()
        if kind not in seen:
            seen.add(kind)
            todo += [inner for name in fields(kind) for inner in values_in(kind.model_fields[name].annotation)]
    own = {method.section: name for name, method in METHODS.items()}
    return held | {own.get(kind, kind.__name__): sorted(fields(kind)) for kind in seen}


def held_by(function: Any) -> Iterator[str]:
    """The parameters that every key holds, or a part of them."""
    marked = marks(function)
    return (name for name in parameters(function) if not {LATER, NOT_HASHED} & strings(marked.get(name, ())))


def strings(metadata: Any) -> set[str]:
    return {mark for mark in metadata if isinstance(mark, str)}


def parameters(function: Any) -> list[str]:
    """All but the run."""
    return list(inspect.signature(function).parameters)[1:]


def fields(kind: type[BaseModel]) -> list[str]:
    """Those that every key holds."""
    unpaid = UNPAID if issubclass(kind, Settings) else set()
    return [
        name
        for name, field in kind.model_fields.items()
        if not {LATER, NOT_HASHED} & strings(field.metadata) and name not in unpaid
    ]


def values_in(hint: Any) -> Iterator[type[BaseModel]]:
    """Values with fields anywhere in a type; a reference stands for its content alone."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        if not issubclass(hint, Ref):
            yield hint
    for inner in typing.get_args(hint):
        yield from values_in(inner)


def test_what_a_key_is_made_of_goes_with_the_format_of_the_home():
    stored, now = json.loads(STORED.read_text(encoding="utf-8")), shapes()
    before = stored["shapes"]
    changed = {name: (before.get(name), now.get(name)) for name in {*before, *now} if before.get(name) != now.get(name)}
    way_out = "mark what is new as LATER; or else raise artifacts.store.VERSION and write the shapes anew (see above)"
    assert not changed, f"keys of homes of format {stored['version']} mean nothing any more, {way_out}: {changed}"
    assert stored["version"] <= VERSION


def test_a_parameter_that_came_later_is_in_no_key_while_it_has_its_default():
    seen = marks(public.pretrain.fn)
    assert "start" in seen and "network" not in seen
    call = {"public": 1, "schedule": 2, "network": 3, "pretraining": 4, "reference": 0.5}
    key = public.pretrain.given(**call).key
    assert public.pretrain.given(**call, start=None).key == key
    start = PublicModel(digest="a" * 64, label="PUBLIC", seconds=1.0)
    assert public.pretrain.given(**call, start=start).key != key


if __name__ == "__main__":
    STORED.write_text(
        json.dumps({"version": VERSION, "shapes": shapes()}, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )
