"""DICOM files from a folder to a published set: no word of a header is written anywhere, not even where it may not leave."""

import logging
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pydicom")

from artifacts.labels import Label
from flows.cli import main
from sfumato.errors import BadInput
from sfumato.sources.dicom import patient
from tasks.runtime.environment import where
from tests.flows.test_own_data import TINY, run
from tests.hospital import PERSON, ROOT, SECRETS, write_dicom, write_xrays, xrays

pytestmark = pytest.mark.usefixtures("quick_judges")
COUNT, EACH = 240, 3
"""X-rays, and those of one patient."""


@pytest.fixture
def exports(tmp_path, data) -> Path:
    """Real X-rays of 80 patients as DICOM files, one of which says that text is burned in."""
    root = write_xrays(tmp_path / "exports", data, count=COUNT, each=EACH)
    from pydicom import dcmread

    path = root / "normal" / "IM00000.dcm"
    reported = dcmread(path)
    reported.BurnedInAnnotation = "YES"
    reported.save_as(path)
    return root


def command(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sfumato", *arguments])
    try:
        main.main()
    except SystemExit as leave:
        return int(leave.code or 0)
    return 0


@pytest.mark.slow
def test_nothing_of_a_header_is_written_anywhere(no_servers, exports, tmp_path, monkeypatch, capfd, caplog):
    how = ["data.group=patient", "data.unit=patient", "data.size=8"]
    sets = [word for change in how for word in ("--set", change)]
    with caplog.at_level(logging.INFO):
        assert command(monkeypatch, "check", str(exports), *sets) == 0
        sheet = (where().home / "checks" / "exports.md").read_text()
        assert f"{COUNT} images in 2 classes, in {COUNT // EACH} groups of at most {EACH}" in sheet
        assert "Text is burned into 1 images" in sheet
        sources = [f"data.private={exports}", *how]
        assert command(monkeypatch, "plan", "dp-sgd", *[w for c in (*sources, *TINY) for w in ("--set", c)]) == 0
        with pytest.warns(UserWarning, match="text is burned into the picture"):
            record = run("dp-sgd", [*sources, *TINY], str(tmp_path / "out"))
    assert record.label == Label.DP and "one patient with all images and labels" in record.certificate.sentence()
    assert record.plan.facts.whole.records == COUNT // EACH

    hashes = {patient(path) for path in exports.rglob("*.dcm")}
    words = [PERSON, ROOT, "IM000", *SECRETS.values(), *hashes]
    outputs = capfd.readouterr()
    texts = {"screen": (outputs.out + outputs.err).encode(), "log": caplog.text.encode()}
    folders = [tmp_path / "out", where().home]
    texts |= {str(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}
    assert len(texts) > 20 and any(name.endswith(".png") for name in texts)
    inside = "checks/exports.md"  # INTERNAL: it names files, for the eyes of who keeps them
    for name, content in texts.items():
        allowed = ("IM000",) if name.endswith(inside) or name == "screen" else ()
        seen = [word for word in words if word.encode() in content and word not in allowed]
        seen += [word for word in words if word.encode("utf-16-le") in content]
        assert not seen, (name, seen)
    assert not any(PERSON in name for name in texts)


def test_the_pixels_are_those_of_the_xrays(exports, data):
    from sfumato.sources import Reading, load

    pixels, _ = xrays(data, COUNT)
    there = load(exports, Reading(part="all")).pixels[:, 0]
    assert sorted(one.tobytes() for one in there) == sorted(one.tobytes() for one in np.ascontiguousarray(pixels))


def cut(path):
    path.write_bytes(path.read_bytes()[:-700])


def frames(path):
    write_dicom(path, np.zeros((28, 28), np.uint16), person=1, NumberOfFrames=2)


def colour(path):
    write_dicom(path, np.zeros((28, 28), np.uint16), person=1, SamplesPerPixel=3, PhotometricInterpretation="RGB")


def wide(path):
    write_dicom(path, np.zeros((28, 30), np.uint16), person=1)


def deeper_than_others(path):
    write_dicom(path, np.arange(784, dtype=np.uint16).reshape(28, 28), person=1)


def nobodys(path):
    write_dicom(path, np.zeros((28, 28), np.uint16), PatientID="")


@pytest.mark.parametrize(
    ("harm", "change", "words"),
    [
        (cut, "data.size=8", "cannot be read"),
        (frames, "data.size=8", "cannot be read"),
        (colour, "data.size=8", "cannot be read"),
        (wide, "data.held_out=0.3", "differ in size"),
        (deeper_than_others, "data.window=0,4095", "16 bits"),
        (nobodys, "data.group=patient", "no PatientID"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_check_refuses_what_a_run_refuses(no_servers, exports, monkeypatch, capfd, harm, change, words):
    path = sorted((exports / "pneumonia").iterdir())[-1]
    harm(path)
    assert command(monkeypatch, "check", str(exports), "--set", change) == 2
    reported = capfd.readouterr()
    assert words in reported.err.strip().splitlines()[-1] and "Traceback" not in reported.err
    with pytest.raises(BadInput) as refusal:
        run("dp-sgd", [f"data.private={exports}", change, *TINY])
    assert path.name not in str(refusal.value) and "\n" not in str(refusal.value)
    with where().ledger() as ledger:
        assert not [entry for entry in ledger.entries() if entry.kind == "reserve"], "before any work"
