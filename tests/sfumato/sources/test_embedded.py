"""Parquet with the pictures inside: in splits and out of them, with and without names, and every way in which it can be wrong."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from sfumato.config import Columns
from sfumato.errors import Unnamed
from sfumato.privacy.door import PrivateSet, identify
from sfumato.sources import Reading, describe, fingerprint, inspect, load, source_digest, stored_pictures
from sfumato.sources.catalogue import group_number
from tests.sfumato.sources.writing import draw, refused

NAMES = ["cat", "ant", "owl"]


def packed(seed=0, kind="PNG", **shape):
    """A picture as a file holds it."""
    file = io.BytesIO()
    draw(np.random.default_rng(seed), **shape).save(file, kind)
    return file.getvalue()


def rows(count=6, first=0, **shape):
    """Rows as Hugging Face writes them, of three classes and two groups."""
    return [
        {
            "image": {"bytes": packed(first + at, **shape), "path": f"/secret/{at}.png"},
            "label": at % 3,
            "group": "ann" if at % 2 else "bob",
        }
        for at in range(count)
    ]


def write(path, table, names=NAMES):
    """A file of these rows; `names` go into the metadata of its schema."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = pa.Table.from_pylist(table)
    if names is not None:
        reported = {
            "info": {"features": {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}}
        }
        made = made.replace_schema_metadata({"huggingface": json.dumps(reported)})
    parquet.write_table(made, path, row_group_size=4)
    return path


def test_a_file_names_its_classes_and_groups(tmp_path):
    table = write(tmp_path / "pets.parquet", rows())
    reported, result = describe(table, Reading(part="all", group="")), load(table, Reading(part="all", group=""))
    assert (reported.classes, reported.records, reported.groups) == (tuple(NAMES), 6, 2)
    assert (reported.channels, reported.height, reported.width) == (1, 8, 8)
    assert result.classes == tuple(NAMES) and result.labels.tolist() == [0, 1, 2] * 2
    assert result.groups.tolist() == [group_number(name) for name in ("bob", "ann") * 3]
    assert np.array_equal(result.pixels[4, 0], np.asarray(Image.open(io.BytesIO(packed(4)))))
    assert load(table, Reading(part="all")).groups is None
    first, second = load(table, Reading(held_out=0.5)), load(table, Reading(held_out=0.5, part="test"))
    assert len(first) + len(second) == 6 and describe(table, Reading(held_out=0.5)).records == 3


@pytest.mark.parametrize(
    "places",
    [
        ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet"],
        ["train.parquet", "train_b.parquet", "validation.parquet"],
        ["train/0000.parquet", "train/0001.parquet", "valid/0000.parquet"],
        ["train/0000.parquet", "train/0001.parquet", "test/0000.parquet", "val/0000.parquet"],
    ],
)
def test_a_folder_in_splits(tmp_path, places):
    for at, place in enumerate(places):
        write(tmp_path / "set" / place, rows(first=100 * at))
    (tmp_path / "set" / "README.md").write_text("---\n")
    counts = {
        part: (describe(tmp_path / "set", Reading(part=part)).records, len(load(tmp_path / "set", Reading(part=part))))
        for part in ("train", "test", "all")
    }
    assert counts == {"train": (12, 12), "test": (6, 6), "all": (6 * len(places),) * 2}
    assert len(list(stored_pictures(tmp_path / "set"))) == 6 * len(places)


def test_a_folder_without_splits_is_held_out_by_hash(tmp_path):
    write(tmp_path / "set" / "0000.parquet", rows(40))
    write(tmp_path / "set" / "0001.parquet", rows(40, first=40))
    train, test = (load(tmp_path / "set", Reading(part=part)) for part in ("train", "test"))
    assert len(train) + len(test) == 80 and 4 < len(test) < 32


def test_the_digest_is_that_of_the_same_pictures_in_class_folders(tmp_path):
    table = write(tmp_path / "pets.parquet", rows())
    for at, row in enumerate(rows()):
        place = tmp_path / "folders" / NAMES[row["label"]] / f"{at}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(row["image"]["bytes"])
    assert source_digest(table) == source_digest(tmp_path / "folders") != source_digest(table, Reading(group=""))
    before = fingerprint(table)
    write(table, rows(first=9))
    assert fingerprint(table) != before


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([10, 9, 2], ("2", "9", "10")), (["b", "a", "b"], ("a", "b")), (["10", "9", "x"], ("10", "9", "x"))],
)
def test_classes_without_names_are_the_values(tmp_path, labels, classes):
    table = [row | {"label": label} for row, label in zip(rows(3), labels, strict=True)]
    result = load(write(tmp_path / "pets.parquet", table, names=None), Reading(part="all"))
    assert result.classes == classes and [result.classes[label] for label in result.labels] == [
        str(one) for one in labels
    ]


def test_other_columns_and_plain_bytes(tmp_path):
    table = [
        {"scan": row["image"]["bytes"], "finding": NAMES[row["label"]], "who": at} for at, row in enumerate(rows())
    ]
    place = write(tmp_path / "pets.parquet", table, names=None)
    columns = Columns(path="scan", label="finding")
    assert describe(place, Reading(part="all", columns=columns, group="who")).groups == 6
    assert load(place, Reading(part="all", columns=columns)).classes == ("ant", "cat", "owl")
    with refused("has no column 'kind' of whole numbers or texts", "'finding' (string)", "data.columns.label"):
        load(place, Reading(part="all", columns=Columns(path="scan", label="kind")))
    with refused("has no column 'person'", "data.group"):
        load(place, Reading(part="all", columns=columns, group="person"))


def broken(change, names=NAMES):
    """Six rows, of which the fourth is spoiled."""
    table = rows()
    table[3] = table[3] | change
    return table, names


BAD = {
    "no picture": (broken({"image": {"bytes": None, "path": "/secret/3.png"}}), "without a picture", "with its path alone"),
    "half a picture": (broken({"image": {"bytes": packed()[:60], "path": ""}}), "corrupt or cut off", "replace or remove it"),
    "PostScript": (broken({"image": {"bytes": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "path": ""}}), "no kind of image"),
    "another size": (broken({"image": {"bytes": packed(width=9), "path": ""}}), "images differ in size", "data.size"),
    "a label too many": (broken({"label": 3}), "a label 3", "run from 0 to 2"),
    "a label of none": (broken({"label": -1}), "a label -1"),
    "no label": (broken({"label": None}), "a row whose 'label' is missing"),
    "a name twice": (broken({}, ["cat", "cat", "owl"]), "metadata that names the classes", "name each class once"),
    "names that are none": (broken({}, [1, 2, 3]), "name each class once"),
    "nothing": (([], NAMES), "has no"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_whatever_is_wrong_is_one_line_and_private_ones_name_nothing(tmp_path, kind):
    (table, names), *words = BAD[kind]
    schema = None if table else pa.schema({"image": pa.struct({"bytes": pa.binary()}), "label": pa.int64()})
    place = write(tmp_path / "hidden-name.parquet", table or rows(), names)
    if schema:
        parquet.write_table(pa.Table.from_pylist([], schema), place)
    with refused(*words, "hidden-name"):
        load(place, Reading(part="all"))
    if kind == "another size":
        return  # a digest takes pictures as they are
    with pytest.raises(Unnamed) as error:
        identify(PrivateSet(name="pets", source=str(place)))
    assert "hidden-name" not in str(error.value) and "secret" not in str(error.value) + error.value.internal
    assert "\n" not in str(error.value) and "hidden-name" in error.value.internal
    assert "a label 3" not in str(error.value) and "a label -1" not in str(error.value), "it is one record's"


def test_no_group_and_groups_in_some_files_alone(tmp_path):
    with refused("a row whose 'group' is missing"):
        load(write(tmp_path / "pets.parquet", broken({"group": None})[0]), Reading(part="all", group=""))
    write(tmp_path / "set" / "train.parquet", rows())
    write(tmp_path / "set" / "test.parquet", [{k: v for k, v in row.items() if k != "group"} for row in rows()])
    with refused("only some files", "'group'", "data.group=none"):
        load(tmp_path / "set", Reading(part="all", group=""))
    assert len(load(tmp_path / "set", Reading(part="all"))) == 12


def test_files_that_do_not_belong_together(tmp_path):
    write(tmp_path / "a" / "train.parquet", rows())
    write(tmp_path / "a" / "more.parquet", rows())
    with refused("more.parquet", "is of no split", "begin its name with train"):
        load(tmp_path / "a", Reading(part="all"))
    write(tmp_path / "b" / "train.parquet", rows())
    write(tmp_path / "b" / "test.parquet", rows(), ["owl", "cat", "ant"])
    with refused("name their classes differently"):
        load(tmp_path / "b", Reading(part="all"))
    (tmp_path / "b" / "test.parquet").write_bytes(b"PAR1 and nothing more")
    with refused("test.parquet", "damaged or no parquet", "make it again"):
        load(tmp_path / "b", Reading(part="all"))
    (tmp_path / "b" / "test.parquet").unlink()
    (tmp_path / "b" / "test.parquet").symlink_to(tmp_path / "a" / "train.parquet")
    with refused("is a link to", "cannot leave"):
        load(tmp_path / "b", Reading(part="all"))


def test_class_folders_beside_a_table_of_paths_stay_class_folders(tmp_path, folder):
    parquet.write_table(
        pa.Table.from_pylist([{"path": "x.png", "label": "a", "digest": b"123"}]), folder / "list.parquet"
    )
    assert load(folder, Reading(part="all")).classes == ("ant", "cat")


def test_a_check_tells_each_picture_that_cannot_be_read(tmp_path):
    table = rows()
    for at in (1, 4):
        table[at]["image"]["bytes"] = packed()[:60]
    result = inspect(write(tmp_path / "pets.parquet", table))
    assert len(result.labels) == 4 and len(result.broken) == 2 and "pets.parquet[4]" in result.broken[1]
    assert result.where[0] == "pets.parquet[0]" and set(result.kinds) == {"8x8 L"}


@pytest.fixture
def real(data):
    """Where the real data sets lie."""
    for name in ("tiny-imagenet-32", "wbc-64"):
        if not (data / name).is_dir():
            pytest.skip(f"no {name} in {data}")
    return data


def test_tiny_imagenet_and_the_blood_cells(real):
    tiny, cells = (describe(real / name, Reading(group="")) for name in ("tiny-imagenet-32", "wbc-64"))
    assert (tiny.records, len(tiny.classes), tiny.channels, tiny.height) == (100_000, 200, 3, 32)
    assert (cells.records, cells.groups, cells.classes[0], cells.height) == (9_957, 277, "EOSINOPHIL", 64)
    assert describe(real / "tiny-imagenet-32", Reading(part="test")).records == 10_000
    few = load(real / "wbc-64", Reading(part="test", group="", size=16, channels=1))
    assert few.pixels.shape == (2_487, 1, 16, 16) and len(set(few.groups.tolist())) > 10
