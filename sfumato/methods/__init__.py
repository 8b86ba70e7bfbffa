"""All methods, by name. To add one: write its file, and name it here.

A file is imported at the method's first use, so that a list of names costs nothing.
"""

import ast
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.methods.algorithm import Algorithm

FILES = {
    "rapid": "rapid",
    "dp-sgd": "dp_sgd",
    "dp-promise": "dp_promise",
    "dp-ensemble": "dp_ensemble",
    "empirical-denoiser": "empirical_denoiser",
    "moments": "moments",
    "private-evolution": "private_evolution",
    "dp-merf": "dp_merf",
    "dp-mepf": "dp_mepf",
    "dppm": "dppm",
}
"""Name -> file; the first is the default."""


class Methods(Mapping[str, "Algorithm[Any]"]):
    """Name -> method, imported at its first use."""

    def __getitem__(self, name: str) -> "Algorithm[Any]":
        algorithm: Algorithm[Any] = importlib.import_module(f"{__name__}.{FILES[name]}").ALGORITHM
        return algorithm

    def __iter__(self) -> Iterator[str]:
        return iter(FILES)

    def __len__(self) -> int:
        return len(FILES)

    def __contains__(self, name: object) -> bool:
        return name in FILES


METHODS = Methods()
"""All methods. The type of a method's settings is known only where its name is a literal, and not here."""


def promise(name: str) -> str:
    """`PROMISE` of a method (Markdown), read from its file without importing it and all that it computes with."""
    tree = ast.parse((Path(__file__).parent / f"{FILES[name]}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROMISE":
            return str(ast.literal_eval(node.value))
    raise LookupError(f"{FILES[name]}.py says no PROMISE")
