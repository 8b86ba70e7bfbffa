"""NPZ files: what comes out, and every way in which they can be wrong; nothing in them is ever run."""

import os
import zipfile

import numpy as np
import pytest

from sfumato.errors import BadInput
from sfumato.sources import Reading, describe, load, npz, source_digest
from tests.sfumato.sources.writing import refused, write_mnist_like

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (40, 6, 5), dtype=np.uint8)
LABELS = np.arange(40) % 3 + 4


def write(path, **arrays):
    np.savez_compressed(path, **({"images": PIXELS, "labels": LABELS} | arrays))
    return path


@pytest.mark.parametrize("shape", [(40, 6, 5), (40, 6, 5, 1)])
def test_grey_images_and_label_values_as_classes(tmp_path, shape):
    path = write(tmp_path / "a.npz", images=PIXELS.reshape(shape))
    facts, loaded = describe(path, Reading(part="all")), load(path, Reading(part="all"))
    assert np.array_equal(loaded.pixels[:, 0], PIXELS) and loaded.labels[:4].tolist() == [0, 1, 2, 0]
    assert facts.classes == loaded.classes == ("4", "5", "6")
    assert (facts.records, facts.channels, facts.height, facts.width) == (40, 1, 6, 5)
    train, test = load(path), load(path, Reading(part="test"))
    assert len(train) + len(test) == 40 and len(test)


def test_colour_images_and_names(tmp_path):
    images = RNG.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    path = write(tmp_path / "a.npz", images=images, labels=np.arange(6) % 2, classes=np.array(["cat", "dog", "eel"]))
    loaded = load(path, Reading(part="all"))
    assert np.array_equal(loaded.pixels.transpose(0, 2, 3, 1), images)
    assert loaded.classes == describe(path).classes == ("cat", "dog", "eel")


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (0.0, 255.0)])
def test_floats_with_a_stated_range_are_the_same_picture(tmp_path, low, high):
    floats = (PIXELS / 255 * (high - low) + low).astype(np.float32)
    path = write(tmp_path / "a.npz", images=floats, range=np.array([low, high]))
    assert np.array_equal(load(path, Reading(part="all")).pixels[:, 0], PIXELS)
    assert source_digest(path) == source_digest(write(tmp_path / "b.npz"))


def test_description_reads_no_pixel(tmp_path, monkeypatch):
    read = npz.array
    monkeypatch.setattr(npz, "array", lambda a, name, p: pytest.fail("read") if name == "images" else read(a, name, p))
    assert describe(write(tmp_path / "a.npz"), Reading(part="all")).records == 40


class Trap:
    """Would make a folder if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["images", "labels", "classes"])
def test_pickles_are_refused_and_not_run(tmp_path, name):
    path = write(tmp_path / "a.npz", **{name: np.array([Trap(tmp_path / "sprung")] * 40, dtype=object)})
    for read in (describe, load, source_digest):
        with refused("a.npz", f"'{name}'", "Python objects", "plain numbers"):
            read(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": PIXELS[0]}, ("[6, 5]", "[n, h, w]")),
        ({"images": PIXELS.reshape(20, 2, 6, 5)}, ("[20, 2, 6, 5]", "[n, h, w, 1 or 3]")),
        ({"images": PIXELS[:0]}, ("[0, 6, 5]",)),
        ({"images": PIXELS.astype(np.int32)}, ("int32", "range=[low, high]")),
        ({"images": np.asfortranarray(PIXELS)}, ("column order", "ascontiguousarray")),
        ({"images": PIXELS / 255}, ("float64 of unknown range", "range=[low, high]")),
        ({"images": PIXELS / 255, "range": np.array([1.0, 0.0])}, ("[1.0, 0.0]", "low < high")),
        ({"images": PIXELS / 255, "range": np.array([0.0, np.inf])}, ("inf", "finite")),
        ({"images": PIXELS / 255, "range": np.array([np.nan, 1.0])}, ("nan", "finite")),
        ({"images": PIXELS / 255, "range": np.array(1.0)}, ("'range'", "two finite numbers")),
        ({"labels": LABELS[:-1]}, ("40 images but 39 labels",)),
        ({"labels": LABELS[:, None].repeat(2, 1)}, ("[40, 2]", "whole numbers")),
        ({"labels": LABELS / 2}, ("float64", "whole numbers")),
        ({"classes": np.array(["a", "b"])}, ("names 2 classes", "from 4 to 6")),
        ({"classes": np.array(["a"] * 9)}, ("repeats a name",)),
        ({"classes": np.arange(9)}, ("one list of texts",)),
        ({"labels": LABELS - 5, "classes": np.array(list("abc"))}, ("from -1 to 1",)),
    ],
)
def test_wrong_arrays_are_refused_before_any_pixel_is_read(tmp_path, arrays, words):
    with refused("a.npz", *words):
        describe(write(tmp_path / "a.npz", **arrays))


@pytest.mark.parametrize("wrong", [1.5, -0.1, np.nan])
def test_values_outside_the_stated_range_are_named(tmp_path, wrong):
    floats = PIXELS / 255
    floats[7, 0, 0] = wrong
    with refused("a.npz[7]", "outside its range [0, 1]"):
        load(write(tmp_path / "a.npz", images=floats, range=np.array([0, 1])), Reading(part="all"))


def test_sixteen_bits_with_their_range_are_brought_to_eight(tmp_path):
    deep = PIXELS.astype(np.uint16) * 16
    np.savez(tmp_path / "a.npz", images=deep, labels=LABELS, range=np.array([0, 255 * 16]))
    np.savez(tmp_path / "b.npz", images=PIXELS, labels=LABELS)
    one, other = (load(tmp_path / name, Reading(part="all")).pixels for name in ("a.npz", "b.npz"))
    assert np.array_equal(one, other)


def test_missing_images_are_named(tmp_path):
    np.savez(tmp_path / "a.npz", labels=LABELS)
    with refused("a.npz", "no array 'images'", "numpy.savez"):
        describe(tmp_path / "a.npz")


def test_damaged_files(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, images=PIXELS.repeat(20, 1).repeat(20, 2), labels=LABELS)
    whole = path.read_bytes()
    for content in (b"", b"no archive", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with refused("a.npz' is corrupt or cut off", "make it again"):
            describe(path)
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1  # in the pixels: the checksum tells
    path.write_bytes(changed)
    assert describe(path, Reading(part="all")).records == 40
    with refused("a.npz' is corrupt or cut off"):
        load(path)


def test_a_header_that_promises_more_than_there_is(tmp_path):
    path = write(tmp_path / "a.npz")
    with zipfile.ZipFile(path) as archive:
        images = bytearray(archive.read("images.npy"))
    images = images.replace(b"(40, 6, 5)", b"(40, 9, 5)")
    with zipfile.ZipFile(path, "w") as archive, zipfile.ZipFile(write(tmp_path / "b.npz")) as other:
        archive.writestr("images.npy", bytes(images))
        archive.writestr("labels.npy", other.read("labels.npy"))
    with refused("a.npz", "not as long as its header says"):
        describe(path)


# Groups

PEOPLE = np.arange(40) // 4


@pytest.mark.parametrize(
    ("arrays", "group", "groups"),
    [
        ({"groups": PEOPLE}, "", 10),
        ({"groups": PEOPLE}, "group", 10),
        ({"groups": PEOPLE}, "groups", 10),
        ({"group": PEOPLE}, "", 10),
        ({"groups": np.array([f"person {n}" for n in PEOPLE])}, "", 10),
        ({"patient": PEOPLE // 2, "groups": PEOPLE}, "patient", 5),
        ({"groups": PEOPLE}, "none", None),
        ({}, "", None),
    ],
    ids=["groups", "as-filled-in", "by-name", "group", "texts", "another", "left-out", "none"],
)
def test_an_array_says_which_images_belong_together(tmp_path, arrays, group, groups):
    path = write(tmp_path / "a.npz", **arrays)
    facts, loaded = describe(path, Reading(part="all", group=group)), load(path, Reading(part="all", group=group))
    assert facts.groups == groups and (loaded.groups is None) == (groups is None)
    if groups:
        named = arrays.get(group, arrays.get("groups", arrays.get("group")))
        same = loaded.groups[:, None] == loaded.groups[None]
        assert np.array_equal(same, named[:, None] == named[None])
        train, test = (load(path, Reading(part=part, group=group)) for part in ("train", "test"))
        assert not set(train.groups) & set(test.groups) and len(train) + len(test) == 40, "a group is split nowhere"
    assert (source_digest(path, Reading(group=group)) == source_digest(path)) == (groups is None)


@pytest.mark.parametrize(
    ("arrays", "group", "words"),
    [
        ({}, "patient", "has no array 'patient', as data.group=patient has it"),
        ({}, "groups", "has no array 'groups'"),
        (
            {"groups": PEOPLE[:39]},
            "",
            "'groups' in .* is int64 .39.; use whole numbers or texts, one for each of 40 images",
        ),
        ({"groups": PEOPLE.astype(float)}, "", "is float64"),
        ({"groups": PEOPLE[:, None]}, "", r"is int64 \[40, 1\]"),
        ({"groups": np.array([""] * 40)}, "", "has an empty or unprintable name"),
        ({"groups": np.array(["a\n"] * 40)}, "", "has an empty or unprintable name"),
        ({"groups": np.array([None] * 40, dtype=object)}, "", "holds Python objects"),
    ],
    ids=["missing", "missing-usual", "too-few", "floats", "two-dimensions", "empty", "unprintable", "objects"],
)
def test_groups_that_cannot_be_meant_are_one_line(tmp_path, arrays, group, words):
    with pytest.raises(BadInput, match=words) as error:
        describe(write(tmp_path / "a.npz", **arrays), Reading(group=group))
    assert "\n" not in str(error.value)


def test_idx_files_have_no_groups(tmp_path):
    write_mnist_like(tmp_path / "mnist", end="")
    with pytest.raises(BadInput, match="IDX files have no place for groups: use NPZ or a table"):
        describe(tmp_path / "mnist", Reading(group="person"))
    with pytest.raises(BadInput, match="'digits' is none of these; leave it out"):
        describe("digits", Reading(group="person"))
    assert describe(tmp_path / "mnist", Reading(group="")).groups is None


def in_splits(path, *, test="test", group="", **changes):
    """As MedMNIST has it: labels `[n, 1]`, and three splits."""
    rng, arrays = np.random.default_rng(0), {}
    for split, count in (("train", 12), ("val", 6), (test, 4)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, 5, 7), dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count, dtype=np.uint8) % 2)[:, None]
        if group:
            arrays[f"{split}_{group}"] = np.arange(count) // 2 + 100 * len(arrays)
    np.savez_compressed(path, **{name: value for name, value in (arrays | changes).items() if value is not None})
    return path


def test_splits_as_medmnist_has_them(tmp_path):
    path = in_splits(tmp_path / "x.npz", classes=np.array(["normal", "ill"]))
    for part, count in (("train", 12), ("test", 4), ("all", 22)):
        reported, result = describe(path, Reading(part=part)), load(path, Reading(part=part))
        assert reported.records == len(result) == count and result.classes == ("normal", "ill")
        assert result.pixels.shape[1:] == (1, 5, 7) and result.labels.tolist()[:4] == [0, 1, 0, 1]
    with np.load(path) as archive:
        assert np.array_equal(load(path, Reading(part="test")).pixels[:, 0], archive["test_images"])
    two = in_splits(tmp_path / "two.npz", test="other")
    assert load(two, Reading(part="test")).pixels.shape[0] == 6, "the validation images judge where no others do"
    grouped = in_splits(tmp_path / "g.npz", group="groups")
    assert (
        describe(grouped, Reading(group="")).groups == 6
        and describe(grouped, Reading(part="all", group="")).groups == 11
    )
    assert load(grouped, Reading(part="train", group="none")).groups is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test_labels": np.zeros((4, 3), np.uint8)}, ["'test_labels'", "[4, 3]", "one for each image"]),
        ({"val_labels": None}, ["only some splits", "have labels"]),
        ({"val_labels": np.zeros(5, np.uint8)}, ["6 val_images but 5 val_labels"]),
        ({"train_images": np.zeros((12, 5, 7))}, ["'train_images'", "unknown range"]),
        ({"train_groups": np.zeros(12, int)}, ["only some splits", "data.group=none"]),
    ],
)
def test_splits_that_cannot_be_meant_are_one_line(tmp_path, changes, words):
    path = in_splits(tmp_path / "x.npz", **changes)
    with refused(*words):
        describe(path, Reading(group=""))


def test_the_xrays_of_medmnist(data):
    path = data / "pneumoniamnist" / "pneumoniamnist.npz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    counts = [len(load(path, Reading(part=part))) for part in ("train", "test", "all")]
    assert counts == [3_882, 624, 5_030] and describe(path).classes == ("0", "1")
