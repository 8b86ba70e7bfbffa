"""Any picture decoded: by Pillow, as DICOM, or as a slice of a volume; grey brought to 8 bits by the window that is asked for."""

from typing import NamedTuple

import numpy as np

from sfumato.config import AUTO_WINDOW
from sfumato.sources import dicom, nifti, pictures
from sfumato.sources.catalogue import File, Place, Record, Slice
from sfumato.sources.windows import Grey, no_range, not_grey


class Decoded(NamedTuple):
    """A picture, and the one by which its record is known."""

    pixels: np.ndarray
    """uint8 `[h, w, 1 or 3]`."""
    known_as: np.ndarray | None
    """The picture that identifies its record under any window (`Grey.stored`); None if it is `pixels`."""
    unit: str


def decode(path: Place, window: str = AUTO_WINDOW) -> Decoded:
    """All pixels of a picture; `BadInput` names what cannot be read, or not through this window."""
    pixels = pixels_of(path)
    if isinstance(pixels, Grey):
        shown = pixels.through(window, str(path))
        return Decoded(shown, None if window == AUTO_WINDOW else pixels.stored(str(path)), pixels.unit)
    if window != AUTO_WINDOW:
        raise not_grey(str(path), window)
    return Decoded(pixels, None, "colour")


def pixels_of(path: Place) -> Grey | np.ndarray:
    """A picture in grey as its file holds it, or in colour, uint8 `[h, w, 3]`; `BadInput` for what cannot be read."""
    if isinstance(path, Slice):
        return nifti.grey_of(path)
    return dicom.grey_of(path) if read_as_dicom(path) else pictures.pixels_of(path)


def read_as_dicom(path: Place) -> bool:
    """Whether it is a DICOM file; what cannot be opened is none, and the next to open it says why."""
    try:
        return not isinstance(path, Slice) and dicom.is_dicom(path)
    except OSError:
        return False


def shape_of(path: Place, window: str = AUTO_WINDOW) -> tuple[int, int, int]:
    """Channels, height and width of a picture as `decode` gives it, from its header; refuses what that shows not to fit the window."""
    if isinstance(path, Slice):
        shape, unbounded = nifti.shape_of(path), nifti.unbounded(path)
    elif read_as_dicom(path):
        shape, unbounded = dicom.shape_of(path), ""
    else:
        shape, unbounded = pictures.shape_of(path), pictures.unbounded(path)
    if unbounded and window == AUTO_WINDOW:
        raise no_range(str(path), unbounded)
    if shape[0] > 1 and window != AUTO_WINDOW:
        raise not_grey(str(path), window)
    return shape


def kind_of(path: Place) -> str:
    """Size of a picture as it is decoded, and its mode as it is stored, such as `640x480 RGB`, from its header."""
    if isinstance(path, Slice):
        return nifti.kind_of(path)
    return dicom.kind_of(path) if read_as_dicom(path) else pictures.kind_of(path)


def record_of(file: File, label: int, window: str) -> Record:
    """A file decoded."""
    decoded = decode(file.path, window)
    return Record(str(file.path), decoded.pixels, label, file.group, decoded.known_as, decoded.unit)
