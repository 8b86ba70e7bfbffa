"""The checked numbers (`tests/data/privacy-vectors.json`), which were made outside this project."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FACTS = json.loads((Path(__file__).parent / "data" / "privacy-vectors.json").read_text(encoding="utf-8"))
VECTORS = {vector["id"]: vector for vector in FACTS["vectors"]}
DELTA = FACTS["meta"]["delta_default"]


def facts(name: str) -> tuple[dict[str, Any], dict[str, Any], Callable[[Any], Any]]:
    """Inputs, expected values and pytest.approx with the tolerance of one vector."""
    vector = VECTORS[name]
    return vector["inputs"], vector["expected"], lambda value: pytest.approx(value, **vector["tolerance"])
