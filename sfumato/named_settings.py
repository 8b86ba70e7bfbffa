"""Settings with a name: presets to start from, and the sweeps of the papers' ablations, each a YAML file.

The names are those of the files, so that a list of them costs nothing.
"""

import copy
import difflib
import functools
from collections.abc import Iterable
from importlib import resources
from typing import Any

from sfumato.errors import BadInput
from sfumato.methods import METHODS

DEFAULT_METHOD = next(iter(METHODS))
DEFAULT_PRESET = "digits"
"""The preset of the embedded digits, which no other data take by themselves."""
AUTO_PRESET = "auto"
"""The preset that follows the data."""
PRESETS, SWEEPS = "presets", "sweeps"
"""Folders of the files."""
ENDING = ".yaml"


def presets() -> dict[str, dict[str, Any]]:
    """Name -> preset: `why`, `expect`, `settings`, `methods` (further settings by method name), and `below_epsilon` (further
    settings that hold where the target epsilon is below the number; a method may have its own in place of these)."""
    return copy.deepcopy(_read(PRESETS))


def sweeps() -> dict[str, dict[str, Any]]:
    """Name -> a paper's ablations: `why`, `preset` and `method` to start from, `settings` of all runs, and `axes`: setting ->
    its values, or -> value as it is shown -> a variant (method and settings of its own)."""
    return copy.deepcopy(_read(SWEEPS))


def names(kind: str) -> list[str]:
    """All names in one of the two folders, in order."""
    folder = resources.files("sfumato") / kind
    return sorted(file.name.removesuffix(ENDING) for file in folder.iterdir() if file.name.endswith(ENDING))


def known(what: str, name: str, available: Iterable[str]) -> None:
    """`BadInput` for a name that is not available, with the nearest one that is."""
    there = list(available)
    if name not in there:
        near = difflib.get_close_matches(name, there, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "choose one"
        raise BadInput(f"unknown {what} {name!r}: {hint} (known: {', '.join(there)})")


@functools.cache
def _read(kind: str) -> dict[str, dict[str, Any]]:
    import yaml

    folder = resources.files("sfumato") / kind
    return {name: yaml.safe_load((folder / f"{name}{ENDING}").read_text(encoding="utf-8")) for name in names(kind)}
