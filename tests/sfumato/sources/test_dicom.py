"""DICOM files: their pixels as pydicom has them, no word of their headers, and every way in which they can be wrong."""

import io
import logging
import warnings

import numpy as np
import pytest
from PIL import Image

pydicom = pytest.importorskip("pydicom")

from pydicom import pixels as oracle  # noqa: E402
from pydicom.dataset import Dataset  # noqa: E402
from pydicom.sequence import Sequence  # noqa: E402
from pydicom.uid import JPEGLSLossless  # noqa: E402

from sfumato.config import Columns, Decoding  # noqa: E402
from sfumato.errors import BadInput  # noqa: E402
from sfumato.preflight import preflight  # noqa: E402
from sfumato.settings import resolve  # noqa: E402
from sfumato.sources import NO_GROUPS, Reading, describe, inspect, load, source_digest, text_burned_in  # noqa: E402
from sfumato.sources.catalogue import group_number  # noqa: E402
from sfumato.sources.decoding import decode  # noqa: E402
from sfumato.sources.dicom import patient  # noqa: E402
from tests.hospital import PERSON, SECRETS, deeper, write_dicom, write_xrays, xrays  # noqa: E402
from tests.sfumato.sources.writing import draw, refused  # noqa: E402

RAMP = np.arange(64, dtype=np.uint16).reshape(8, 8) * 65
"""0 to 4095 in 64 levels, as 12 bits hold them."""
TWELVE = {"BitsStored": 12, "HighBit": 11}


def shown(tmp_path, values=RAMP, window="auto", **header):
    return decode(write_dicom(tmp_path / "one.dcm", values, **header), window).pixels[:, :, 0]


def as_pydicom_has_it(path):
    """Through the modality table, then the window, then 256 levels over the range that pydicom spreads a window to."""
    result = pydicom.dcmread(path)
    values = oracle.apply_voi_lut(oracle.apply_modality_lut(result.pixel_array, result), result)
    bits, slope = result.BitsStored, float(result.get("RescaleSlope", 1))
    low = (-(2 ** (bits - 1)) if result.PixelRepresentation else 0) * slope + float(result.get("RescaleIntercept", 0))
    levels = np.round(np.clip((values - low) / ((2**bits - 1) * slope), 0, 1) * 255)
    return 255 - levels if result.PhotometricInterpretation == "MONOCHROME1" else levels


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"WindowCenter": 2000, "WindowWidth": 1000},
        {"WindowCenter": [600, 40], "WindowWidth": [1500, 400]},
        {"WindowCenter": 2000, "WindowWidth": 1000, "VOILUTFunction": "SIGMOID"},
        {"WindowCenter": 2000, "WindowWidth": 1000, "VOILUTFunction": "LINEAR_EXACT"},
        {"RescaleSlope": 1, "RescaleIntercept": -1024, "RescaleType": "HU"},
        {"RescaleSlope": 2, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 400},
        {"PhotometricInterpretation": "MONOCHROME1"},
        {"PhotometricInterpretation": "MONOCHROME1", "WindowCenter": 2000, "WindowWidth": 1000},
        {"WindowCenter": "", "WindowWidth": ""},
    ],
    ids=str,
)
def test_auto_is_what_pydicom_makes_of_bits_rescaling_and_window(tmp_path, header):
    path = write_dicom(tmp_path / "one.dcm", RAMP, **TWELVE, **header)
    if header.get("WindowCenter") == "":
        wanted = as_pydicom_has_it(write_dicom(tmp_path / "bare.dcm", RAMP, **TWELVE))
    else:
        wanted = as_pydicom_has_it(path)
    result = decode(path).pixels[:, :, 0]
    assert np.abs(result.astype(int) - wanted).max() <= 1 and result.std() > 20


def test_signed_values_and_tables_have_their_own_range(tmp_path):
    signed = (RAMP.astype(np.int32) - 2048).astype(np.int16)
    result = shown(tmp_path, signed, **TWELVE)
    assert result[0, 0] == 0 and result[-1, -1] == 255 and np.array_equal(result, shown(tmp_path, RAMP, **TWELVE))
    table = Dataset()
    table.LUTDescriptor, table.LUTData = [4096, 0, 10], (1023 - np.arange(4096) // 4).tolist()
    table["LUTDescriptor"].VR = table["LUTData"].VR = "US"
    turned = shown(tmp_path, RAMP, VOILUTSequence=Sequence([table]), **TWELVE)
    assert np.abs(turned.astype(int) - (255 - result.astype(int))).max() <= 1


def test_a_negative_slope_turns_dark_and_light_once(tmp_path):
    header = {"RescaleSlope": -1, "RescaleIntercept": 4095, **TWELVE}
    assert np.array_equal(shown(tmp_path, RAMP, **header), shown(tmp_path, 4095 - RAMP, **TWELVE))


def test_record_and_declared_windows_are_in_the_files_own_unit(tmp_path):
    scan = {"RescaleSlope": 1, "RescaleIntercept": -1024, "RescaleType": "HU", **TWELVE}
    lung = shown(tmp_path, RAMP, "-1000,400", **scan)
    wanted = np.round(np.clip((RAMP.astype(float) - 1024 + 1000) / 1400, 0, 1) * 255)
    assert np.array_equal(lung, wanted)
    dim = shown(tmp_path, RAMP // 16, "record", **TWELVE)
    assert dim.min() == 0 and dim.max() == 255 and shown(tmp_path, RAMP // 16, **TWELVE).max() < 20
    dark = shown(tmp_path, RAMP // 16, "record", PhotometricInterpretation="MONOCHROME1", **TWELVE)
    assert np.array_equal(dark, 255 - dim)


def test_a_folder_of_xrays_is_what_it_was_made_from(tmp_path, data):
    root = write_xrays(tmp_path / "scans", data)
    (root / "normal" / "IM00000.dcm").rename(root / "normal" / "1.2.840.113619.2.5")  # as many archives call them
    (root / "normal" / "notes.txt").write_text("no picture")
    result = load(root, Reading(part="all"))
    pixels, labels = xrays(data, 60)
    same = sorted(one.tobytes() for one in pixels)
    assert sorted(one.tobytes() for one in result.pixels[:, 0]) == same
    assert (
        result.classes == ("normal", "pneumonia")
        and np.bincount(result.labels).tolist() == np.bincount(labels).tolist()
    )
    facts = describe(root)
    assert (facts.channels, facts.height, facts.width, facts.groups) == (1, 28, 28, None)


def test_patients_are_groups_by_a_hash_alone(tmp_path, data):
    root = write_xrays(tmp_path / "scans", data, each=3)
    result = load(root, Reading(part="all", group="patient"))
    assert (
        sorted(np.unique(result.groups, return_counts=True)[1]) == [3] * 20
        and describe(root, Reading(group="patient")).groups == 16
    )
    name = patient(root / "normal" / "IM00000.dcm")
    assert PERSON not in name and group_number(name) in result.groups
    rows = ["file_name,label,finding"] + [
        f"{path.relative_to(root)},{path.parent.name},x" for path in sorted(root.rglob("*.dcm"))
    ]
    (root / "list.csv").write_text("\n".join(rows))
    table = load(root / "list.csv", Reading(part="all", group="patient"))
    assert sorted(table.groups) == sorted(result.groups)
    assert set(table.labels[table.groups == result.groups[0]]) == set(result.labels[result.groups == result.groups[0]])
    with refused("no column 'kind'"):
        load(root / "list.csv", Reading(group="patient", columns=Columns(label="kind")))


def test_a_file_without_a_patient_is_refused_where_patients_are_the_unit(tmp_path, data):
    root = write_xrays(tmp_path / "scans", data, count=6)
    write_dicom(root / "normal" / "none.dcm", RAMP, PatientID="")
    with refused("none.dcm' has no PatientID", "data.group=folder"):
        describe(root, Reading(group="patient"))
    draw(np.random.default_rng(0)).save(root / "normal" / "other.png")
    (root / "normal" / "none.dcm").unlink()
    with refused("other.png' is no DICOM file", "data.group='patient'"):
        describe(root, Reading(group="patient"))


def test_the_window_moves_no_record_and_makes_no_other_set(tmp_path, data):
    root = write_xrays(tmp_path / "scans", data)
    narrow = Decoding(window="1000,2000")
    parts = [
        [len(load(root, Reading(part=part, decoding=d))) for part in ("train", "test")] for d in (Decoding(), narrow)
    ]
    assert parts[0] == parts[1] and source_digest(root) == source_digest(root, Reading(decoding=narrow))
    assert not np.array_equal(load(root, Reading(decoding=narrow)).pixels, load(root).pixels)


def harmed(tmp_path, **header):
    return write_dicom(tmp_path / "scans" / "a" / "one.dcm", RAMP, **(TWELVE | header))


BROKEN = [
    ({"NumberOfFrames": 3}, "holds 3 frames"),
    ({"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3}, "is in colour"),
    ({"PhotometricInterpretation": "PALETTE COLOR"}, "is in colour"),
    ({"Rows": None}, "holds no picture"),
    ({"PixelData": None}, "is corrupt or cut off"),
    ({"PixelData": b"\0" * 20}, "is corrupt or cut off"),
    ({"BitsStored": None}, "does not say how its pixels lie"),
    ({"WindowCenter": 5, "WindowWidth": 0}, "is corrupt or cut off"),
    ({"WindowCenter": "5", "WindowWidth": 10, "VOILUTFunction": "SPIRAL"}, "is corrupt or cut off"),
]


@pytest.mark.parametrize(("header", "words"), BROKEN, ids=lambda value: value if isinstance(value, str) else "")
def test_what_cannot_be_read_is_one_line_that_quotes_no_header(tmp_path, header, words):
    harmed(tmp_path, **header)
    with refused("one.dcm'", words) as reported:
        load(tmp_path / "scans", Reading(part="all"))
    assert not any(secret in str(reported.value) for secret in (*SECRETS.values(), PERSON))
    result = inspect_broken(tmp_path / "scans")
    assert len(result) == 1 and words in result[0]


def inspect_broken(root):
    """What a look through the collection finds, beside one good picture."""
    write_dicom(root / "a" / "good.dcm", RAMP, **TWELVE)
    return inspect(root).broken


def test_cut_off_files_and_others_under_its_name(tmp_path):
    path = harmed(tmp_path)
    whole = path.read_bytes()
    for length in (0, 100, 140, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:length])
        with refused("one.dcm'", "remove it"):
            load(tmp_path / "scans", Reading(part="all"))
    path.write_bytes(b"no such file" * 50)
    with refused("one.dcm' is corrupt or cut off"):
        describe(tmp_path / "scans")


def test_a_compression_that_nothing_here_reads_is_named(tmp_path):
    path = harmed(tmp_path)
    result = pydicom.dcmread(path)
    result.file_meta.TransferSyntaxUID = JPEGLSLossless
    result.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8\xff\xf7" + b"\0" * 40])
    result["PixelData"].VR = "OB"
    result.save_as(path, enforce_file_format=True)
    for read in (describe, load):
        with refused("JPEG-LS Lossless", "pip install python-gdcm"):
            read(tmp_path / "scans")


def test_run_length_encoding_is_read(tmp_path):
    path = harmed(tmp_path)
    plain, result = decode(path).pixels, pydicom.dcmread(path)
    result.compress(pydicom.uid.RLELossless)
    result.save_as(path, enforce_file_format=True)
    assert np.array_equal(decode(path).pixels, plain)


def test_jpeg_inside_is_read(tmp_path, data):
    pixels = xrays(data, 1)[0][0]
    path = write_dicom(tmp_path / "one.dcm", pixels)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    packed = pydicom.dcmread(path)
    packed.file_meta.TransferSyntaxUID = pydicom.uid.JPEGBaseline8Bit
    packed.PixelData = pydicom.encaps.encapsulate([file.getvalue()])
    packed["PixelData"].VR = "OB"
    packed.save_as(path, enforce_file_format=True)
    assert np.abs(decode(path).pixels[:, :, 0].astype(int) - pixels).max() < 20


def test_patients_that_nobody_asked_for_are_told_of(tmp_path, data):
    root = write_xrays(tmp_path / "scans", data)
    settled = {
        group: preflight(resolve("dp-sgd", changes=[f"data.private={root}", f"data.group={group}"]))
        for group in ("", "none", "patient")
    }
    reported = {
        group: "data.group=patient protects a patient" in " ".join(warnings)
        for group, (_, _, warnings) in settled.items()
    }
    assert reported == {"": True, "none": False, "patient": False}
    assert settled["patient"][1].unit == "person" and settled["patient"][1].whole.records == 30
    again, _, _ = preflight(settled["patient"][0])
    assert again.data.group == "patient", "a stage reads the set by the same groups"


def test_two_units_under_one_declared_window_are_refused(tmp_path, data):
    root = write_xrays(tmp_path / "scans", data, count=4)
    eight = xrays(data, 1)[0][0]
    Image.fromarray(eight).save(root / "pneumonia" / "eight.png")
    assert len(load(root, Reading(part="all"))) == 5, "each file declares its own range"
    with refused("12 bits", "8 bits", "data.window=0,4095", "record"):
        load(root, Reading(part="all", decoding=Decoding(window="0,4095")))


def test_burned_in_text_is_told_of(tmp_path, data):
    root = write_xrays(tmp_path / "scans", data, count=4)
    path = write_dicom(root / "normal" / "burned.dcm", deeper(xrays(data, 1)[0][0]), **TWELVE, BurnedInAnnotation="YES")
    kinds = inspect(root).kinds
    assert sorted(kinds)[-1] == "28x28 DICOM, 12 bits, text burned in" and kinds.count("28x28 DICOM, 12 bits") == 4
    assert (
        text_burned_in(root, Reading("all", group=NO_GROUPS))
        == text_burned_in(root, Reading("all", group="patient"))
        == 1
    )
    inside = tmp_path / "persons" / "normal" / "person-1"
    inside.parent.mkdir(parents=True)
    path.parent.rename(inside)
    assert text_burned_in(tmp_path / "persons", Reading("all", group="folder")) == 1


def test_reading_is_silent_even_where_pydicom_would_quote_a_header(tmp_path, caplog):
    path = harmed(tmp_path)
    whole = path.read_bytes().replace(b"PID-424242-0", b"PID-\\\xff4242-0")
    path.write_bytes(whole)
    with warnings.catch_warnings(), caplog.at_level(logging.DEBUG):
        warnings.simplefilter("error")
        decode(path)
        patient(path)
    assert not caplog.records


def test_without_the_library_one_line_says_what_to_install(tmp_path, monkeypatch):
    harmed(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with refused("needs pydicom", "pip install 'sfumato[dicom]'"):
        describe(tmp_path / "scans")


@pytest.mark.parametrize("window", ["5", "a,b", "7,7", "9,3", "nan,1", "0,inf", "1,2,3", ""])
def test_a_window_that_is_none_is_refused_when_it_is_set(window):
    with pytest.raises(BadInput, match="lo,hi of which the first is the smaller") as reported:
        resolve("dp-sgd", changes=[f"data.window={window}"])
    assert "\n" not in str(reported.value)
