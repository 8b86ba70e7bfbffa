"""NIfTI volumes: slices across one axis of the body, each a picture in grey.

The axes are found by the file's own orientation, so that files which store them in another order give the same slices. A slice
stands upright: what is in front, or above, is at the top, and the right of the body at the right.

Not covered: several times or colours in a file, voxels whose sides differ in length (nothing is stretched), and volumes whose axes
lie oblique (the nearest is taken).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from sfumato.config import Slices
from sfumato.errors import BadInput
from sfumato.images import WHITE
from sfumato.sources.catalogue import Place, Slice
from sfumato.sources.streams import reachable
from sfumato.sources.windows import Grey

SUFFIXES = (".nii", ".nii.gz")
AXES = {"sagittal": 0, "coronal": 1, "axial": 2}
"""Axes across which slices are cut: from left to right, back to front, below to above (RAS+)."""
WHOLE = 3
"""Dimensions of a volume."""


def is_volume(path: Place) -> TypeGuard[Path]:
    """Whether a path has the name of a volume."""
    return isinstance(path, Path) and path.name.lower().endswith(SUFFIXES)


def slices_of(path: Path, slices: Slices) -> list[Slice]:
    """The requested slices of a volume, which is not opened: evenly spread from `first` to `last`."""
    step = (slices.last - slices.first) / slices.count
    return [Slice(path, slices.axis, slices.first + (at + 0.5) * step) for at in range(slices.count)]


class Volume(NamedTuple):
    """An opened volume, and how it lies."""

    image: Any
    """As nibabel has it."""
    cut: int
    """The axis of the file that is cut."""
    axes: list[tuple[int, int]]
    """For each axis of the file the axis of the body that it is, with its direction (1 or -1)."""


@contextmanager
def opened(one: Slice) -> Iterator[Volume]:
    """The volume of a slice; any error inside the block names it."""
    nibabel = imported(one.path)
    try:
        with reachable(one.path, "volume"):
            image = nibabel.load(one.path)
            _check_volume(image, one)
            axes = [(int(axis), int(turn)) for axis, turn in nibabel.io_orientation(image.affine)]
            cut = [axis for axis, _ in axes].index(AXES[one.axis])
            yield Volume(image, cut, axes)
    except (BadInput, MemoryError):
        raise
    except Exception as fault:  # nibabel, zlib and NumPy raise their own; a header is not quoted
        kind = type(fault).__name__
        raise BadInput(
            f"the volume {str(one.path)!r} is corrupt or cut off ({kind}); replace or remove it",
            nameless="holds a volume that is corrupt or cut off: replace or remove it",
        ) from None


def imported(path: Path) -> Any:
    """The library, or the command that installs it."""
    try:
        import nibabel
    except ImportError:
        raise BadInput(
            f"{str(path)!r} needs nibabel: pip install 'sfumato[nifti]'",
            nameless="holds NIfTI volumes, which need nibabel: pip install 'sfumato[nifti]'",
        ) from None
    return nibabel


def _check_volume(image: Any, one: Slice) -> None:
    """`BadInput` for what is no volume of numbers in three dimensions."""
    shape, kind = image.shape, image.get_data_dtype()
    if 0 in shape or len(shape) < 2:
        what, way = f"is empty (shape {list(shape)})", "remove it"
    elif len(shape) > WHOLE and any(length > 1 for length in shape[WHOLE:]):
        what, way = f"holds more than one volume (shape {list(shape)})", "save the one that is meant by itself"
    elif kind.kind not in "iuf":
        what, way = "is in colour, or of numbers that are no brightness", "save it in grey"
    else:
        return
    raise BadInput(f"the volume {str(one.path)!r} {what}; {way}", nameless=f"holds a volume that {what}: {way}")


def grey_of(one: Slice) -> Grey:
    """A slice with what the header says of its values."""
    with opened(one) as (image, cut, axes):
        length, turn = (*image.shape, 1)[cut], axes[cut][1]
        place = min(int(one.place * length), length - 1)
        where: list[Any] = [slice(None)] * WHOLE
        where[cut] = place if turn > 0 else length - 1 - place
        where = where[: len(image.shape)] + [0] * (len(image.shape) - WHOLE)
        values = np.asarray(image.dataobj[tuple(where)], dtype=np.float64)
        other_axes = [axis for at, axis in enumerate(axes) if at != cut]
        values = values.reshape([(*image.shape, 1, 1)[at] for at in range(WHOLE) if at != cut])
        upright = _upright(values, other_axes)
        return Grey(upright, image.get_data_dtype().name, _declared(image))


def _upright(values: np.ndarray, axes: list[tuple[int, int]]) -> np.ndarray:
    """A slice whose axes lie along these of the body, with the later one from above downwards and the earlier from left to right."""
    turned = values[tuple(slice(None, None, turn) for _, turn in axes)]
    (first, _), (second, _) = axes
    across = turned if first < second else turned.T
    return np.ascontiguousarray(np.rot90(across))


def _declared(image: Any) -> tuple[float, float] | None:
    """Black and white as the header has them (`cal_min`, `cal_max`), or of 8 bits without scaling; else None."""
    header = image.header
    low, high = float(header.get("cal_min", 0)), float(header.get("cal_max", 0))
    if high > low:
        return low, high
    plain = (image.dataobj.slope, image.dataobj.inter) == (1.0, 0.0)
    return (0.0, float(WHITE)) if plain and image.get_data_dtype() == np.uint8 else None


def shape_of(one: Slice) -> tuple[int, int, int]:
    """Channels (1), height and width of a slice, from the header."""
    with opened(one) as (image, cut, axes):
        lengths = (*image.shape, 1)
        (width, _), (height, _) = sorted(
            ((lengths[at], axis) for at, (axis, _) in enumerate(axes) if at != cut), key=lambda pair: pair[1]
        )
        return 1, int(height), int(width)


def unbounded(one: Slice) -> str:
    """The unit of a volume that declares no black and white, from the header; empty for others."""
    with opened(one) as (image, _, _):
        return "" if _declared(image) else str(image.get_data_dtype().name)


def kind_of(one: Slice) -> str:
    """Size of a slice and type of its values, for the sheet of a collection."""
    _, height, width = shape_of(one)
    with opened(one) as (image, _, _):
        return f"{width}x{height} NIfTI, {image.get_data_dtype().name}"
