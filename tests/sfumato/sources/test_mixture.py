"""Mixtures: classes kept apart, shares kept to, what cannot be mixed refused."""

import numpy as np
import pytest

from sfumato.sources import Reading, absolute, describe, load, parts_of
from tests.sfumato.sources.writing import draw, refused, write_folder, write_mnist_like


@pytest.fixture
def both(tmp_path, folder) -> str:
    """Two folders of 8x8 pictures: 50 records in 2 classes and 15 in 2, one of which is called the same."""
    return f"{folder}+{write_folder(tmp_path / 'toys', {'cat': 10, 'car': 5}, seed=3)}"


def test_classes_with_one_name_stay_apart(both):
    facts, mixed = describe(both, Reading(part="all")), load(both, Reading(part="all"))
    assert facts.classes == mixed.classes == ("pets:ant", "pets:cat", "toys:car", "toys:cat")
    assert facts.records == len(mixed) == 65 and facts.source == both
    assert np.bincount(mixed.labels).tolist() == [20, 30, 5, 10]
    whole = np.concatenate([load(part, Reading(part="all")).pixels for part in both.split("+")])
    assert np.array_equal(mixed.pixels, whole)


def test_shares_are_kept_to_without_showing_a_record_twice(both):
    for shares, counts in (((0.5, 0.5), (15, 15)), ((0.8, 0.2), (50, 12)), ((0.9, 0.1), (50, 5))):
        facts, mixed = (read(both, Reading(part="all", shares=shares)) for read in (describe, load))
        from_pets = int((mixed.labels < 2).sum())
        assert (from_pets, len(mixed) - from_pets) == counts and facts.records == sum(counts)
        assert len({bytes(p) for p in mixed.pixels}) == len(mixed)


def test_the_seed_chooses_which_records(both):
    first, again, other = (load(both, Reading(part="all", shares=(0.5, 0.5), seed=seed)).pixels for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_glyphs_join_in_at_the_asked_size(folder):
    mixed = load(f"glyphs+{folder}", Reading(part="all", size=12, glyphs_per_class=2, characters="x7"))
    assert mixed.classes == ("glyphs:x", "glyphs:7", "pets:ant", "pets:cat") and mixed.pixels.shape == (54, 1, 12, 12)


def test_parts_have_to_be_alike(tmp_path, folder):
    colour = write_folder(tmp_path / "colour", {"a": 2}, channels=3)
    with refused("'pets' is grey", "'colour' is colour", "data.channels=1"):
        describe(f"{folder}+{colour}", Reading(part="all"))
    assert describe(f"{folder}+{colour}", Reading(part="all", channels=1)).channels == 1
    with refused("'pets' is 8x8", "'idx' is 6x6", "data.size=<side>"):
        describe(f"{folder}+{write_mnist_like(tmp_path / 'idx')}", Reading(part="all"))
    assert load(f"{folder}+{tmp_path / 'idx'}", Reading(part="all", size=7)).pixels.shape == (90, 1, 7, 7)


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.6), (1.0, 0.0), (1.5, -0.5), (float("nan"), 1.0), (0.2, 0.3, 0.5)])
def test_shares_that_do_not_fit(both, shares):
    for read in (describe, load):
        with refused("data.shares=", "give 2 numbers above 0 that sum to 1"):
            read(both, Reading(part="all", shares=shares))


def test_what_is_no_mixture(both, folder, tmp_path):
    with refused("can only be public", "data.private is one collection"):
        describe(both)
    with refused("data.shares=[1.0] is for a mixture", "one source"):
        describe(folder, Reading(part="all", shares=(1.0,)))
    with refused("names a source twice"):
        describe("glyphs+glyphs", Reading(part="all"))
    with refused("'' does not exist"):
        describe("glyphs+", Reading(part="all"))
    with refused("are called 'pets'", "rename"):
        describe(f"{folder}+{write_folder(tmp_path / 'other' / 'pets', {'a': 1})}", Reading(part="all"))


def test_a_folder_may_have_a_plus_in_its_name(tmp_path, monkeypatch):
    root = write_folder(tmp_path / "a+b", {"x": 2, "y": 2})
    assert describe(root, Reading(part="all")).classes == ("x", "y") and parts_of(root) == (str(root),)
    monkeypatch.chdir(tmp_path)
    assert absolute("glyphs+./scans") == f"glyphs+{tmp_path / 'scans'}" and absolute("a+b") == str(root)


def test_a_part_that_mixes_sizes_is_named(folder):
    draw(np.random.default_rng(1), height=9).save(folder / "ant" / "005.png")
    with refused("ant/005.png' is 8x9"):
        load(f"glyphs+{folder}", Reading(part="all", glyphs_per_class=1))
