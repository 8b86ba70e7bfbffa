"""No name of a private file in what leaves the room: not in an error, not in a state, not in what a webhook is told."""

import csv
import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato import sources
from sfumato.errors import BadInput, Unnamed
from sfumato.preflight import preflight
from sfumato.privacy.door import PrivateSet, identify, read
from sfumato.settings import resolve
from tasks.runtime import heartbeat
from tasks.runtime.internal import pointed
from tests.examples import home_at, write_classes
from tests.hospital import write_dicom, write_volume

JANE = "Jane_Doe_1984-02-03"


@pytest.fixture
def folder(tmp_path):
    """Pictures in two classes, one of them with a name in its name."""
    made = write_classes(tmp_path / "scans", {"ill": 12, "well": 12})
    (made / "well" / "011.png").rename(made / "well" / f"{JANE}.png")
    return made


def cut(folder):
    path = folder / "well" / f"{JANE}.png"
    path.write_bytes(path.read_bytes()[:40])


def widen(folder):
    Image.fromarray(np.zeros((8, 9), np.uint8)).save(folder / "well" / f"{JANE}.png")


def colour(folder):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "well" / f"{JANE}.png")


def deepen(folder):
    Image.fromarray(np.zeros((8, 8), np.float32)).save(folder / "well" / f"{JANE}.tif")


def unlink(folder):
    path = folder / "well" / f"{JANE}.png"
    path.unlink()
    path.symlink_to(folder / "well" / "nobody.png")


def lead_out(folder):
    path = folder / "well" / f"{JANE}.png"
    path.rename(folder.parent / path.name)
    path.symlink_to(folder.parent / path.name)


def listed(folder, *rows):
    """A table in place of the class folders."""
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "label"], *([f"ill/{n:03d}.png", "ill"] for n in range(12)), *rows])
    return folder / "table.csv"


def twice(folder):
    return listed(folder, *[[f"well/{JANE}.png", "well"]] * 2)


def nowhere(folder):
    return listed(folder, [f"well/{JANE}-2.png", "well"])


def frames(folder):
    write_dicom(folder / "well" / f"{JANE}.dcm", np.zeros((8, 8), np.uint16), PatientID=JANE, NumberOfFrames=2)


def empty_volume(folder):
    write_volume(folder / "well" / f"{JANE}.nii", np.zeros((8, 0, 8), np.int16))


FAULTS = [cut, widen, colour, deepen, unlink, lead_out, twice, nowhere, frames, empty_volume]


@pytest.mark.parametrize("harm", FAULTS, ids=lambda harm: harm.__name__)
def test_no_fault_of_a_private_file_names_it(folder, harm):
    source = str(harm(folder) or folder)
    private = PrivateSet(name="scans", source=source)
    with pytest.raises(Unnamed) as reported:
        [identify(private), *(read(private, part) for part in ("train", "test"))]
    assert "Jane" not in str(reported.value) and "'scans'" in str(reported.value) and "Jane" in reported.value.internal
    assert "\n" not in str(reported.value) and reported.value.__context__ is None
    with pytest.raises(BadInput, match=JANE):
        [
            sources.load(source, sources.Reading(part=part)) for part in ("train", "test")
        ]  # of public images the name is told


@pytest.mark.parametrize("harm", [twice, nowhere, lead_out], ids=lambda harm: harm.__name__)
def test_nor_does_preflight_name_it(folder, harm):
    source = harm(folder) or folder
    with pytest.raises(Unnamed) as reported:
        preflight(resolve("dp-sgd", changes=[f"data.private={source}"]))
    stated = str(reported.value)
    assert "Jane" not in stated and str(source) in stated and "Jane" in reported.value.internal
    assert "put it right" in stated and "sfumato check" in stated, "what to do is told all the same"


def test_preflight_names_no_group_and_no_first_picture(folder):
    shutil.rmtree(folder / "ill")
    (folder / "ill").mkdir()
    (folder / "ill" / f"{JANE}.png").write_bytes(b"no picture")
    for group in ("none", "prefix", "folder"):
        with pytest.raises(BadInput) as reported:
            preflight(resolve("dp-sgd", changes=[f"data.private={folder}", f"data.group={group}"]))
        assert "Jane" not in str(reported.value)


def test_what_a_person_mistyped_is_still_told(tmp_path, folder):
    for wrong, words in [
        ([f"data.private={tmp_path / 'scanz'}"], "scanz' does not exist"),
        (
            [f"data.private={listed(folder)}", "data.columns.label=kind"],
            "no column 'kind' .its columns: 'path', 'label'",
        ),
    ]:
        with pytest.raises(BadInput, match=words):
            preflight(resolve("dp-sgd", changes=wrong))


def test_the_file_is_named_in_an_internal_file_of_the_home(folder, tmp_path, monkeypatch):
    cut(folder)
    run = uuid.uuid4()
    monkeypatch.setattr(heartbeat, "run_id", lambda: run)
    monkeypatch.setattr(heartbeat, "show_life", lambda *_: None)
    with home_at(tmp_path / "home"):
        state = heartbeat.attended(lambda: identify(PrivateSet(name="scans", source=str(folder))))()
        # The message is what Prefect keeps, what `sfumato status` shows and what the webhook is told.
        assert state.name == "BadInput" and "Jane" not in state.message and "Jane" not in repr(state)
        named = state.message.partition("more in ")[2].removesuffix(" (INTERNAL)")
        file = Path(named)
        assert JANE in file.read_text() and file.stat().st_mode & 0o777 == 0o600
        assert file.parent == tmp_path / "home" / "internal"
        assert not vars(state.data).get("internal"), "nor does what a result store would keep"


def test_an_internal_file_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "internal").write_text("a file in its place")
    reported = pointed(Unnamed("the private set 'scans' holds an image", JANE), tmp_path)
    assert "could not be written" in str(reported) and "Jane" not in str(reported)
    plain = BadInput("another mistake")
    assert pointed(plain, tmp_path) is plain
