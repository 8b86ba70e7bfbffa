"""One pass gives what its readers would have had by themselves, errors included, and decodes each picture once."""

from collections import Counter

import numpy as np
import pytest
from PIL import Image

from sfumato.errors import BadInput
from sfumato.sources import decoding
from sfumato.sources.catalogue import Reading
from sfumato.sources.contents import inspect, source_digest
from sfumato.sources.loading import load
from sfumato.sources.together import Together, inspect_together
from tests.sfumato.sources.writing import draw, write_folder, write_mnist_like

WHOLE = Reading("all")
PARTS = [Reading("train", held_out=0.4), Reading("test", held_out=0.4), Reading("train", held_out=0.4, share=0.5)]


def splits(place):
    for number, name in enumerate(("train", "validation", "test")):
        write_folder(place / name, {"a": 12, "b": 12}, seed=number)
    return place


def array(place):
    numbers = np.random.default_rng(0)
    np.savez(place, images=numbers.integers(0, 256, (40, 6, 6), np.uint8), labels=np.arange(40) % 3)
    return place.with_suffix(".npz")


def packed(place):
    import pyarrow
    from pyarrow import parquet

    files = sorted(write_folder(place / "pictures", {"a": 20, "b": 20}).rglob("*.png"))
    columns = {"image": [path.read_bytes() for path in files], "label": [path.parent.name for path in files]}
    parquet.write_table(pyarrow.table(columns), place / "table.parquet")
    return place / "table.parquet"


SOURCES = {
    "folder": lambda place: write_folder(place, {"a": 20, "b": 20}),
    "splits": splits,
    "table": packed,
    "array": array,
    "idx": lambda place: write_mnist_like(place),
    "digits": lambda place: "digits",
    "glyphs": lambda place: "glyphs",
}


def result(work):
    """What a piece of work gives, or its error."""
    try:
        return work()
    except (BadInput, OSError) as error:
        return type(error), str(error), getattr(error, "nameless", "")


def alone(source, parts):
    return source_digest(source, WHOLE), *(contents(load(source, part)) for part in parts)


def contents(images):
    groups = None if images.groups is None else images.groups.tolist()
    return images.pixels.shape, images.pixels.tobytes(), images.labels.tolist(), images.classes, groups


def gathered(together):
    digest, parts = together.whole()
    return digest, *map(contents, parts)


def seen(inspection):
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(inspection).items()
    }


@pytest.mark.parametrize("kind", SOURCES)
def test_it_is_what_each_reader_has_by_itself(tmp_path, kind):
    source = SOURCES[kind](tmp_path / "source")
    inspection, together = inspect_together(source, WHOLE, PARTS)
    assert seen(inspection) == seen(inspect(source, WHOLE))
    assert gathered(together) == gathered(Together(source, WHOLE, PARTS)) == alone(source, PARTS)


@pytest.mark.parametrize("kind", ["folder", "splits"])
def test_each_picture_is_decoded_once(tmp_path, kind, monkeypatch):
    source, decoded = SOURCES[kind](tmp_path / "source"), Counter()
    real = decoding.pixels_of
    monkeypatch.setattr(decoding, "pixels_of", lambda path: decoded.update([path]) or real(path))
    _, together = inspect_together(source, WHOLE, PARTS)
    together.whole()
    assert set(decoded.values()) == {1} and set(decoded) == set(source.rglob("*.png"))
    decoded.clear()
    Together(source, WHOLE, PARTS).whole()
    assert set(decoded.values()) == {1} and set(decoded) == set(source.rglob("*.png"))


def larger(folder):
    draw(np.random.default_rng(9), 9, 9).save(folder / "a" / "010.png")


def broken(folder):
    for number in (3, 7):
        (folder / "b" / f"{number:03}.png").write_bytes(b"no picture")


def broken_and_larger(folder):
    larger(folder)
    broken(folder)


def first_broken(folder):
    (folder / "a" / "000.png").write_bytes(b"no picture")


def colourful(folder):
    draw(np.random.default_rng(9), 8, 8, 3).save(folder / "b" / "005.png")


def emptied(folder):
    for path in (folder / "b").iterdir():
        path.unlink()


@pytest.mark.parametrize("spoil", [larger, broken, broken_and_larger, first_broken, colourful, emptied])
def test_its_first_fault_is_that_of_its_readers_one_after_the_other(tmp_path, spoil):
    source = write_folder(tmp_path / "source", {"a": 20, "b": 20})
    spoil(source)
    expected = result(lambda: alone(source, PARTS))
    assert expected[0] is BadInput
    assert result(lambda: gathered(Together(source, WHOLE, PARTS))) == expected
    whole = result(lambda: inspect_together(source, WHOLE, PARTS))
    by_itself = result(lambda: inspect(source, WHOLE))
    if spoil is emptied:
        assert whole == by_itself == expected
        return
    assert seen(whole[0]) == seen(by_itself) and result(lambda: gathered(whole[1])) == expected


def test_a_part_without_records_is_refused_as_it_would_be_by_itself(tmp_path):
    source = write_folder(tmp_path / "source", {"a": 5, "b": 5})
    parts = [Reading("train", held_out=0.999)]
    assert result(lambda: gathered(Together(source, WHOLE, parts))) == result(lambda: load(source, parts[0]))


def test_it_goes_on_after_a_part_that_does_not_fit(tmp_path):
    """Pictures of two sizes make no part as they are, and one once they are resized."""
    source = write_folder(tmp_path / "source", {"a": 20, "b": 20})
    Image.new("L", (9, 9), 7).save(source / "a" / "010.png")
    parts = [Reading("train", size=4), Reading("test", size=4)]
    assert gathered(Together(source, WHOLE, parts)) == alone(source, parts)
    assert result(lambda: Together(source, WHOLE, [*parts, WHOLE]).whole())[0] is BadInput
