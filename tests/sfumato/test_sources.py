"""Loading: what comes out, which side a record lands on, and every way in which a source can be wrong."""

import gzip
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile
from sklearn.datasets import load_digits

from sfumato import sources
from sfumato.errors import BadInput
from sfumato.images import to_unit
from sfumato.sources import describe, load, same_source

DATA = Path(os.environ.get("SFUMATO_DATA") or Path(__file__).parents[3] / "shared" / "data")
real_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs MNIST and Omniglot: set SFUMATO_DATA (tried {DATA})")


def refused(*words: str):
    """Expects a BadInput in one line that holds all words."""
    pattern = "".join(f"(?=.*{re.escape(word)})" for word in words)
    return pytest.raises(BadInput, match=rf"^{pattern}[^\n]*$")


def draw(rng: np.random.Generator, height: int = 8, width: int = 8, channels: int = 1) -> Image.Image:
    pixels = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)


def write_folder(root: Path, counts: dict[str, int], suffix: str = ".png", channels: int = 1, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            draw(rng, channels=channels).save(root / name / f"{i:03}{suffix}")
    return root


def write_idx(path: Path, values: np.ndarray) -> None:
    head = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    data = head + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_mnist_like(root: Path, *, train: int = 30, test: int = 10, end: str = ".gz") -> Path:
    root.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for beginning, count in (("train", train), ("t10k", test)):
        write_idx(root / f"{beginning}-images-idx3-ubyte{end}", rng.integers(0, 256, (count, 6, 6)))
        write_idx(root / f"{beginning}-labels-idx1-ubyte{end}", np.arange(count) % 3 + 4)
    return root


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_folder(tmp_path / "pets", {"cat": 30, "ant": 20})


# --- built-in sources -------------------------------------------------------------------------------------------------


def test_digits_are_scikit_learns_with_a_fixed_test_part():
    train, test, whole = (load("digits", part=part) for part in ("train", "test", "all"))
    assert (len(train), len(test), len(whole)) == (1437, 360, 1797)
    assert train.pixels.shape[1:] == (1, 8, 8) and train.classes == tuple("0123456789")
    assert np.array_equal(whole.pixels[:, 0], np.round(load_digits().images * 255 / 16))
    assert np.ptp(np.bincount(test.labels)) <= 2  # stratified
    rows = [bytes(p) for p in (*train.pixels, *test.pixels)]
    assert sorted(rows) == sorted(bytes(p) for p in whole.pixels)


def test_glyphs_are_drawn_at_the_asked_size():
    drawn = load("glyphs", part="all", size=16, glyphs_per_class=3, characters="ab7")
    assert drawn.pixels.shape == (9, 1, 16, 16) and drawn.classes == ("a", "b", "7")
    assert load("glyphs", part="all", channels=3, glyphs_per_class=1, characters="a").pixels.shape == (1, 3, 8, 8)
    facts = describe("glyphs", part="all")
    assert (facts.records, len(facts.classes), facts.height) == (52 * 400, 52, 8)


@pytest.mark.parametrize("part", ["train", "test", "all"])
@pytest.mark.parametrize("source", ["digits", "folder", "idx"])
def test_description_agrees_with_what_is_loaded(tmp_path, folder, source, part):
    place = {"digits": "digits", "folder": folder, "idx": write_mnist_like(tmp_path / "idx")}[source]
    for size, channels in ((None, None), (0, 0), (5, 3)):
        facts, loaded = (f(place, part=part, size=size, channels=channels) for f in (describe, load))
        assert facts.source == str(place) and facts.classes == loaded.classes
        assert (facts.channels, facts.height, facts.width) == loaded.pixels.shape[1:]
        if source != "folder" or part == "all":
            assert facts.records == len(loaded)
        else:  # split by hash: the expected number, since the true one needs the pixels
            assert facts.records == {"train": 40, "test": 10}[part]


def test_description_opens_no_pixel(folder, monkeypatch):
    monkeypatch.setattr(sources, "decode", lambda path: pytest.fail("a picture was decoded"))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("a picture was decoded"))
    (folder / "cat" / "020.png").write_bytes(b"not a picture")  # only the first header is read
    assert describe(folder, part="all").records == 50


def test_description_of_idx_reads_the_header_of_the_pictures_alone(tmp_path, monkeypatch):
    root = write_mnist_like(tmp_path)
    read = sources.read_idx
    monkeypatch.setattr(
        sources, "read_idx", lambda path, magic: pytest.fail("read") if "images" in path.name else read(path, magic)
    )
    assert describe(root).records == 30


# --- which side -------------------------------------------------------------------------------------------------------


def sides(root: Path, **asked) -> tuple[set[bytes], set[bytes]]:
    return tuple({bytes(p) for p in load(root, part=part, **asked).pixels} for part in ("train", "test"))


def test_no_record_changes_side_when_others_come_or_go(folder):
    train, test = sides(folder)
    assert not train & test and len(train | test) == 50 and 3 <= len(test) <= 20
    for path in sorted((folder / "cat").iterdir())[:15]:
        path.unlink()
    write_folder(folder, {"bee": 20}, seed=1)  # shifts every class number too
    fewer_train, fewer_test = sides(folder)
    assert not train & fewer_test and not test & fewer_train


def test_file_names_and_sizes_do_not_move_a_record(folder):
    train, _ = sides(folder)
    for i, path in enumerate(sorted((folder / "ant").iterdir())):
        path.rename(path.with_name(f"z{99 - i}.png"))
    assert sides(folder)[0] == train
    assert len(load(folder, size=4)) == len(train)


def test_a_larger_share_only_moves_records_to_the_test_side(folder):
    small, large = sides(folder, held_out=0.2)[1], sides(folder, held_out=0.6)[1]
    assert small < large


def test_hash_keeps_about_the_asked_share():
    rng = np.random.default_rng(0)
    kept = [sources.held_out_by_hash(rng.integers(0, 256, (4, 4, 1), np.uint8), "a", 0.2) for _ in range(4000)]
    assert 0.17 < np.mean(kept) < 0.23


def test_an_empty_side_is_refused(tmp_path):
    root = write_folder(tmp_path / "few", {"a": 1, "b": 1})
    with refused("the test part", "none of its 2 records", "data.held_out=1e-09"):
        load(root, part="test", held_out=1e-9)


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_of_class_folders(folder):
    (folder / ".git").mkdir()
    (folder / "cat" / ".DS_Store").write_bytes(b"x")
    (folder / "cat" / "notes.txt").write_text("not a picture")
    pets = load(folder, part="all")
    assert pets.classes == ("ant", "cat") and np.bincount(pets.labels).tolist() == [20, 30]
    assert np.array_equal(pets.pixels[0, 0], np.asarray(Image.open(folder / "ant" / "000.png")))


@pytest.mark.parametrize("suffix", [".png", ".PNG", ".bmp", ".tif", ".tiff", ".jpg", ".jpeg"])
@pytest.mark.parametrize("channels", [1, 3])
def test_all_formats(tmp_path, suffix, channels):
    root = write_folder(tmp_path / "x", {"a": 2, "b": 1}, suffix, channels)
    assert load(root, part="all").pixels.shape == (3, channels, 8, 8)


def test_palettes_are_colour_and_bits_are_grey(tmp_path):
    (tmp_path / "a").mkdir()
    picture = draw(np.random.default_rng(0))
    picture.convert("P").save(tmp_path / "a" / "palette.png")
    assert load(tmp_path, part="all").pixels.shape == (1, 3, 8, 8)
    picture.convert("1").save(tmp_path / "a" / "palette.png")
    bits = load(tmp_path, part="all").pixels
    assert bits.shape == (1, 1, 8, 8) and set(np.unique(bits)) == {0, 255}


def test_size_and_channels_are_changed_when_asked(folder):
    draw(np.random.default_rng(1), 16, 12, 3).save(folder / "cat" / "zz.png")
    assert load(folder, part="all", size=6, channels=1).pixels.shape == (51, 1, 6, 6)
    assert load(folder, part="all", size=20, channels=3).pixels.shape == (51, 3, 20, 20)


def test_shrinking_averages_areas():
    pixels = np.kron(np.array([[0, 200], [100, 40]], np.uint8), np.ones((3, 3), np.uint8))[:, :, None]
    assert sources.reshape(pixels, 2, None)[:, :, 0].tolist() == [[0, 200], [100, 40]]


def test_mixed_sizes_name_the_two_files(folder):
    draw(np.random.default_rng(1), height=9, width=7).save(folder / "ant" / "005.png")
    with refused("ant/000.png' is 8x8", "ant/005.png' is 7x9", "data.size="):
        load(folder, part="all")


def test_mixed_channels_name_the_two_files(folder):
    draw(np.random.default_rng(1), channels=3).save(folder / "ant" / "005.png")
    with refused("ant/000.png' is grey", "ant/005.png' is colour", "data.channels="):
        load(folder, part="all")


@pytest.mark.parametrize("read", [describe, load])
def test_unusable_folders(tmp_path, read):
    with refused("nowhere' does not exist", "digits"):
        read(tmp_path / "nowhere")
    with refused("'' does not exist"):
        read("")
    with refused("holds no images", "one folder per class"):
        read(tmp_path)
    picture = tmp_path / "picture.png"
    draw(np.random.default_rng(0)).save(picture)
    with refused("picture.png' is not a folder"):
        read(picture)
    with refused("holds images but no class folders", "one folder per class"):
        read(tmp_path)
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
            load(root, part="all")
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


def test_sixteen_bits_are_refused_instead_of_cut(folder):
    Image.fromarray(np.full((8, 8), 1000, np.uint16)).save(folder / "cat" / "000.png")
    with refused("cat/000.png' has pixels of mode 'I;16'", "8 bits"):
        load(folder)


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
    assert len(load(tmp_path / "alias", part="all")) == 51


def test_broken_links_are_named(folder):
    (folder / "ant" / "001.png").unlink()
    (folder / "ant" / "001.png").symlink_to(folder / "gone.png")
    with refused("ant/001.png' is a broken link"):
        load(folder)


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


def test_things_that_are_no_files_are_passed_over(folder):
    os.mkfifo(folder / "ant" / "pipe.png")  # opening it would wait for ever
    (folder / "ant" / "folder.png").mkdir()
    (folder / "ant" / "link.png").symlink_to("pipe.png")
    assert len(load(folder, part="all")) == 50


# --- IDX --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_with_a_test_part(tmp_path, end):
    root = write_mnist_like(tmp_path, end=end)
    train, test, whole = (load(root, part=part) for part in ("train", "test", "all"))
    assert (len(train), len(test), len(whole)) == (30, 10, 40)
    assert train.classes == ("4", "5", "6") and test.labels[:4].tolist() == [0, 1, 2, 0]
    assert np.array_equal(whole.pixels, np.concatenate([train.pixels, test.pixels]))


def test_idx_without_a_test_part_is_split_by_hash(tmp_path):
    rng = np.random.default_rng(0)
    write_idx(tmp_path / "images-idx3-ubyte.gz", rng.integers(0, 256, (200, 5, 7)))
    write_idx(tmp_path / "labels-idx1-ubyte.gz", np.arange(200) % 2)
    (tmp_path / "classes.txt").write_text("alpha\nbeta\ngamma\n")
    train, test = load(tmp_path), load(tmp_path, part="test")
    assert len(train) + len(test) == 200 and 20 <= len(test) <= 60
    assert train.classes == ("alpha", "beta", "gamma") and train.pixels.shape[1:] == (1, 5, 7)


def test_classes_of_both_parts_are_numbered_together(tmp_path):
    root = write_mnist_like(tmp_path)
    write_idx(root / "t10k-labels-idx1-ubyte.gz", np.full(10, 9))
    assert load(root, part="test").labels.tolist() == [3] * 10
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
        sources.read_idx(path, sources.IDX_IMAGES)


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


@real_data
def test_mnist():
    train, test = load(DATA / "mnist"), load(DATA / "mnist", part="test")
    assert train.pixels.shape == (60000, 1, 28, 28) and len(test) == 10000
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4] and train.classes == tuple("0123456789")
    assert 33 < train.pixels.mean() < 34


@real_data
def test_omniglot():
    letters = load(DATA / "omniglot", part="all")
    facts = describe(DATA / "omniglot", part="all")
    assert letters.pixels.shape == (4840, 1, 28, 28) == (facts.records, facts.channels, facts.height, facts.width)
    assert len(letters.classes) == 242 and letters.classes[0] == "Balinese/character01"
    assert load(DATA / "omniglot", part="all", size=8).pixels.shape == (4840, 1, 8, 8)


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"part": "validation"}, "part='validation'"),
        ({"size": -1}, "data.size=-1"),
        ({"channels": 2}, "data.channels=2"),
        ({"held_out": 1.0}, "data.held_out=1.0"),
        ({"held_out": 0}, "data.held_out=0"),
        ({"held_out": float("nan")}, "data.held_out=nan"),
    ],
)
def test_impossible_requests(asked, words):
    for read in (describe, load):
        with refused(words):
            read("digits", **asked)


def test_glyph_requests_are_checked_in_both():
    for read in (describe, load):
        with refused("glyphs_per_class=0"):
            read("glyphs", glyphs_per_class=0)
        with refused("glyphs of 4x4", "data.size=8"):
            read("glyphs", size=4)
        with refused("repeats 'a'"):
            read("glyphs", characters="aba")


def test_one_class_is_too_few(tmp_path):
    facts = describe(write_folder(tmp_path, {"only": 3}))
    with refused("holds 1 class ('only')", "at least 2"):
        sources.require_classes(facts)
    sources.require_classes(facts, at_least=1)
    sources.require_classes(describe("digits"))


def test_same_source(folder, tmp_path):
    other = write_folder(tmp_path / "pets2", {"cat": 1})
    (tmp_path / "alias").symlink_to(folder)
    assert same_source("digits", "digits") and not same_source("digits", "glyphs")
    assert same_source(folder, tmp_path / "alias") and same_source(folder, f"{folder}/../pets/")
    assert same_source(folder, folder / "cat") and same_source(folder / "cat", folder)
    assert same_source(tmp_path / "alias" / "cat", folder)
    assert not same_source(folder, other) and not same_source(folder, "digits")
    assert not same_source(tmp_path / "gone", folder)


def test_same_source_sees_one_folder_under_two_names(folder, tmp_path, monkeypatch):
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    monkeypatch.setattr(os.path, "samefile", lambda a, b: {Path(a), Path(b)} <= {mounted, folder})  # as a bind mount
    assert same_source(mounted, folder / "cat") and same_source(folder / "cat", mounted)
    assert not same_source(mounted, tmp_path / "elsewhere")
