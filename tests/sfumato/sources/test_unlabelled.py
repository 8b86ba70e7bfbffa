"""Sources without labels: a flat folder, a table, an NPZ file, Parquet, IDX; and labels that are left aside."""

import numpy as np
import pytest
from PIL import Image

from sfumato.config import Columns, Decoding
from sfumato.sources import UNLABELLED, Reading, describe, inspect, load, source_digest, stored_pictures
from sfumato.sources.catalogue import group_number
from tests.sfumato.sources.test_embedded import rows, write
from tests.sfumato.sources.writing import draw, refused, write_folder, write_idx

ASIDE = Decoding(labels=False)
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)


def flat(folder, count=40, first=""):
    folder.mkdir(parents=True, exist_ok=True)
    for at, pixels in enumerate(PIXELS[:count]):
        Image.fromarray(pixels).save(folder / f"{first}{at:03}.png")
    return folder


def in_a_table(root):
    flat(root)
    (root / "list.csv").write_text("path,finding\n" + "".join(f"{at:03}.png,x\n" for at in range(40)))
    return root / "list.csv"


def in_npz(root):
    root.mkdir()
    np.savez(root / "scans.npz", images=PIXELS)
    return root / "scans.npz"


def in_splits_of_npz(root):
    root.mkdir()
    np.savez(root / "scans.npz", train_images=PIXELS[:30], test_images=PIXELS[30:])
    return root / "scans.npz"


def in_parquet(root):
    return write(root / "scans.parquet", [{"image": row["image"]} for row in rows(40)], names=None)


def in_idx(root):
    root.mkdir()
    write_idx(root / "train-images-idx3-ubyte", PIXELS[:30])
    write_idx(root / "t10k-images-idx3-ubyte", PIXELS[30:])
    return root


def in_splits(root):
    flat(root / "train", 30)
    return flat(root / "test", 10).parent


@pytest.mark.parametrize(
    "made", [flat, in_a_table, in_npz, in_splits_of_npz, in_parquet, in_idx, in_splits], ids=lambda made: made.__name__
)
def test_pictures_without_labels_are_one_class(tmp_path, made):
    source = made(tmp_path / "scans")
    result, facts = load(source, Reading(part="all")), describe(source, Reading(part="all"))
    assert result.classes == facts.classes == (UNLABELLED,) and len(result) == facts.records == 40
    assert not result.labels.any() and result.groups is None
    train, test = load(source), load(source, Reading(part="test"))
    assert len(train) + len(test) == 40 and len(test)
    assert len(inspect(source).where) == 40 and source_digest(source) == source_digest(source, Reading(decoding=ASIDE))


@pytest.mark.parametrize("group", ["prefix", "patient"])
def test_flat_folders_have_groups_by_name(tmp_path, group):
    for person in ("ann", "bob"):
        flat(tmp_path, 5, f"{person}_")
    if group == "prefix":
        assert set(load(tmp_path, Reading(part="all", group=group)).groups) == {
            group_number("ann"),
            group_number("bob"),
        }
    else:
        with refused("is no DICOM file", "data.group='patient'"):
            load(tmp_path, Reading(part="all", group=group))


def test_labels_left_aside_change_neither_pixels_nor_groups(tmp_path):
    root = write_folder(tmp_path / "pets", {"cat": 30, "ant": 20})
    aside, whole = load(root, Reading(part="all", decoding=ASIDE)), load(root, Reading(part="all"))
    assert aside.classes == (UNLABELLED,) and np.array_equal(aside.pixels, whole.pixels)
    assert len(load(root, Reading(part="all", decoding=ASIDE, only=("cat",)))) == 30
    stored = [list(stored_pictures(root, Reading(decoding=one))) for one in (ASIDE, Decoding())]
    assert all(np.array_equal(one, other) for one, other in zip(*stored, strict=True)), "the ledger knows them again"
    assert (
        load("digits", Reading(decoding=ASIDE)).classes
        == load("glyphs", Reading(part="all", decoding=ASIDE)).classes
        == (UNLABELLED,)
    )


def test_folders_are_persons_where_labels_are_left_aside(tmp_path):
    root = write_folder(tmp_path / "scans", {"ann": 3, "bob": 2})
    result = load(root, Reading(part="all", group="folder", decoding=ASIDE))
    assert result.groups.tolist() == [group_number("ann")] * 3 + [group_number("bob")] * 2
    assert result.classes == (UNLABELLED,) == describe(root, Reading(group="folder", decoding=ASIDE)).classes
    draw(np.random.default_rng(0)).save(root / "loose.png")
    with refused("loose.png' lies in no folder of a group"):
        load(root, Reading(group="folder", decoding=ASIDE))


def test_a_column_that_was_named_must_be_there(tmp_path):
    for source in (in_a_table(tmp_path / "one"), in_parquet(tmp_path / "two")):
        with refused("has no column 'kind'", "data.columns.label"):
            load(source, Reading(columns=Columns(label="kind")))


def test_labels_in_some_parts_only_are_refused(tmp_path):
    flat(tmp_path / "folder" / "train", 10)
    write_folder(tmp_path / "folder" / "test", {"a": 2})
    with refused("splits with labels and splits without"):
        load(tmp_path / "folder")
    np.savez(tmp_path / "x.npz", train_images=PIXELS, test_images=PIXELS, train_labels=np.zeros(40, int))
    with refused("only some splits", "have labels"):
        load(tmp_path / "x.npz")
    write(tmp_path / "tables" / "train.parquet", rows(6))
    write(tmp_path / "tables" / "test.parquet", [{"image": row["image"]} for row in rows(6)], names=None)
    with refused("only some files", "have labels"):
        load(tmp_path / "tables")
    in_idx(tmp_path / "idx")
    write_idx(tmp_path / "idx" / "train-labels-idx1-ubyte", np.zeros(30))
    with refused("t10k-images-idx3-ubyte' has no labels beside it"):
        load(tmp_path / "idx")
