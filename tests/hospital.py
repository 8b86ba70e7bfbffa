"""DICOM files and NIfTI volumes as a hospital has them, made from real X-rays; every header holds what must never leave."""

from pathlib import Path
from typing import Any

import numpy as np

SECRETS = {
    "PatientName": "Doe^Jane",
    "PatientBirthDate": "19840203",
    "PatientAddress": "221B-Baker-Street",
    "ReferringPhysicianName": "House^Gregory",
    "InstitutionName": "Princeton-Plainsboro",
    "StudyDescription": "Thorax-with-a-secret",
    "AccessionNumber": "ACC-778899",
    "StudyDate": "20240229",
}
"""What a header says of a person, in words that are found again wherever they are written."""
PERSON = "PID-424242"
"""How the ID of every person begins."""
ROOT = "1.2.826.0.1.3680043.8.498."
"""How every number begins that a file is known by."""


def write_dicom(path: Path, values: np.ndarray, *, person: int = 0, **header: Any) -> Path:
    """One picture `[h, w]` of whole numbers as a file without compression; `header` sets or replaces elements, None removes one."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian

    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID = DigitalXRayImageStorageForPresentation
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID = f"{ROOT}{person + 1}.{len(path.name)}"
    for name, value in SECRETS.items():
        setattr(made, name, value)
    made.PatientID, made.Modality = f"{PERSON}-{person}", "DX"
    bits = 8 * values.dtype.itemsize
    made.Rows, made.Columns = values.shape[-2:]
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated = made.BitsStored = bits
    made.HighBit, made.PixelRepresentation = bits - 1, int(values.dtype.kind == "i")
    made.PixelData = values.astype(values.dtype.newbyteorder("<")).tobytes()
    for name, value in header.items():
        if value is None:
            delattr(made, name)
        else:
            setattr(made, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save_as(path, enforce_file_format=True)
    return path


def deeper(pixels: np.ndarray, bits: int = 12) -> np.ndarray:
    """Grey of 8 bits as whole numbers of so many, of which 8 bits give back the same."""
    return np.round(pixels.astype(np.float64) * (2**bits - 1) / 255).astype(np.uint16)


def xrays(data: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """X-rays of children's chests, uint8 `[count, 28, 28]`, and their labels, by turns healthy (0) and ill (1)."""
    with np.load(data / "pneumoniamnist" / "pneumoniamnist.npz") as archive:
        images, labels = archive["train_images"], archive["train_labels"][:, 0]
    half = [np.flatnonzero(labels == label)[: -(-count // 2)] for label in (0, 1)]
    chosen = np.stack(half, axis=1).ravel()[:count]
    return images[chosen], labels[chosen]


def write_xrays(root: Path, data: Path, *, count: int = 60, each: int = 2, **header: Any) -> Path:
    """Class folders of X-rays in 12 bits, `each` of one person, under names and numbers that no one may see."""
    pixels, labels = xrays(data, count)
    for at, (one, label) in enumerate(zip(pixels, labels, strict=True)):
        name = ("normal", "pneumonia")[label]
        write_dicom(
            root / name / f"IM{at:05}.dcm",
            deeper(one),
            person=at // each,
            **({"BitsStored": 12, "HighBit": 11} | header),
        )
    return root


def write_volume(
    path: Path, values: np.ndarray, *, affine: np.ndarray | None = None, window: tuple[float, float] | None = None
) -> Path:
    """A NIfTI volume; `window` is what its header declares for black and white."""
    import nibabel

    image = nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine)
    if window:
        image.header["cal_min"], image.header["cal_max"] = window
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image, path)
    return path
