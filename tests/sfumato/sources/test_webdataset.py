"""Folders of WebDataset's shards, as that library writes them and as others do."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from sfumato import sources
from sfumato.errors import BadInput
from sfumato.images import picture, save_png
from sfumato.sources import Reading
from tests.examples import picture_set

ALL = Reading("all")


def png(number: int) -> bytes:
    save_png(out := io.BytesIO(), picture(picture_set().pixels[number]))
    return out.getvalue()


def write_shard(path: Path, files: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_shards_of_the_library_itself_are_read(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    images = picture_set()
    for shard in (0, 1):
        with webdataset.TarWriter(str(tmp_path / f"train-{shard:05d}.tar")) as tar:
            for number in range(shard, 6, 2):
                pixels = images.pixels[number, 0]
                tar.write({"__key__": f"{number:06d}", "png": pixels, "cls": int(images.labels[number])})
    read = sources.load(tmp_path, ALL)
    assert read.classes == ("0", "1") and read.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(read.pixels[:3], images.pixels[::2])


def test_splits_names_and_folders_inside_a_shard(tmp_path):
    write_shard(
        tmp_path / "train-0.tar",
        {"a/0.png": png(0), "a/0.json": b'{"class": "cat"}', "b/0.png": png(1), "b/0.json": b'{"class": "dog"}'},
    )
    write_shard(
        tmp_path / "test-0.tar",
        {"1.PNG": png(2), "1.txt": b"a word", "1.json": b'{"class": "cat"}', "readme.md": b"words"},
    )
    train, test = (sources.load(tmp_path, Reading(part)) for part in ("train", "test"))
    assert (len(train), len(test)) == (2, 1) and train.classes == test.classes == ("cat", "dog")
    assert sources.describe(tmp_path, Reading("train")).whole.parts


def test_without_labels_all_is_one_class(tmp_path):
    write_shard(tmp_path / "0.tar", {"0.png": png(0), "1.png": png(1)})
    assert sources.load(tmp_path, ALL).classes == (sources.UNLABELLED,)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700])


def lead_out(path: Path) -> None:
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


@pytest.mark.parametrize(
    ("files", "harm", "words"),
    [
        ({"0.png": b"no picture"}, None, r"0\.tar\[0\].* is corrupt"),
        ({"0.png": png(0), "0.cls": b"\x00"}, None, "record '0' without a class"),
        ({"0.png": png(0), "0.json": b"{"}, None, "record '0' without a class"),
        ({"0.txt": b"words"}, None, "hold no pictures"),
        ({"0.png": png(0), "1.png": png(1)}, cut, "is a damaged shard"),
        ({"0.png": png(0)}, lead_out, "cannot leave"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, files, harm, words):
    path = write_shard(tmp_path / "scans" / "0.tar", files)
    if harm:
        harm(path)
    with pytest.raises(BadInput, match=rf"^[^\n]*{words}[^\n]*$"):
        sources.load(tmp_path / "scans", ALL)


def test_shards_have_no_groups(tmp_path):
    write_shard(tmp_path / "0.tar", {"0.png": png(0)})
    with pytest.raises(BadInput, match="data.group='patient' is not for"):
        sources.load(tmp_path, Reading("all", group="patient"))
