"""Windows, which map grey of any depth to 256 levels: by the range that a file declares, by the image's percentiles, or by two values.

`auto` takes what the file itself says of black and white. `record` takes two percentiles of the image by itself: a function of
one record, so that nothing is learnt of others and nothing need be paid. `lo,hi` are declared for all, in the unit of the
files. No window is ever taken over a collection: its least and largest value would be those of some record.

Not covered: colour, whose 8 bits are what they are.
"""

from dataclasses import dataclass

import numpy as np

from sfumato.config import AUTO_WINDOW, RECORD_WINDOW, window_bounds
from sfumato.errors import BadInput
from sfumato.images import WHITE

PERCENTILES = (1.0, 99.0)
"""Percentiles of an image's own values that are black and white under `record`."""


@dataclass(frozen=True, eq=False)
class Grey:
    """One picture in grey as its file holds it, with what the file says of it."""

    values: np.ndarray
    """Numbers `[h, w]` in the file's unit."""
    unit: str
    """Unit of the values, such as `16 bits` or `HU`."""
    declared: tuple[float, float] | None
    """The values of black and white that the file declares; None where it declares none."""
    shown: np.ndarray | None = None
    """The values through the file's own table or window, on which `declared` is meant; None where it has none."""
    inverted: bool = False
    """The file has black for its largest value."""

    def through(self, window: str, where: str) -> np.ndarray:
        """Grey levels uint8 `[h, w, 1]`; `BadInput` names `where` if the file declares no range, or holds what is no number."""
        bounds = window_bounds(window)
        if not np.isfinite(self.values).all():
            raise BadInput(
                f"the image {where!r} has values that are no finite numbers; replace or remove it",
                nameless="holds an image with values that are no finite numbers: replace or remove it",
            )
        if window == AUTO_WINDOW:
            if self.declared is None:
                raise no_range(where, self.unit)
            return self._levels(self.values if self.shown is None else self.shown, *self.declared)
        if bounds is None:
            bounds = own_bounds(self.values)
        return self._levels(self.values, *bounds)

    def stored(self, where: str) -> np.ndarray:
        """The picture that identifies a record under any window, uint8 `[h, w, 1]`: `auto`, or `record` where a file declares no range."""
        return self.through(RECORD_WINDOW if self.declared is None else AUTO_WINDOW, where)

    def _levels(self, values: np.ndarray, low: float, high: float) -> np.ndarray:
        share = np.clip((values.astype(np.float64) - low) / (high - low), 0, 1)
        return np.round(WHITE * (1 - share if self.inverted else share)).astype(np.uint8)[:, :, None]


def own_bounds(values: np.ndarray) -> tuple[float, float]:
    """Black and white of an image `[h, w]` by its own percentiles, in its own unit; by its extremes where these are one, and apart even if all values are equal."""
    low, high = (float(bound) for bound in np.percentile(values, PERCENTILES))
    if low >= high:
        low, high = float(values.min()), float(values.max())
    return low, max(high, np.nextafter(low, np.inf))


def no_range(where: str, unit: str) -> BadInput:
    """The error for a picture that declares no range where the window needs one."""
    way = "say data.window=record or data.window=lo,hi (data.public_window on the public side)"
    return BadInput(
        f"the image {where!r} ({unit}) declares no values of black and white: {way}",
        nameless=f"holds an image ({unit}) that declares no values of black and white: {way}",
    )


def not_grey(where: str, window: str) -> BadInput:
    """The error for a picture in colour under a window."""
    way = "leave it at auto (data.public_window on the public side)"
    return BadInput(
        f"the image {where!r} is in colour, and data.window={window} is for grey: {way}",
        nameless=f"holds an image in colour, and data.window={window} is for grey: {way}",
    )
