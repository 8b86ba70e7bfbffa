"""IDX files: what comes out, and every way in which they can be damaged."""

import gzip

import numpy as np
import pytest

from sfumato.sources import Reading, describe, idx, load
from tests.sfumato.sources.writing import refused, write_idx, write_mnist_like


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_with_a_test_part(tmp_path, end):
    root = write_mnist_like(tmp_path, end=end)
    train, test, whole = (load(root, Reading(part=part)) for part in ("train", "test", "all"))
    assert (len(train), len(test), len(whole)) == (30, 10, 40)
    assert train.classes == ("4", "5", "6") and test.labels[:4].tolist() == [0, 1, 2, 0]
    assert np.array_equal(whole.pixels, np.concatenate([train.pixels, test.pixels]))


def test_idx_without_a_test_part_is_split_by_hash(tmp_path):
    rng = np.random.default_rng(0)
    write_idx(tmp_path / "images-idx3-ubyte.gz", rng.integers(0, 256, (200, 5, 7)))
    write_idx(tmp_path / "labels-idx1-ubyte.gz", np.arange(200) % 2)
    (tmp_path / "classes.txt").write_text("alpha\nbeta\ngamma\n")
    train, test = load(tmp_path), load(tmp_path, Reading(part="test"))
    assert len(train) + len(test) == 200 and 20 <= len(test) <= 60
    assert train.classes == ("alpha", "beta", "gamma") and train.pixels.shape[1:] == (1, 5, 7)


def test_classes_of_both_parts_are_numbered_together(tmp_path):
    root = write_mnist_like(tmp_path)
    write_idx(root / "t10k-labels-idx1-ubyte.gz", np.full(10, 9))
    assert load(root, Reading(part="test")).labels.tolist() == [3] * 10
    assert describe(root).classes == ("4", "5", "6", "9")


@pytest.mark.parametrize("file", ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"])
def test_damaged_idx_files(tmp_path, file):
    path = write_mnist_like(tmp_path) / file
    packed = path.read_bytes()
    data = gzip.decompress(packed)
    kind = "images" if "images" in file else "labels"
    for content, words in (
        (packed[: len(packed) // 2], "corrupt or cut off"),
        (b"no gzip at all", "corrupt or cut off"),
        (packed[:-6] + bytes(6), "corrupt or cut off"),  # the checksum at the end
        (gzip.compress(b"\x00\x00\x0d\x03" + data[4:]), f"begins with 00000d03, but IDX {kind} begin with"),
        (gzip.compress(data[:6]), "cut off after 6 bytes"),
        (gzip.compress(data[:-1]), "holds only"),
        (gzip.compress(data + b"x"), "holds more"),
    ):
        path.write_bytes(content)
        with refused(file, words, "again"):
            load(tmp_path)


def test_a_header_that_promises_terabytes_reserves_none(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\x00\x00\x08\x03" + b"\xff" * 12 + b"\x00" * 100)
    with refused("promises", "holds only 100"):
        idx.read_idx(path, idx.IDX_IMAGES)


def test_idx_counts_have_to_agree(tmp_path):
    root = write_mnist_like(tmp_path)
    write_idx(root / "train-labels-idx1-ubyte.gz", np.arange(29))
    with refused("holds 30 images", "29 labels", "get both again"):
        describe(root)


def test_incomplete_idx_folders(tmp_path):
    root = write_mnist_like(tmp_path)
    (root / "train-labels-idx1-ubyte.gz").unlink()
    with refused("train-images-idx3-ubyte.gz' has no labels", "add train-labels-idx1-ubyte"):
        describe(root)
    (root / "train-images-idx3-ubyte.gz").unlink()
    with refused("has no training images", "add train-images-idx3-ubyte"):
        describe(root)
    write_mnist_like(root, train=0)
    with refused("train-images-idx3-ubyte.gz' holds 0 images"):
        describe(root)


def test_class_names_have_to_cover_the_labels(tmp_path):
    root = write_mnist_like(tmp_path)
    for text, words in (("a\nb\n", "labels go up to 6"), ("a\na\n", "repeats a name"), ("a\n\nb", "empty")):
        (root / "classes.txt").write_text(text)
        with refused("classes.txt", words):
            describe(root)
    (root / "classes.txt").write_bytes(b"\xff\xfe\xfa")
    with refused("classes.txt", "UTF-8"):
        describe(root)


def test_idx_links_may_not_leave_the_folder(tmp_path):
    root = write_mnist_like(tmp_path / "idx")
    outside = tmp_path / "outside.gz"
    (root / "train-images-idx3-ubyte.gz").rename(outside)
    (root / "train-images-idx3-ubyte.gz").symlink_to(outside)
    with refused("train-images-idx3-ubyte.gz' is a link", "cannot leave their folder"):
        describe(root)


def test_mnist(data):
    train, test = load(data / "mnist"), load(data / "mnist", Reading(part="test"))
    assert train.pixels.shape == (60000, 1, 28, 28) and len(test) == 10000
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4] and train.classes == tuple("0123456789")
    assert 33 < train.pixels.mean() < 34


def test_omniglot(data):
    letters = load(data / "omniglot", Reading(part="all"))
    facts = describe(data / "omniglot", Reading(part="all"))
    assert letters.pixels.shape == (4840, 1, 28, 28) == (facts.records, facts.channels, facts.height, facts.width)
    assert len(letters.classes) == 242 and letters.classes[0] == "Balinese/character01"
    assert load(data / "omniglot", Reading(part="all", size=8)).pixels.shape == (4840, 1, 8, 8)
