"""NIfTI volumes: which slices are taken, how they stand, whose they are, and what is refused."""

import numpy as np
import pytest

nibabel = pytest.importorskip("nibabel")

from sfumato.config import Decoding, Slices  # noqa: E402
from sfumato.errors import BadInput  # noqa: E402
from sfumato.preflight import preflight  # noqa: E402
from sfumato.settings import resolve  # noqa: E402
from sfumato.sources import Reading, describe, inspect, load  # noqa: E402
from tests.hospital import write_volume  # noqa: E402
from tests.sfumato.sources.writing import refused  # noqa: E402

SIDES = (8, 10, 12)
"""Voxels from left to right, back to front, below to above."""


def head() -> np.ndarray:
    """A volume whose values tell where each voxel lies: 100 x + 10 y + z in RAS+."""
    x, y, z = np.indices(SIDES)
    return (100 * x + 10 * y + z).astype(np.int16)


def cut(axis="axial", count=1, first=0.4, last=0.6, window="0,1000"):
    return Decoding(window=window, slices=Slices(axis=axis, count=count, first=first, last=last))


def one(tmp_path, values, decoding=cut(), **how):
    write_volume(tmp_path / "scans" / "a" / "one.nii.gz", values, **how)
    return load(tmp_path / "scans", Reading(part="all", decoding=decoding)).pixels[:, 0]


@pytest.mark.parametrize("axis", ["axial", "coronal", "sagittal"])
def test_a_slice_stands_upright_however_the_file_stores_it(tmp_path, axis):
    ras = one(tmp_path, head(), cut(axis))[0]
    volume = np.round(np.clip(head() / 1000, 0, 1) * 255)
    wanted = {"axial": volume[:, :, 6].T[::-1], "coronal": volume[:, 5].T[::-1], "sagittal": volume[4].T[::-1]}
    assert np.array_equal(ras, wanted[axis])
    stored = nibabel.Nifti1Image(head(), np.eye(4))
    for code in ("LPS", "SRA", "AIL"):
        wanted_axes = nibabel.orientations.axcodes2ornt(code)
        turned = stored.as_reoriented(
            nibabel.orientations.ornt_transform(nibabel.io_orientation(np.eye(4)), wanted_axes)
        )
        nibabel.save(turned, tmp_path / "scans" / "a" / "one.nii.gz")
        again = load(tmp_path / "scans", Reading(part="all", decoding=cut(axis)))
        facts = describe(tmp_path / "scans", Reading(decoding=cut(axis)))
        assert np.abs(again.pixels[0, 0].astype(int) - wanted[axis]).max() == 0 or again.pixels.shape[2:] != ras.shape
        assert (facts.height, facts.width) == again.pixels.shape[2:] == ras.shape


def test_slices_are_spread_evenly_and_belong_to_one_volume(tmp_path):
    for at, label in enumerate("aab"):
        write_volume(tmp_path / label / f"{at}.nii", head() + np.int16(at))
    several = cut(count=3, first=0.0, last=1.0)
    result = load(tmp_path, Reading(part="all", decoding=several, group=""))
    assert len(result) == 9 and sorted(np.unique(result.groups, return_counts=True)[1]) == [3, 3, 3]
    heights = [round(pixels[0, -1, 0] / 255 * 1000) for pixels in result.pixels[:3]]
    assert [abs(value - z) <= 2 for value, z in zip(heights, (2, 6, 10), strict=True)] == [True] * 3
    facts = describe(tmp_path, Reading(part="all", decoding=several, group=""))
    assert (facts.records, facts.groups, facts.grouping) == (9, 3, "volume")
    single = describe(tmp_path, Reading(part="all", decoding=cut(), group=""))
    assert (single.records, single.groups) == (3, None), "one slice of each stands for itself"


def test_slices_of_a_volume_are_one_persons_whatever_is_asked(tmp_path):
    for at in range(6):
        for label in "ab":
            write_volume(tmp_path / label / f"p{at}_{label}.nii", head() + np.int16(at))
    requested = [f"data.private={tmp_path}", "data.window=record", "data.slices.count=4", "data.size=8"]
    settings, facts, _ = preflight(resolve("dp-sgd", changes=requested))
    assert settings.data.group == facts.unit == "volume" and facts.whole.records == 12
    assert preflight(settings)[1].unit == "volume"
    assert preflight(resolve("dp-sgd", changes=[*requested, "data.unit=person"]))[1].unit == "person", (
        "who says so knows"
    )
    _, facts, _ = preflight(resolve("dp-sgd", changes=[*requested, "data.group=prefix"]))
    assert facts.whole.records == 6 and facts.unit == "person", "a person with two volumes"
    with pytest.raises(BadInput, match=r"data.slices.count=4 takes several slices .* data.group=none"):
        preflight(resolve("dp-sgd", changes=[*requested, "data.group=none"]))


def test_the_range_that_a_header_declares_is_auto_and_without_one_auto_is_refused(tmp_path):
    declared = one(tmp_path, head(), cut(window="auto"), window=(0, 1000))
    assert np.array_equal(declared, one(tmp_path, head(), cut()))
    bytes_ = (head() % 256).astype(np.uint8)
    assert np.array_equal(one(tmp_path, bytes_, cut(window="auto"))[0], bytes_[:, :, 6].T[::-1])
    write_volume(tmp_path / "scans" / "a" / "one.nii.gz", head())
    for read in (describe, load):
        with refused("one.nii.gz[axial 0.500]' (int16) declares no values", "data.window=record"):
            read(tmp_path / "scans", Reading(decoding=cut(window="auto")))
    assert one(tmp_path, head(), cut(window="record")).max() == 255


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((4, 4, 4, 3), np.int16), "more than one volume"),
        (np.zeros((4, 0, 4), np.int16), "is empty"),
        (np.zeros((4, 4, 4), np.complex64), "is in colour, or of numbers that are no brightness"),
        (np.full((4, 4, 4), np.nan, np.float32), "no finite numbers"),
    ],
    ids=["times", "empty", "complex", "nan"],
)
def test_what_is_no_volume_in_grey_is_one_line(tmp_path, values, words):
    write_volume(tmp_path / "scans" / "a" / "one.nii", values)
    with refused("one.nii", words):
        load(tmp_path / "scans", Reading(part="all", decoding=cut()))
    write_volume(tmp_path / "scans" / "a" / "two.nii", head())
    (line,) = inspect(tmp_path / "scans", Reading(decoding=cut())).broken
    assert words in line


def test_cut_off_volumes_are_named_and_counted(tmp_path):
    path = write_volume(tmp_path / "scans" / "a" / "one.nii.gz", head())
    write_volume(tmp_path / "scans" / "a" / "two.nii.gz", head())
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2):
        path.write_bytes(whole[:length])
        with refused("one.nii.gz' is corrupt or cut off"):
            load(tmp_path / "scans", Reading(part="all", decoding=cut()))
    assert len(inspect(tmp_path / "scans", Reading(decoding=cut())).broken) == 1


def test_flat_files_and_a_last_axis_of_one_are_volumes_of_one_slice(tmp_path):
    flat = one(tmp_path, head()[:, :, 6], cut())
    assert np.array_equal(flat, one(tmp_path, head()[:, :, 6:7, None], cut()))


def test_places_must_be_in_order():
    with pytest.raises(BadInput, match="first that lies before last"):
        resolve("dp-sgd", changes=["data.slices.first=0.7"])
