"""Folders of class folders: what comes out, and every way in which they can be wrong."""

import gzip
import os
import shutil
import warnings

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageFile

from sfumato.config import Decoding
from sfumato.images import to_unit
from sfumato.sources import Reading, describe, inspect, left_out, load, source_digest
from sfumato.sources.catalogue import group_number
from sfumato.sources.pictures import reshape
from tests.sfumato.sources.writing import draw, refused, write_folder, write_mnist_like


def test_a_folder_of_class_folders(folder):
    (folder / ".git").mkdir()
    (folder / "cat" / ".DS_Store").write_bytes(b"x")
    (folder / "cat" / "notes.txt").write_text("not a picture")
    pets = load(folder, Reading(part="all"))
    assert pets.classes == ("ant", "cat") and np.bincount(pets.labels).tolist() == [20, 30]
    assert np.array_equal(pets.pixels[0, 0], np.asarray(Image.open(folder / "ant" / "000.png")))


def test_what_is_left_out_is_counted_without_a_name(folder):
    assert left_out(folder, Reading()) == left_out("digits", Reading()) == ""
    (folder / "cat" / "deeper").mkdir()
    shutil.copyfile(folder / "cat" / "000.png", folder / "cat" / "deeper" / "secret.png")
    assert left_out(folder, Reading()) == "1 picture that lies beside or below the class folders"
    shutil.copyfile(folder / "cat" / "000.png", folder / "loose.png")
    for name in ("notes.txt", "more.txt", "list.csv", ".hidden.txt", "README.md", "Thumbs.db"):
        (folder / "cat" / name).write_text("x")
    text = left_out(folder, Reading())
    assert text == "2 pictures that lie beside or below the class folders, 2 files .txt, 1 file .csv"
    persons = write_folder(folder.parent / "persons", {"ill/ann": 2, "ill/bob": 1, "well/cid": 1})
    assert left_out(persons, Reading(group="folder")) == "" and left_out(folder.parent / "none", Reading()) == ""
    (folder / "metadata.csv").write_text("file_name,label\ncat/000.png,cat\n")
    assert left_out(folder, Reading()).startswith("51 pictures that lie"), "the table is used, and its one picture"


@pytest.mark.parametrize("suffix", [".png", ".PNG", ".bmp", ".tif", ".tiff", ".jpg", ".jpeg", ".ppm"])
@pytest.mark.parametrize("channels", [1, 3])
def test_all_formats(tmp_path, suffix, channels):
    root = write_folder(tmp_path / "x", {"a": 2, "b": 1}, suffix, channels)
    assert load(root, Reading(part="all")).pixels.shape == (3, channels, 8, 8)


@pytest.mark.parametrize("suffix", [".webp", ".gif"])
def test_formats_that_know_no_grey_are_colour(tmp_path, suffix):
    root = write_folder(tmp_path / "x", {"a": 2, "b": 1}, suffix, 1)
    assert load(root, Reading(part="all")).pixels.shape == (3, 3, 8, 8)
    assert load(root, Reading(part="all", channels=1)).pixels.shape == (3, 1, 8, 8)


def test_palettes_are_colour_and_bits_are_grey(tmp_path):
    (tmp_path / "a").mkdir()
    picture = draw(np.random.default_rng(0))
    picture.convert("P").save(tmp_path / "a" / "palette.png")
    assert load(tmp_path, Reading(part="all")).pixels.shape == (1, 3, 8, 8)
    picture.convert("1").save(tmp_path / "a" / "palette.png")
    bits = load(tmp_path, Reading(part="all")).pixels
    assert bits.shape == (1, 1, 8, 8) and set(np.unique(bits)) == {0, 255}


def test_size_and_channels_are_changed_when_asked(folder):
    draw(np.random.default_rng(1), 16, 12, 3).save(folder / "cat" / "zz.png")
    assert load(folder, Reading(part="all", size=6, channels=1)).pixels.shape == (51, 1, 6, 6)
    assert load(folder, Reading(part="all", size=20, channels=3)).pixels.shape == (51, 3, 20, 20)


def test_shrinking_averages_areas():
    pixels = np.kron(np.array([[0, 200], [100, 40]], np.uint8), np.ones((3, 3), np.uint8))[:, :, None]
    assert reshape(pixels, 2, None)[:, :, 0].tolist() == [[0, 200], [100, 40]]


def test_mixed_sizes_name_the_two_files(folder):
    draw(np.random.default_rng(1), height=9, width=7).save(folder / "ant" / "005.png")
    with refused("ant/000.png' is 8x8", "ant/005.png' is 7x9", "data.size="):
        load(folder, Reading(part="all"))


def test_mixed_channels_name_the_two_files(folder):
    draw(np.random.default_rng(1), channels=3).save(folder / "ant" / "005.png")
    with refused("ant/000.png' is grey", "ant/005.png' is colour", "data.channels="):
        load(folder, Reading(part="all"))


@pytest.mark.parametrize("read", [describe, load])
def test_unusable_folders(tmp_path, read):
    with refused("nowhere' does not exist; no such folder or file: is it mounted?"):
        read(tmp_path / "nowhere")
    with refused("s3://bucket/out' is at a URL", "copy it into a folder here"):
        read("s3://bucket/out")
    with refused("'' does not exist"):
        read("")
    with refused("holds no images", "one folder per class"):
        read(tmp_path)
    picture = tmp_path / "picture.png"
    draw(np.random.default_rng(0)).save(picture)
    with refused("picture.png' is not a folder"):
        read(picture)
    (tmp_path / "scans.zip").write_bytes(b"PK")
    with refused("scans.zip' is an archive: unpack it, and name the folder"):
        read(tmp_path / "scans.zip")
    read(tmp_path)  # pictures without class folders are one class
    write_folder(tmp_path, {"full": 1, "empty": 0})
    with refused("empty' holds no images", "remove it"):
        read(tmp_path)


def test_unprintable_class_names(tmp_path):
    write_folder(tmp_path, {"a\nb": 1, "c": 1})
    with refused(r"'a\nb'", "rename"):
        describe(tmp_path)


def test_file_names_cannot_break_the_line(folder):
    (folder / "ant" / "a\nb.png").write_bytes(b"x")
    with refused(r"a\nb.png"):
        load(folder)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tif"])
@pytest.mark.parametrize("lenient", [False, True])
def test_cut_off_pictures_are_named(tmp_path, suffix, lenient, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    root = tmp_path / "x"
    (root / "a").mkdir(parents=True)
    path = root / "a" / f"1{suffix}"
    draw(np.random.default_rng(0), 40, 40).save(path)
    whole = path.read_bytes()
    for share in (0, 0.02, 0.5, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        with refused(f"a/1{suffix}' is corrupt or cut off", "replace or remove"):
            load(root, Reading(part="all"))
    assert ImageFile.LOAD_TRUNCATED_IMAGES is lenient  # left as it was found


def test_a_flipped_bit_is_noticed(folder):
    path = folder / "cat" / "010.png"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with refused("cat/010.png' is corrupt"):
        load(folder)


@pytest.mark.parametrize("limit", [50, 20])
def test_pictures_far_too_large_are_refused_before_decoding(folder, monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)  # 64 pixels: above the warning, or above twice the limit
    with refused("ant/000.png' has more than", "shrink"):
        load(folder)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, suffix):
    values = np.array([[0, 128, 129, 257], [1000, 32896, 65406, 65535]], np.uint16)
    (tmp_path / "a").mkdir()
    Image.fromarray(values).save(tmp_path / "a" / f"1{suffix}")
    result = load(tmp_path, Reading(part="all")).pixels[0, 0]
    assert result.tolist() == [[0, 0, 1, 1], [4, 128, 254, 255]]
    assert np.abs(result / 255 - values / 65535).max() <= 0.5 / 255 + 1e-9


@pytest.mark.parametrize("values", [np.full((8, 8), 70000, np.int32), np.full((8, 8), 0.5, np.float32)])
def test_deeper_grey_is_refused_instead_of_cut(folder, values):
    Image.fromarray(values).save(folder / "cat" / "000.tif")
    with refused("cat/000.tif' (mode", "declares no values of black and white", "data.window=record"):
        load(folder, Reading(part="all"))
    with refused("8 bits", "mode", "data.window=0,255 means one"):
        load(folder, Reading(part="all", decoding=Decoding(window="0,255")))
    assert len(load(folder, Reading(part="all", decoding=Decoding(window="record")))) == 51


TURNED = {1: lambda a: a, 3: lambda a: np.rot90(a, 2), 5: lambda a: a.T, 6: lambda a: np.rot90(a, -1)}


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize(
    ("suffix", "options"),
    [(".png", {}), (".tif", {}), (".tif", {"compression": "tiff_lzw"}), (".jpg", {"quality": 95})],
)
def test_pictures_are_turned_as_their_orientation_says(tmp_path, orientation, suffix, options):
    values = np.linspace(0, 255, 12 * 8).reshape(12, 8).astype(np.uint8)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    (tmp_path / "a").mkdir()
    Image.fromarray(values).save(tmp_path / "a" / f"1{suffix}", exif=exif, **options)
    wanted, reported = TURNED[orientation](values), describe(tmp_path, Reading(part="all"))
    result = load(tmp_path, Reading(part="all")).pixels[0, 0]
    assert (reported.height, reported.width) == result.shape == wanted.shape
    assert inspect(tmp_path).kinds == (f"{reported.width}x{reported.height} L",)
    assert np.abs(result.astype(int) - wanted).max() <= (8 if suffix == ".jpg" else 0)


def test_loading_is_silent(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_unit(load(folder).pixels)


def test_links_may_not_leave_the_folder(folder, tmp_path):
    secret = tmp_path / "secret.png"
    draw(np.random.default_rng(0)).save(secret)
    link = folder / "cat" / "link.png"
    link.symlink_to(secret)
    with refused("cat/link.png' is a link to", "paths from data files cannot leave their folder"):
        describe(folder)
    link.unlink()
    write_folder(tmp_path / "elsewhere", {"dog": 1})
    (folder / "dog").symlink_to(tmp_path / "elsewhere" / "dog")
    with refused("pets/dog' is a link to", "cannot leave their folder"):
        describe(folder)


def test_links_inside_the_folder_and_to_the_folder_are_fine(folder, tmp_path):
    (folder / "cat" / "link.png").symlink_to(folder / "ant" / "000.png")
    (tmp_path / "alias").symlink_to(folder)
    assert len(load(tmp_path / "alias", Reading(part="all"))) == 51


def test_broken_links_are_named(folder):
    (folder / "ant" / "001.png").unlink()
    (folder / "ant" / "001.png").symlink_to(folder / "gone.png")
    with refused("ant/001.png' is a broken link"):
        load(folder)


def test_folders_within_a_class_folder_may_be_persons(tmp_path):
    write_folder(tmp_path / "scans" / "benign", {"ann": 2, "bob": 2})
    refusal = (
        "benign' holds folders in place of images; where each is a person with the images in it, say data.group=folder"
    )
    with refused(refusal):
        describe(tmp_path / "scans")
    with refused(refusal):
        describe(tmp_path / "scans", Reading(group="prefix"))
    assert describe(tmp_path / "scans", Reading(part="all", group="folder")).groups == 2
    write_folder(tmp_path / "scans" / "benign" / "carl", {"left": 1})
    with refused("carl' holds no images", "remove it"):
        describe(tmp_path / "scans", Reading(group="folder"))


@pytest.mark.parametrize("place", ["pets/ant", "pets"])
def test_a_link_that_leads_back_to_itself_is_named(folder, place):
    link = folder.parent / place / "circle"
    link.symlink_to("circle")
    with refused("circle' is a link that leads back to itself; remove it"):
        describe(folder)


def test_missing_permissions_are_named(folder, monkeypatch):
    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched, refused("ant/000.png' may not be read", "permission"):
        patched.setattr(Image, "open", deny)
        load(folder)
    with monkeypatch.context() as patched, refused("pets' may not be read", "permission"):
        patched.setattr(os, "scandir", deny)
        load(folder)
    write_mnist_like(folder)
    with monkeypatch.context() as patched, refused("labels-idx1-ubyte.gz' may not be read", "permission"):
        patched.setattr(gzip, "open", deny)
        load(folder)


@pytest.mark.parametrize("fault", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_a_folder_into_which_nobody_may_look_is_named(folder, monkeypatch, fault):
    def deny(path, **kwargs):
        fault.filename = str(path)
        raise fault

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", deny)
        with refused("pets", f"cannot be read ({fault.strerror})", "permission"):
            describe(folder)


def test_things_that_are_no_files_are_passed_over(folder):
    os.mkfifo(folder / "ant" / "pipe.png")  # opening it would wait for ever
    (folder / "ant" / "folder.png").mkdir()
    (folder / "ant" / "link.png").symlink_to("pipe.png")
    assert len(load(folder, Reading(part="all"))) == 50


def persons(root, names=("p1_a", "p1_b", "p2_a", "p3_a")):
    """Class folders whose file names begin with a person."""
    for at, name in enumerate(names):
        for label in ("cat", "dog"):
            (root / label).mkdir(parents=True, exist_ok=True)
            draw(np.random.default_rng((at, len(label)))).save(root / label / f"{name}{label}.png")
    return root


def test_file_names_can_begin_with_the_group(tmp_path):
    root = persons(tmp_path / "x")
    result = load(root, Reading(part="all", group="prefix"))
    assert result.groups.tolist() == 2 * [group_number(name) for name in ("p1", "p1", "p2", "p3")]
    assert describe(root, Reading(part="all", group="prefix")).groups == 3
    assert load(root, Reading(part="all")).groups is None and describe(root, Reading(part="all")).groups is None
    draw(np.random.default_rng(0)).save(root / "cat" / "loose.png")
    with refused("cat/loose.png' does not begin with a group"):
        describe(root, Reading(group="prefix"))


def test_folders_inside_class_folders_can_be_the_groups(tmp_path):
    root = tmp_path / "x"
    write_folder(root / "cat", {"ann": 2, "bob": 1})
    write_folder(root / "dog", {"ann": 3}, seed=1)
    result = load(root, Reading(part="all", group="folder"))
    ann, bob = group_number("ann"), group_number("bob")
    assert result.groups.tolist() == [ann, ann, bob, ann, ann, ann] and result.labels.tolist() == [0, 0, 0, 1, 1, 1]
    draw(np.random.default_rng(0)).save(root / "cat" / "loose.png")
    with refused("cat/loose.png' lies in no folder of a group"):
        describe(root, Reading(group="folder"))


def test_a_group_lies_on_one_side_of_the_split(tmp_path):
    root = persons(tmp_path / "x", [f"p{i // 3}_{i}" for i in range(60)])
    train, test = (load(root, Reading(part=part, held_out=0.4, group="prefix")) for part in ("train", "test"))
    assert len(train) + len(test) == 120 and not set(train.groups) & set(test.groups)
    assert describe(root, Reading(part="train", held_out=0.4, group="prefix")).groups == 12
    without = root.parent / "y"
    persons(without, [f"p{i // 3}_{i}" for i in range(57)])
    less = load(without, Reading(part="train", held_out=0.4, group="prefix"))
    assert set(train.groups) - set(less.groups) <= {group_number("p19")} and set(less.groups) <= set(train.groups)


def test_groups_are_part_of_what_a_set_is(tmp_path):
    root = persons(tmp_path / "x")
    one, two = source_digest(root), source_digest(root, Reading(group="prefix"))
    (root / "cat" / "p1_acat.png").rename(root / "cat" / "p9_acat.png")
    assert one != two != source_digest(root, Reading(group="prefix")) and source_digest(root) == one


@pytest.mark.parametrize("source", ["digits", "idx", "folder"])
def test_other_groupings_are_refused(tmp_path, source):
    known = {"digits": "digits", "idx": write_mnist_like(tmp_path / "i"), "folder": persons(tmp_path / "f")}
    with refused("data.group='patient'"):
        describe(known[source], Reading(group="patient"))


@pytest.mark.parametrize("other", ["test", "validation", "val"])
def test_train_and_test_folders_are_the_parts(tmp_path, other):
    write_folder(tmp_path / "x" / "train", {"ant": 4, "cat": 3})
    write_folder(tmp_path / "x" / other, {"ant": 2}, seed=1)
    result = {part: load(tmp_path / "x", Reading(part=part)) for part in ("train", "test", "all")}
    assert {part: len(images) for part, images in result.items()} == {"train": 7, "test": 2, "all": 9}
    assert all(images.classes == ("ant", "cat") for images in result.values())
    assert describe(tmp_path / "x", Reading(part="test")).records == 2


def test_validation_beside_test_is_in_the_whole_only(tmp_path):
    for seed, name in enumerate(("train", "test", "valid")):
        write_folder(tmp_path / "x" / name, {"ant": 2}, seed=seed)
    assert [describe(tmp_path / "x", Reading(part=part)).records for part in ("train", "test", "all")] == [2, 2, 6]


def test_train_alone_is_split_by_hash_and_a_class_may_be_called_train(tmp_path):
    write_folder(tmp_path / "x" / "train", {"ant": 30})
    assert describe(tmp_path / "x", Reading(part="train", held_out=0.2)).records == 24
    write_folder(tmp_path / "y", {"train": 2, "tram": 2})
    assert load(tmp_path / "y", Reading(part="all")).classes == ("train", "tram")
