"""A released model as MLflow's `pyfunc`: `mlflow.pyfunc.load_model("models:/NAME@released").predict(table)` draws images.

The table has the columns `class` (a name; empty for all, in the proportions of the run), `images` (how many) and `seed` (the same
seed on the same machine draws the same images; none draws others each time). What comes back has a row for each image: its `class` and the bytes of
its `png`. Signature and digests of the folder are checked before anything is read; nothing is pickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.errors import BadInput
from sfumato.image_folder import pictures_of
from sfumato.images import ImageSet
from sfumato.released import ReleasedModel, load

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = {"class": "string", "images": "long", "seed": "long"}
"""Columns of what is asked for, with MLflow's names of their types."""
DRAWN = {"class": "string", "png": "binary"}
"""Columns of what comes back."""
EXAMPLE = {"class": "", "images": 4, "seed": 0}
"""A row to begin with."""


class PyfuncModel:
    """What MLflow calls: rows that ask for images, to rows that hold them."""

    def __init__(self, model: ReleasedModel):
        self.model = model

    def predict(self, table: DataFrame, params: Mapping[str, Any] | None = None) -> DataFrame:
        """The images that each row asks for, in the order of the rows; `BadInput` for a class that there is not, or no images."""
        from pandas import DataFrame

        asks: list[dict[Any, Any]] = table.to_dict("records")
        for number, ask in enumerate(asks):
            self._check(number, ask)
        return DataFrame([row for ask in asks for row in self._drawn(ask)], columns=list(DRAWN))

    def _check(self, number: int, ask: Mapping[Any, Any]) -> None:
        if _none(ask.get("images")):
            raise BadInput(f"row {number} does not say how many images: fill its column `images`")
        name = ask.get("class")
        if not _none(name) and name and name not in self.model.classes:
            raise BadInput(f"row {number}: there is no class {name!r}; choose one of {', '.join(self.model.classes)}")

    def _drawn(self, ask: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
        name, seed = ask.get("class"), ask.get("seed")
        chosen: int | None = None if seed is None or _none(seed) else int(seed)
        classes = () if _none(name) or not name else (str(name),)
        pixels, labels = self.model.draw(int(ask["images"]), classes=classes, seed=chosen)
        for one in pictures_of(ImageSet(pixels, labels, self.model.classes)):
            yield {"class": self.model.classes[one.label], "png": one.png}


def _none(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _load_pyfunc(folder: str) -> PyfuncModel:
    """MLflow's hook: the model in a published folder."""
    return PyfuncModel(load(Path(folder)))
