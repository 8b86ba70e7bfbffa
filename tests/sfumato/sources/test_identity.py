"""Which side a record lands on, and which sources are one and the same."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from sfumato import sources
from sfumato.sources import Reading, fingerprint, load, same_source
from tests.sfumato.sources.writing import refused, write_folder, write_mnist_like


def sides(root: Path, **requested) -> tuple[set[bytes], set[bytes]]:
    return tuple({bytes(p) for p in load(root, Reading(part=part, **requested)).pixels} for part in ("train", "test"))


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
    assert len(load(folder, Reading(size=4))) == len(train)


def test_a_larger_share_only_moves_records_to_the_test_side(folder):
    small, large = sides(folder, held_out=0.2)[1], sides(folder, held_out=0.6)[1]
    assert small < large


def test_hash_keeps_about_the_asked_share():
    rng = np.random.default_rng(0)
    retained = [sources.held_out_by_hash(rng.integers(0, 256, (4, 4, 1), np.uint8), "a", 0.2) for _ in range(4000)]
    assert 0.17 < np.mean(retained) < 0.23


def test_an_empty_side_is_refused(tmp_path):
    root = write_folder(tmp_path / "few", {"a": 1, "b": 1})
    with refused("the test part", "none of its 2 records", "data.held_out=1e-09"):
        load(root, Reading(part="test", held_out=1e-9))


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


def test_same_source_knows_names_and_mixtures(tmp_path, folder):
    write_mnist_like(tmp_path / "data" / "mnist")
    place = {"folder": str(tmp_path / "data")}
    assert same_source("mnist", "mnist", **place) and same_source("mnist", "mnist")
    assert same_source("mnist", tmp_path / "data" / "mnist", **place)
    assert same_source("mnist", tmp_path / "data", **place)
    assert same_source("mnist", f"glyphs+{tmp_path / 'data' / 'mnist'}", **place)
    assert same_source("mnist", "glyphs+mnist", **place) and same_source(folder, f"glyphs+{folder / 'cat'}")
    assert same_source("digits", "glyphs+digits") and not same_source("mnist", "omniglot+glyphs", **place)
    assert not same_source("mnist", "fashion-mnist", **place) and not same_source("digits", "mnist", **place)
    assert not same_source(folder, f"glyphs+{tmp_path / 'data' / 'mnist'}")


def test_same_source_opens_no_file(tmp_path):
    """Copies are for the door to find."""
    one, two = (write_mnist_like(tmp_path / name) for name in ("one", "two"))
    assert not same_source(one, two)
    assert not same_source("mnist", two, folder=str(write_mnist_like(tmp_path / "data" / "mnist").parent))
    for name in ("a.npz", "b.npz"):
        np.savez(tmp_path / name, images=np.zeros((2, 4, 4), np.uint8), labels=np.arange(2))
    assert not same_source(tmp_path / "a.npz", tmp_path / "b.npz")
    assert same_source(tmp_path / "a.npz", tmp_path)  # a file in the folder


def test_a_fingerprint_changes_with_the_content_and_with_nothing_else(tmp_path):
    place = {"folder": str(tmp_path / "data")}
    root = write_mnist_like(tmp_path / "data" / "mnist", end="")
    images = root / "train-images-idx3-ubyte"
    seen = [fingerprint("mnist", **place)]
    assert fingerprint("mnist", **place) == seen[0] and len(load("mnist", Reading(part="all", **place))) == 40
    times, content = images.stat(), images.read_bytes()
    time.sleep(0.02)  # beyond the clock of the file system
    images.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(images, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert images.stat().st_size == times.st_size and images.stat().st_mtime_ns == times.st_mtime_ns
    seen.append(fingerprint("mnist", **place))
    (root / "classes.txt").write_text("a\nb\n")
    seen.append(fingerprint("mnist", **place))
    (root / "classes.txt").rename(root / "names.txt")
    seen += [fingerprint("mnist", **place), fingerprint("glyphs", **place), fingerprint("mnist+glyphs", **place)]
    assert len(set(seen[:5])) == 5 and seen[5] == seen[3], "glyphs add no file"
    assert fingerprint("kmnist", **place) == fingerprint("digits", **place) == seen[4], "no files"


def test_a_fingerprint_sees_into_class_folders_through_a_link_and_opens_nothing(folder, tmp_path, monkeypatch):
    (tmp_path / "alias").symlink_to(folder)
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("a file was opened"))
    before = fingerprint(tmp_path / "alias")
    (folder / "cat" / "000.png").unlink()
    assert fingerprint(tmp_path / "alias") != before


@pytest.mark.parametrize(
    ("source", "drawn"), [("shapes", True), ("glyphs+shapes", True), ("digits", False), ("shapes+./shapes", False)]
)
def test_of_drawn_sources_alone_another_seed_gives_other_images(source, drawn):
    assert sources.is_drawn(source) == drawn
    if drawn:
        one, other = (
            load(source, Reading(part="all", size=8, channels=1, shapes_per_class=2, glyphs_per_class=1, seed=seed))
            for seed in (0, 1)
        )
        assert (one.pixels != other.pixels).any((1, 2, 3)).all()
