"""Sources of every kind: described without opening a picture, and requests that none can meet."""

import os

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from sfumato import sources
from sfumato.sources import Reading, describe, files, files_now, idx, load, source_digest, stored_pictures
from tests.sfumato.sources.test_embedded import rows
from tests.sfumato.sources.test_embedded import write as write_parquet
from tests.sfumato.sources.test_webdataset import png, write_shard
from tests.sfumato.sources.writing import refused, write_mnist_like


def test_digits_are_scikit_learns_with_a_fixed_test_part():
    train, test, whole = (load("digits", Reading(part=part)) for part in ("train", "test", "all"))
    assert (len(train), len(test), len(whole)) == (1437, 360, 1797)
    assert train.pixels.shape[1:] == (1, 8, 8) and train.classes == tuple("0123456789")
    assert np.array_equal(whole.pixels[:, 0], np.round(load_digits().images * 255 / 16))
    assert np.ptp(np.bincount(test.labels)) <= 2  # stratified
    rows = [bytes(p) for p in (*train.pixels, *test.pixels)]
    assert sorted(rows) == sorted(bytes(p) for p in whole.pixels)


def test_glyphs_are_drawn_at_the_asked_size():
    drawn = load("glyphs", Reading(part="all", size=16, glyphs_per_class=3, characters="ab7"))
    assert drawn.pixels.shape == (9, 1, 16, 16) and drawn.classes == ("a", "b", "7")
    assert load("glyphs", Reading(part="all", channels=3, glyphs_per_class=1, characters="a")).pixels.shape == (
        1,
        3,
        8,
        8,
    )
    facts = describe("glyphs", Reading(part="all"))
    assert (facts.records, len(facts.classes), facts.height) == (52 * 400, 52, 8)


@pytest.mark.parametrize("part", ["train", "test", "all"])
@pytest.mark.parametrize("source", ["digits", "folder", "idx"])
def test_description_agrees_with_what_is_loaded(tmp_path, folder, source, part):
    place = {"digits": "digits", "folder": folder, "idx": write_mnist_like(tmp_path / "idx")}[source]
    for size, channels in ((None, None), (0, 0), (5, 3)):
        facts, loaded = (f(place, Reading(part=part, size=size, channels=channels)) for f in (describe, load))
        assert facts.source == str(place) and facts.classes == loaded.classes
        assert (facts.channels, facts.height, facts.width) == loaded.pixels.shape[1:]
        if source != "folder" or part == "all":
            assert facts.records == len(loaded)
        else:  # split by hash: the expected number, since the true one needs the pixels
            assert facts.records == {"train": 40, "test": 10}[part]


def test_description_opens_no_pixel(folder, monkeypatch):
    monkeypatch.setattr(files, "record_of", lambda *_: pytest.fail("a picture was decoded"))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("a picture was decoded"))
    assert describe(folder, Reading(part="all")).records == 50


def test_a_second_shape_among_a_few_headers_is_refused_before_anything_is_decoded(folder, monkeypatch):
    monkeypatch.setattr(files, "record_of", lambda *_: pytest.fail("a picture was decoded"))
    monkeypatch.setattr(files, "PEEKED", 50)
    Image.new("L", (9, 7)).save(folder / "cat" / "020.png")
    with refused("images differ in size", "pass data.size=<side>"):
        describe(folder, Reading(part="all"))
    assert describe(folder, Reading(part="all", size=8)).records == 50
    assert describe(folder, Reading(part="all", without=("cat",))).records < 50
    assert describe(folder, Reading(part="all", forgiving=True)).records == 50
    Image.new("RGB", (8, 8)).save(folder / "cat" / "020.png")
    with refused("is grey", "is colour", "pass data.channels"):
        describe(folder, Reading(part="all"))
    Image.new("RGB", (9, 7)).save(folder / "cat" / "020.png")
    with refused(
        "differ in size and channels", "is 9x7 and colour", "pass data.size=<side> to resize all, and data.channels=1"
    ):
        describe(folder, Reading(part="all"))


def test_pictures_of_several_shapes_have_a_digest_and_are_loaded_at_one_size(folder):
    before = source_digest(folder)
    for number in range(20):
        Image.new(("L", "RGB")[number % 2], (9 + number % 3, 7)).save(folder / "cat" / f"1{number:02}.png")
    several = Reading(part="all", size=8, channels=3)
    assert source_digest(folder, several) == source_digest(folder) != before
    assert len({picture.shape for picture in stored_pictures(folder, several)}) == 7
    assert load(folder, several).pixels.shape == (70, 3, 8, 8) and describe(folder, several).records == 70


def test_every_public_name_is_there():
    assert [name for name in sources.__all__ if not hasattr(sources, name)] == []


def test_description_of_idx_reads_the_header_of_the_pictures_alone(tmp_path, monkeypatch):
    root = write_mnist_like(tmp_path)
    read = idx.read_idx
    monkeypatch.setattr(
        idx, "read_idx", lambda path, magic: pytest.fail("read") if "images" in path.name else read(path, magic)
    )
    assert describe(root).records == 30


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ({"part": "validation"}, "part='validation'"),
        ({"size": -1}, "data.size=-1"),
        ({"channels": 2}, "data.channels=2"),
        ({"held_out": 1.0}, "data.held_out=1.0"),
        ({"held_out": 0}, "data.held_out=0"),
        ({"held_out": float("nan")}, "data.held_out=nan"),
    ],
)
def test_impossible_requests(requested, words):
    for read in (describe, load):
        with refused(words):
            read("digits", Reading(**requested))


def test_glyph_requests_are_checked_in_both():
    for read in (describe, load):
        with refused("glyphs_per_class=0"):
            read("glyphs", Reading(glyphs_per_class=0))
        with refused("glyphs of 4x4", "data.size=8"):
            read("glyphs", Reading(size=4))
        with refused("shapes_per_class=0"):
            read("shapes", Reading(shapes_per_class=0))
        with refused("shapes of 4x4", "data.size=8"):
            read("shapes", Reading(size=4))
        with refused("repeats 'a'"):
            read("glyphs", Reading(characters="aba"))


# --- crop and polarity ------------------------------------------------------------------------------------------------


def test_the_largest_square_is_cut_from_the_middle(tmp_path):
    (tmp_path / "a").mkdir()
    wide, tall = np.zeros((4, 10), np.uint8), np.zeros((9, 4), np.uint8)
    wide[:, 3:7], tall[2:6] = 200, 200
    Image.fromarray(wide).save(tmp_path / "a" / "0.png")
    Image.fromarray(tall).save(tmp_path / "a" / "1.png")
    facts, loaded = (read(tmp_path, Reading(part="all", crop="centre")) for read in (describe, load))
    assert loaded.pixels.shape == (2, 1, facts.height, facts.width) == (2, 1, 4, 4) and (loaded.pixels == 200).all()
    assert load(tmp_path, Reading(part="all", crop="centre", size=2)).pixels.shape == (2, 1, 2, 2)
    with refused("data.crop='left'", "'centre'"):
        load(tmp_path, Reading(crop="left"))


def test_inverting_turns_grey_levels_round_and_moves_no_record(folder):
    plain, turned = load(folder), load(folder, Reading(invert=True))
    assert np.array_equal(255 - plain.pixels, turned.pixels)
    assert np.array_equal(load(folder, Reading(crop="centre", size=4)).labels, plain.labels)


def beside(place):
    """A source of each kind, and a file of it."""
    for folder in (place / "cat", place / "only" / "cat"):
        folder.mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "0.png")
    (place / "list.csv").write_text("path,label\ncat/0.png,cat")
    np.savez(place / "x.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.arange(2))
    write_parquet(place / "pets.parquet", rows())
    write_parquet(place / "tables" / "train.parquet", rows())
    write_shard(place / "shards" / "0.tar", {"0.png": png(0), "0.cls": b"0"})
    idx_file = sorted(write_mnist_like(place / "idx").iterdir())[0]
    return {
        "folder": (place / "only", place / "only" / "cat" / "0.png"),
        "table": (place / "list.csv", place / "cat" / "0.png"),
        "list": (place / "list.csv", place / "list.csv"),
        "npz": (place / "x.npz", place / "x.npz"),
        "parquet": (place / "pets.parquet", place / "pets.parquet"),
        "tables": (place / "tables", place / "tables" / "train.parquet"),
        "shards": (place / "shards", place / "shards" / "0.tar"),
        "idx": (place / "idx", idx_file),
    }


@pytest.mark.parametrize("kind", ["folder", "table", "list", "npz", "parquet", "tables", "shards", "idx"])
def test_files_of_a_source_are_noticed_when_they_are_written_and_no_others(tmp_path, kind):
    """A home with its databases may lie beside a table, or in the folder of tables; in one of class folders it would be a class."""
    source, file = beside(tmp_path / "all")[kind]
    before = files_now(source)
    home = (source if source.is_dir() else source.parent) / "sfumato-home"
    if kind != "folder":
        home.mkdir()
        (home / "ledger.db").write_text("an entry")
    assert files_now(source) == before
    os.utime(file, ns=(1, 1))
    assert files_now(source) != before
    assert files_now(f"{source}+digits") != files_now(source)
