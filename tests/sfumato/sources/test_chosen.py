"""Some classes of a source as if there were no others, whatever kind it is of."""

import string

import numpy as np
import pytest

from sfumato.sources import Reading, describe, inspect, load, resolve_classes, source_digest, stored_pictures
from sfumato.sources.catalogue import NO_GROUPS
from tests.sfumato.sources.test_embedded import rows, write
from tests.sfumato.sources.writing import refused, write_folder, write_mnist_like


def sources(root):
    """One of each kind with three classes or more, and two of these."""
    rng = np.random.default_rng(0)
    np.savez(root / "a.npz", images=rng.integers(0, 256, (30, 6, 5), np.uint8), labels=np.arange(30) % 3)
    listed = write_folder(root / "listed", {"a": 8, "b": 7, "c": 6})
    lines = [f"{at.relative_to(listed)},{at.parent.name}\n" for at in sorted(listed.rglob("*.png"))]
    (listed / "metadata.csv").write_text("path,label\n" + "".join(lines))
    return {
        "folder": (write_folder(root / "pets", {"ant": 9, "cat": 8, "owl": 7}), ("owl", "ant")),
        "table": (listed, ("b", "c")),
        "parquet": (write(root / "p.parquet", rows(30)), ("owl", "cat")),
        "npz": (root / "a.npz", ("2", "0")),
        "idx": (write_mnist_like(root / "mnist"), ("6", "4")),
        "digits": ("digits", ("3", "9")),
        "glyphs": ("glyphs", ("x", "y")),
        "mixture": (f"{root / 'pets'}+{root / 'mnist'}", ("pets:owl", "mnist:5")),
    }


KINDS = ("folder", "table", "parquet", "npz", "idx", "digits", "glyphs", "mixture")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_chosen_is_what_the_whole_has_of_these_classes(tmp_path, kind):
    source, names = sources(tmp_path)[kind]
    requested = {"part": "all", "size": 8, "channels": 1, "glyphs_per_class": 3, "characters": string.ascii_lowercase}
    whole = load(source, Reading(**requested))
    for chosen in ({"only": names}, {"without": tuple(set(whole.classes) - set(names))}):
        result, reported = (
            load(source, Reading(**requested, **chosen)),
            describe(source, Reading(**requested, **chosen)),
        )
        classes = tuple(name for name in whole.classes if name in names)
        assert result.classes == reported.classes == classes and reported.records == len(result)
        mine = np.isin(whole.labels, [whole.classes.index(name) for name in names])
        assert 0 < len(result) == mine.sum() < len(whole)
        assert [result.classes[one] for one in result.labels] == [whole.classes[one] for one in whole.labels[mine]]
        assert np.array_equal(result.pixels, whole.pixels[mine])
        if kind not in ("glyphs", "mixture"):
            assert inspect(source, Reading(**chosen)).classes == classes and len(
                inspect(source, Reading(**chosen)).labels
            ) == len(result)


def test_what_is_left_out_is_not_decoded_and_moves_nothing(tmp_path):
    pets = write_folder(tmp_path / "pets", {"ant": 30, "cat": 30, "owl": 3})
    before = source_digest(pets, Reading(only=("ant", "cat"))), load(pets, Reading(only=("ant", "cat"), held_out=0.4))
    assert before[0] != source_digest(pets) and len(list(stored_pictures(pets, Reading(only=("ant", "cat"))))) == 60
    (pets / "owl" / "000.png").write_bytes(b"no picture")
    (pets / "owl" / "more.png").write_bytes(b"no picture")
    after = source_digest(pets, Reading(only=("ant", "cat"))), load(pets, Reading(only=("ant", "cat"), held_out=0.4))
    assert before[0] == after[0] and np.array_equal(before[1].pixels, after[1].pixels)
    table = rows(12)
    for row in table[::3]:
        row["image"]["bytes"] = b"no picture"
    assert len(load(write(tmp_path / "p.parquet", table), Reading(part="all", without=("cat",)))) == 8
    (pets / "ant" / "000.png").write_bytes(b"no picture")
    assert len(load(pets, Reading(part="all", only=("cat",)))) == 30


def test_groups_are_those_of_the_chosen_records(tmp_path):
    table = [row | {"group": f"of {row['label']}"} for row in rows(12)]
    reported = describe(write(tmp_path / "p.parquet", table), Reading(part="all", group="", without=("owl",)))
    assert (reported.groups, reported.records) == (2, 8)
    assert describe(tmp_path / "p.parquet", Reading(part="all", group=NO_GROUPS, only=("owl",))).groups is None


def test_names_and_positions(tmp_path):
    pets = write_folder(tmp_path / "pets", {"ant": 1, "cat": 1, "7": 1, "owl": 1})
    assert (
        resolve_classes(pets, ["owl", "0", "7", "7"], "data.x") == ("owl", "7")
        and resolve_classes(pets, [], "data.x") == ()
    )
    assert resolve_classes("digits", ["7"], "data.x") == ("7",)
    with refused("data.x names 'ow'", "did you mean 'owl'", "positions from 0 to 3"):
        resolve_classes(pets, ["ow"], "data.x")
    with refused("data.x names '4'", "'7', 'ant', 'cat', 'owl'"):
        resolve_classes(pets, ["4"], "data.x")
    with refused("has no class 'dog'"):
        load(pets, Reading(only=("dog",)))


def test_shares_are_of_whole_sources(tmp_path):
    root = sources(tmp_path)["mixture"][0]
    with refused("data.shares=[0.5, 0.5]", "leave one of the two out"):
        describe(root, Reading(part="all", size=8, channels=1, shares=(0.5, 0.5), without=("mnist:5",)))


def test_five_classes_of_tiny_imagenet(data):
    place = data / "tiny-imagenet-32"
    if not place.is_dir():
        pytest.skip(f"no {place}")
    names = resolve_classes(place, ["0", "40", "80", "120", "160"], "data.private_classes")
    assert names[0].endswith("Egyptian cat") and describe(place, Reading(only=names)).records == 2_500
    result = load(place, Reading(part="test", only=names))
    assert len(result) == 250 and set(result.labels.tolist()) == set(range(5))
    assert describe(place, Reading(part="all", without=names)).records == 195 * 550
