"""Tables of images: what they name, and every way in which they can be wrong."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from sfumato.config import Columns
from sfumato.sources import Reading, column_of_persons, describe, fingerprint, load
from sfumato.sources.catalogue import group_number
from tests.sfumato.sources.writing import draw, refused

ROWS = [
    {"path": "a/1.png", "label": "cat", "group": "ann"},
    {"path": "a/2.png", "label": "dog", "group": "bob"},
    {"path": "b.png", "label": "cat", "group": "ann"},
]


def pictures(root):
    """The pictures of `ROWS`."""
    (root / "a").mkdir(parents=True, exist_ok=True)
    for at, row in enumerate(ROWS):
        draw(np.random.default_rng(at)).save(root / row["path"])
    return root


def write(path, rows=ROWS):
    """A table of any kind, with its pictures."""
    pictures(path.parent)
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_all_kinds_of_tables(tmp_path, suffix):
    table = write(tmp_path / f"list{suffix}")
    result, reported = load(table, Reading(part="all", group="")), describe(table, Reading(part="all", group=""))
    assert result.classes == ("cat", "dog") and result.labels.tolist() == [0, 1, 0]
    assert np.array_equal(result.pixels[2, 0], np.asarray(Image.open(tmp_path / "b.png")))
    ann, bob = group_number("ann"), group_number("bob")
    assert result.groups.tolist() == [ann, bob, ann] and (reported.records, reported.groups) == (3, 2)
    assert load(table, Reading(part="all", group="none")).groups is None


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_column_that_is_named_like_persons_is_found(tmp_path, suffix):
    rows = [{"path": row["path"], "label": row["label"], "Patient ID": row["group"]} for row in ROWS]
    table = write(tmp_path / f"list{suffix}", rows)
    assert column_of_persons(str(table), Columns()) == "Patient ID"
    assert column_of_persons(str(table), Columns(label="Patient ID")) == ""
    assert column_of_persons(str(write(tmp_path / f"grouped{suffix}")), Columns()) == ""
    assert column_of_persons(str(tmp_path), Columns()) == "" == column_of_persons(str(tmp_path / "none"), Columns())
    table.rename(tmp_path / f"metadata{suffix}")
    assert column_of_persons(str(tmp_path), Columns()) == "Patient ID"


def test_a_column_of_persons_is_found_below_an_empty_line(tmp_path):
    rows = [{"path": row["path"], "label": row["label"], "Patient ID": row["group"]} for row in ROWS]
    table = write(tmp_path / "list.jsonl", rows)
    table.write_bytes(b"\n" + table.read_bytes())
    assert len(load(table, Reading(part="all"))) == len(ROWS)
    assert column_of_persons(str(table), Columns()) == "Patient ID"


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_folder_with_metadata_is_one_too(tmp_path, suffix):
    rows = [{"file_name": row["path"], "label": number} for number, row in enumerate(ROWS)]
    write(tmp_path / "x" / "train" / f"metadata{suffix}", rows)
    result = load(tmp_path / "x", Reading(part="all"))
    assert result.classes == ("0", "1", "2") and result.groups is None
    assert load(tmp_path / "x" / "train", Reading(part="all")).labels.tolist() == [0, 1, 2]
    (tmp_path / "x" / "train" / "metadata.other").write_text("")
    write(tmp_path / "x" / "train" / ("metadata.csv" if suffix != ".csv" else "metadata.jsonl"), rows)
    with refused("holds both", "keep one"):
        describe(tmp_path / "x")


def test_columns_by_other_names(tmp_path):
    rows = [{"scan": row["path"], "finding": row["label"], "patient": row["group"]} for row in ROWS]
    table = write(tmp_path / "list.csv", rows)
    columns = Columns(path="scan", label="finding")
    assert describe(table, Reading(part="all", columns=columns, group="patient")).groups == 2
    assert describe(table, Reading(part="all", columns=columns, group="")).groups is None
    with refused("has no column 'path'", "'scan', 'finding', 'patient'", "data.columns.path"):
        describe(table)
    with refused("has no column 'person'", "data.group"):
        describe(table, Reading(columns=columns, group="person"))


@pytest.mark.parametrize(
    "name", ["../secret.png", "a/../../secret.png", "{outside}", "/etc/passwd", "a\0.png", "", "."]
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_paths_cannot_leave_the_folder(tmp_path, name, suffix):
    outside = tmp_path / "secret.png"
    draw(np.random.default_rng(0)).save(outside)
    row = {**ROWS[0], "path": name.format(outside=outside)}
    if "\0" in name and suffix == ".csv":
        suffix = ".jsonl"
    table = write(tmp_path / "x" / f"list{suffix}", [*ROWS, row])
    with refused("row 4 of", "list" + suffix):
        describe(table)


def test_links_out_of_the_folder_are_refused_and_others_followed(tmp_path):
    draw(np.random.default_rng(9)).save(tmp_path / "secret.png")
    table = write(tmp_path / "x" / "list.csv", [*ROWS, {"path": "link.png", "label": "cat", "group": "ann"}])
    link = tmp_path / "x" / "link.png"
    link.symlink_to(tmp_path / "secret.png")
    with refused("row 4 of", "'link.png', a link out of its folder"):
        describe(table)
    link.unlink()
    (tmp_path / "x" / "c.png").write_bytes((tmp_path / "secret.png").read_bytes())
    link.symlink_to("c.png")
    assert describe(table, Reading(part="all")).records == 4
    (tmp_path / "y").symlink_to(tmp_path)
    (tmp_path / "x" / "up").symlink_to(tmp_path)
    write(table, [{"path": "up/secret.png", "label": "cat", "group": "ann"}])
    with refused("row 1 of", "a link out of its folder"):
        describe(table)


def test_a_picture_is_one_record(tmp_path):
    table = write(tmp_path / "list.csv", [*ROWS, {**ROWS[0], "path": "a/./1.png"}])
    with refused("row 4 of", "again, as row 1 does"):
        describe(table)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": "a/9.png"}, ["row 2 of", "'a/9.png', which is no file"]),
        ({"path": "a"}, ["row 2 of", "'a', which is no file"]),
        ({"path": "a/" + 300 * "x"}, ["row 2 of", "which is no file"]),
        ({"label": " "}, ["row 2 of", "'' in the column 'label'"]),
        ({"label": "a\x07"}, ["row 2 of", "in the column 'label'"]),
        ({"group": ""}, ["row 2 of", "'' in the column 'group'"]),
    ],
)
def test_wrong_rows_are_named(tmp_path, change, words):
    table = write(tmp_path / "list.csv", [ROWS[0], {**ROWS[1], **change}, ROWS[2]])
    with refused(*words):
        describe(table, Reading(group=""))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00 no table", b"[1, 2]\n", b"{", b"path,label\n"])
def test_damaged_tables_are_named(tmp_path, suffix, content):
    table = tmp_path / f"list{suffix}"
    table.write_bytes(content)
    with refused(f"list{suffix}'"):
        describe(table)


def test_short_rows_are_named(tmp_path):
    table = write(tmp_path / "list.csv")
    table.write_text("path,label,group\na/1.png,cat\n")
    with refused("row 1 of", "'group'"):
        describe(table, Reading(group=""))


def test_a_row_of_more_values_than_columns_is_no_cut_label(tmp_path):
    table = write(tmp_path / "list.csv")
    table.write_text("path,label\na/1.png,cat\na/2.png,benign, left\n")
    with refused("row 2 of", "has 3 values for 2 columns", "in quotes"):
        describe(table)
    table.write_text('path,label\na/1.png,cat\na/2.png,"benign, left"\n')
    assert set(describe(table).classes) == {"cat", "benign, left"}


def test_a_column_that_stands_twice_is_refused(tmp_path):
    table = write(tmp_path / "list.csv")
    table.write_text("path,label,label\na/1.png,cat,dog\n")
    with refused("has the column 'label' twice", "keep one of them"):
        describe(table)
    table = write(tmp_path / "list.jsonl")
    table.write_text('{"path": "a/1.png", "label": "cat", "label": "dog"}\n')
    with refused("the key 'label' stands twice"):
        describe(table)


def test_empty_columns_and_values_behind_the_last_one_are_no_mistake(tmp_path):
    table = write(tmp_path / "list.csv")
    table.write_text("path,label,,\na/1.png,cat,,\na/2.png,dog,,,\n")
    assert set(describe(table).classes) == {"cat", "dog"}


def test_a_label_is_one_name(tmp_path):
    table = write(tmp_path / "list.jsonl", [ROWS[0], {**ROWS[1], "label": ["cat", "dog"]}])
    with refused("row 2 of", "['cat', 'dog'] in the column 'label'", "write one name"):
        describe(table)


def test_a_damaged_picture_is_named(tmp_path):
    table = write(tmp_path / "list.csv")
    (tmp_path / "a" / "2.png").write_bytes(b"no picture")
    with refused("a/2.png' is corrupt or cut off"):
        load(table, Reading(part="all"))


def test_a_fingerprint_changes_with_a_picture(tmp_path):
    table = write(tmp_path / "list.csv")
    before = fingerprint(table)
    draw(np.random.default_rng(7), 9, 9).save(tmp_path / "b.png")
    assert fingerprint(table) != before


@pytest.mark.parametrize(("mark", "named"), [(";", "';'"), ("\t", "'\\\\t'"), ("|", "'|'")])
def test_other_marks_between_columns_are_named(tmp_path, mark, named):
    (tmp_path / "list.csv").write_text(f"path{mark}label\na.png{mark}cat\n")
    with refused("save the table with commas between its columns", named):
        describe(tmp_path / "list.csv", Reading())


def test_a_table_in_another_encoding_says_which_one_it_takes(tmp_path):
    (tmp_path / "list.csv").write_bytes("path,label\nä.png,cat\n".encode("utf-16"))
    with refused("damaged or no csv", "save it as UTF-8"):
        describe(tmp_path / "list.csv", Reading())
