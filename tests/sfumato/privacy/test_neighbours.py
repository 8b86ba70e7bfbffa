"""Neighbours are what the code compares: without one record, or one person, exactly that is missing, and nothing else differs.

Walks over every option that selects or transforms private records. The number of records and the class list, which are
public constants, are held fixed, and nothing else is.
"""

import csv
import itertools
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from sfumato.config import Constants
from sfumato.preflight import preflight, private_set
from sfumato.privacy.door import read
from sfumato.privacy.shards import dealt
from sfumato.privacy.units import units_of
from sfumato.settings import resolve

PERSONS = "klmnopqrstuv"
OPTIONS = [
    ["data.size=8"],
    ["data.size=8", "data.share=0.5"],
    ["data.size=8", "data.share=0.6", "data.held_out=0.4"],
    ["data.size=9", "data.held_out=0.4", "data.crop=centre"],
    ["data.size=8", "data.channels=3", "data.invert=private"],
    ["data.size=8", "data.channels=1", "data.invert=both", "data.share=0.8"],
    ["data.size=8", "data.share=0.7", "data.records=40"],
    ["data.size=8", "data.classes=[a,b,d]"],
]


def pictures():
    """(class, person, number, pixels) of 38 pictures of several sizes; two are equal, one is the only one of its class."""
    generator, result = np.random.default_rng(0), []
    for at in range(36):
        sides = (6 + at % 3, 6 + at % 2)
        result.append(("ab"[at % 2], PERSONS[at % 12], at, generator.integers(0, 256, sides, dtype=np.uint8)))
    label, person, _, pixels = result[4]
    result.append((label, person, 36, pixels))
    result.append(("c", "u", 37, generator.integers(0, 256, (6, 6), dtype=np.uint8)))
    return result


def class_folders(root, records):
    for name in "abc":
        (root / name).mkdir(parents=True)
    for label, person, number, pixels in records:
        Image.fromarray(pixels).save(root / label / f"{person}_{number:02d}.png")
    return root


def person_folders(root, records):
    for name in "abc":
        (root / name).mkdir(parents=True)
    for label, person, number, pixels in records:
        (root / label / person).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(root / label / person / f"{number:02d}.png")
    return root


def csv_table(root, records):
    root.mkdir(parents=True)
    with open(root / "list.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "group"])
        for label, person, number, pixels in records:
            Image.fromarray(pixels).save(root / f"{number:02d}.png")
            rows.writerow([f"{number:02d}.png", label, person])
    return root / "list.csv"


def npz(root, records):
    """Of the same pictures, cut to one size, since an array has one."""
    root.mkdir(parents=True)
    images = np.stack([pixels[:6, :6] for *_, pixels in records])
    labels, groups = ("abc".index(r[0]) for r in records), [r[1] for r in records]
    np.savez(root / "set.npz", images=images, labels=np.array(list(labels)), classes=np.array([*"abc"]), groups=groups)
    return root / "set.npz"


SOURCES = {
    "folder": (class_folders, ["data.group=none"]),
    "persons by prefix": (class_folders, ["data.group=prefix"]),
    "persons by folder": (person_folders, ["data.group=folder"]),
    "table": (csv_table, ["data.group=none"]),
    "table of persons": (csv_table, []),
    "npz": (npz, ["data.group=none"]),
    "npz of persons": (npz, []),
}


def settled(path, changes, known=lambda name: None):
    given = [f"data.private={path}", "data.name=set", "data.glyphs_per_class=2", "generation.images=6", *changes]
    return preflight(resolve("dp-sgd", changes=given), known=known)


def rows(images):
    """The records in order, each as its pixels, its class and its group."""
    groups = images.groups if images.groups is not None else np.zeros(len(images), int)
    each = zip(images.pixels, images.labels, groups, strict=True)
    return [(pixels.tobytes(), images.classes[label], int(label), int(group)) for pixels, label, group in each]


def ours(images, keep):
    """What mechanisms make of the records that are kept: their shards, and how many units there are in all."""
    places = dealt(images, 5, "shards")
    return [int(places[at]) for at in keep], len(units_of(images, each=2))


@pytest.mark.parametrize("changes", OPTIONS, ids=" ".join)
@pytest.mark.parametrize("kind", SOURCES)
def test_without_one_record_exactly_that_one_is_missing(tmp_path, kind, changes):
    write, grouped = SOURCES[kind]
    changes, everyone = [*grouped, *changes], pictures()
    settings, facts, _ = settled(write(tmp_path / "all", everyone), changes)
    whole = read(private_set(settings), "train")
    before, persons = rows(whole), whole.groups is not None
    gone = 0
    for one in PERSONS if persons else [4, 36, 37, 7, 0, 12, 13]:
        rest = [r for r in everyone if (r[1] if persons else r[2]) != one]
        path = write(tmp_path / f"less-{one}", rest)
        if not gone:  # the same for all of them
            fewer, same, _ = settled(path, changes, known=lambda _: facts.whole)
            assert same == facts, "the constants hold, and all that follows from them"
            assert fewer.privacy == settings.privacy and fewer.fine_tuning == settings.fine_tuning
        part = read(private_set(fewer).model_copy(update={"source": str(path)}), "train")
        after = rows(part)
        assert part.classes == whole.classes == facts.classes
        missing = Counter(before) - Counter(after)
        assert not Counter(after) - Counter(before), "no other record came in, or was changed"
        if persons:
            assert len({row[3] for row in missing}) <= 1, "one person at most"
            retained = [at for at, row in enumerate(before) if row[3] not in {r[3] for r in missing}]
            assert [before[at] for at in retained] == after, "in the order in which they were"
            places, units = ours(part, range(len(after)))
            assert places == ours(whole, retained)[0]
            assert units == ours(whole, retained)[1] - bool(missing)
        else:
            assert missing.total() <= 1
            assert all(ours(part, [at])[0] == ours(whole, [before.index(row)])[0] for at, row in enumerate(after)), (
                "every other record goes where it went"
            )
        gone += bool(missing)
    assert gone, "some of these are trained on"


def test_a_class_that_is_declared_may_be_empty_and_one_that_is_not_is_left_out(tmp_path):
    path = class_folders(tmp_path / "set", pictures())
    settings, facts, _ = settled(path, ["data.group=none", "data.size=8", "data.classes=[d,b,a]"])
    images = read(private_set(settings), "train")
    assert images.classes == facts.classes == ("d", "b", "a")
    assert set(images.labels.tolist()) == {1, 2}, "places in the declared list; the record of class c is left out"


def test_constants_come_from_the_settings_or_the_ledger_and_then_from_the_source(tmp_path):
    path = class_folders(tmp_path / "set", pictures())
    requested = ["data.group=none", "data.size=8", "data.held_out=0.5"]
    settings, facts, _ = settled(path, requested)
    assert (settings.data.records, facts.records, facts.classes) == (38, 19, ("a", "b", "c"))
    ledger = Constants(records=100, images=100, classes=("a", "b", "c", "d"))
    settings, facts, _ = settled(path, requested, known=lambda name: ledger if name == "set" else None)
    assert (settings.data.records, facts.records, len(facts.classes)) == (100, 50, 4)
    assert settings.privacy.delta == 50**settings.privacy.delta_exponent
    declared = [*requested, "data.records=80", "data.classes=[a,b]", "fine_tuning.batch=10"]
    settings, facts, _ = settled(path, declared, known=lambda name: ledger)
    assert (facts.records, facts.classes, settings.fine_tuning.sample_rate) == (40, ("a", "b"), 10 / 40)
    assert settled(path, declared, known=lambda name: ledger)[:2] == (settings, facts)
    other = ledger.model_copy(update={"parts": True})
    assert settled(path, requested, known=lambda name: other)[1].records == 19, "of a source with parts of its own"


def test_a_share_of_persons_is_of_persons(tmp_path):
    """As with the split, a person's images are all used, or none is."""
    path = csv_table(tmp_path / "set", pictures())
    for share, held_out in itertools.product((0.5, 0.8), (0.2, 0.5)):
        settings, _, _ = settled(path, ["data.size=8", f"data.share={share}", f"data.held_out={held_out}"])
        images = read(private_set(settings), "train")
        whole = read(private_set(settings).model_copy(update={"share": 1.0, "held_out": 0.001}), "train")
        for group in set(images.groups.tolist()):
            assert (images.groups == group).sum() == (whole.groups == group).sum()
