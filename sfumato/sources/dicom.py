"""DICOM files: one picture in grey each, and of its header the person's ID where it is asked for, as a hash.

Only the elements named here are ever read (`ELEMENTS`, and `PERSON` where patients are the groups): names, dates, numbers and texts of a
header do not reach the program. The values are taken through the modality table or rescaling of the file, for `auto` also
through its first window or table of values of interest; `MONOCHROME1` is turned round.

Not covered: several frames, colour, overlays, pixels that are not square, several windows (the first is taken), values that only pad
a picture (they count among its percentiles), and text that is burned into a picture, of which a header may tell (`burned_in`) and often
does not.
"""

import hashlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.errors import BadInput
from sfumato.sources.catalogue import Held
from sfumato.sources.streams import reachable, stream
from sfumato.sources.windows import Grey

SUFFIXES = (".dcm", ".dicom")
MARK, MARK_AT = b"DICM", 128
"""The mark that every DICOM file holds behind its first bytes, and its place."""
LISTING = "DICOMDIR"
"""Name of the list of files on a disc, which is itself such a file and holds no picture."""
LAYOUT = (
    *("SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "Rows", "Columns", "PlanarConfiguration"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
)
"""Elements that describe the layout of the pixels."""
MEANING = (
    *("ModalityLUTSequence", "RescaleSlope", "RescaleIntercept", "RescaleType"),
    *("VOILUTSequence", "VOILUTFunction", "WindowCenter", "WindowWidth"),
)
"""Elements that describe their meaning."""
PIXELS = ("PixelData", "ExtendedOffsetTable", "ExtendedOffsetTableLengths")
WARNED_OF = "BurnedInAnnotation"
ELEMENTS = (*LAYOUT, *MEANING, *PIXELS, WARNED_OF)
"""All that is read of a file whose picture is asked for."""
PERSON = "PatientID"
GREY = ("MONOCHROME1", "MONOCHROME2")
INVERTED = GREY[0]


def is_dicom(path: Path | Held) -> bool:
    """Whether a file is one, by its mark, or by its name where it has none."""
    with stream(path) as file:
        head = file.read(MARK_AT + len(MARK))
    return head[MARK_AT:] == MARK or (isinstance(path, Path) and path.name.lower().endswith(SUFFIXES))


def has_mark(path: str) -> bool:
    """Whether the file of that name holds the mark; False for what cannot be read, and for the list of a disc."""
    try:
        with open(path, "rb") as file:
            return file.read(MARK_AT + len(MARK))[MARK_AT:] == MARK and Path(path).name.upper() != LISTING
    except OSError:
        return False


@contextmanager
def opened(path: Path | Held, elements: tuple[str, ...], *, pixels: bool = False) -> Iterator[Any]:
    """The named elements of a file (`pydicom.Dataset`); any error inside the block names `path`, and no value in it."""
    pydicom = imported(path)
    logger = logging.getLogger("pydicom")
    disabled, logger.disabled = logger.disabled, True  # it quotes values of the header
    try:
        with reachable(path, "image"), warnings.catch_warnings(), stream(path) as file:
            warnings.simplefilter("ignore")  # so does it here
            yield pydicom.dcmread(file, specific_tags=list(elements), stop_before_pixels=not pixels)
    except (BadInput, MemoryError):
        raise
    except Exception as fault:  # its kind alone is told: the words of pydicom and NumPy may quote the header
        kind = type(fault).__name__
        raise BadInput(
            f"the DICOM file {str(path)!r} is corrupt or cut off ({kind}); replace or remove it",
            nameless="holds a DICOM file that is corrupt or cut off: replace or remove it",
        ) from None
    finally:
        logger.disabled = disabled


def imported(path: Path | Held) -> Any:
    """The library, or the command that installs it."""
    try:
        import pydicom
        import pydicom.pixels
    except ImportError:
        raise BadInput(
            f"{str(path)!r} needs pydicom: pip install 'sfumato[dicom]'",
            nameless="holds DICOM files, which need pydicom: pip install 'sfumato[dicom]'",
        ) from None
    return pydicom


def grey_of(path: Path | Held) -> Grey:
    """The picture of a file with what its header says of its values."""
    with opened(path, ELEMENTS, pixels=True) as header:
        _check_layout(header, path)
        _check_compression(header, path)
        pixels = imported(path).pixels
        values = pixels.apply_modality_lut(header.pixel_array, header)
        declared, shown = _declared(header), None
        if header.get("VOILUTSequence"):
            shown = pixels.apply_voi(values.astype(np.int64), header)
            declared = 0.0, 2.0 ** int(header.VOILUTSequence[0].LUTDescriptor[2]) - 1
        elif has_window(header):
            shown = pixels.apply_windowing(values, header)
        else:
            declared = min(declared), max(declared)
        return Grey(values, unit_of(header), declared, shown, header.PhotometricInterpretation == INVERTED)


def _declared(header: Any) -> tuple[float, float]:
    """The values that the least and the largest stored one stand for, by the bits stored; a negative slope exchanges them."""
    if header.get("ModalityLUTSequence"):
        return 0.0, 2.0 ** int(header.ModalityLUTSequence[0].LUTDescriptor[2]) - 1
    bits, signed = int(header.BitsStored), int(header.PixelRepresentation)
    low = -(2.0 ** (bits - 1)) if signed else 0.0
    slope, intercept = (header.get(name) for name in ("RescaleSlope", "RescaleIntercept"))
    high = low + 2.0**bits - 1
    if slope is None or intercept is None:
        return low, high
    return low * float(slope) + float(intercept), high * float(slope) + float(intercept)


def has_window(header: Any) -> bool:
    """Whether a header names a window; an empty one is none."""
    return header.get("WindowCenter") not in (None, "") and header.get("WindowWidth") not in (None, "")


def unit_of(header: Any) -> str:
    """Unit of the values: the header's name of it where they are rescaled, else the bits stored."""
    if header.get("ModalityLUTSequence") or header.get("RescaleSlope") is not None:
        kind = str(header.get("RescaleType") or "")
        return kind if kind in ("HU", "OD", "HU_MOD", "US") else "rescaled values"
    return f"{int(header.BitsStored)} bits"


def _check_layout(header: Any, path: Path | Held) -> None:
    """`BadInput` for a file that is not a single picture in grey."""
    frames, what = int(header.get("NumberOfFrames") or 1), ""
    if not header.get("Rows") or not header.get("Columns"):
        what, way = "holds no picture", "remove it"
    elif frames > 1:
        what, way = f"holds {frames} frames", "save the one that is meant as a file of its own"
    elif header.get("SamplesPerPixel", 1) != 1 or header.get("PhotometricInterpretation") not in GREY:
        what, way = "is in colour, or its grey levels mean no brightness", "save it in grey, or as PNG"
    elif not (header.get("BitsAllocated") and header.get("BitsStored")) or "PixelRepresentation" not in header:
        what, way = "does not say how its pixels lie", "replace or remove it"
    if what:
        raise BadInput(f"the DICOM file {str(path)!r} {what}; {way}", nameless=f"holds a DICOM file that {what}: {way}")


def _check_compression(header: Any, path: Path | Held) -> None:
    """`BadInput` for a compression that no installed library decodes."""
    syntax = header.file_meta.get("TransferSyntaxUID")
    if syntax is None or not syntax.is_compressed:
        return
    try:
        readable = imported(path).pixels.get_decoder(syntax).is_available
    except RuntimeError:  # no pictures are compressed so, or nobody knows how
        readable = False
    if not readable:
        what = f"is compressed ({syntax.name}) so that nothing here can read it"
        way = "pip install python-gdcm, or save it without compression"
        raise BadInput(f"the DICOM file {str(path)!r} {what}; {way}", nameless=f"holds a DICOM file that {what}: {way}")


def shape_of(path: Path | Held) -> tuple[int, int, int]:
    """Channels (1), height and width, from the header."""
    with opened(path, (*LAYOUT, *MEANING)) as header:
        _check_layout(header, path)
        _check_compression(header, path)
        return 1, int(header.Rows), int(header.Columns)


def kind_of(path: Path | Held) -> str:
    """Size and bits of a picture, and whether its header tells of text in it, for the sheet of a collection."""
    with opened(path, (*LAYOUT, *MEANING, WARNED_OF)) as header:
        warning = BURNED_IN if _burned_in(header) else ""
        return f"{int(header.Columns)}x{int(header.Rows)} DICOM, {int(header.BitsStored)} bits{warning}"


BURNED_IN = ", text burned in"
"""Suffix of the kind of a picture whose header declares text in it."""


def _burned_in(header: Any) -> bool:
    return str(header.get(WARNED_OF) or "").strip().upper() == "YES"


def patient(path: Path | Held) -> str:
    """A name for the person of a file: a hash of the ID in its header, which is not passed on; `BadInput` where there is none."""
    way = "use data.group=folder, prefix or none, or a table with a column"
    if not is_dicom(path):
        raise BadInput(
            f"{str(path)!r} is no DICOM file, from whose header data.group='patient' takes the patient; {way}",
            nameless=f"holds an image that is no DICOM file, from whose header data.group='patient' takes the patient: {way}",
        )
    with opened(path, (PERSON,)) as header:
        own = str(header.get(PERSON) or "").strip()
    if not own:
        raise BadInput(
            f"the DICOM file {str(path)!r} has no {PERSON}, as data.group=patient has it; {way}",
            nameless=f"holds a DICOM file without {PERSON}, as data.group=patient has it: {way}",
        )
    return hashlib.blake2b(own.encode(), digest_size=16).hexdigest()
