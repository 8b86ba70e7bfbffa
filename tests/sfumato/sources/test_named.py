"""Data sets by name: found where they may lie, fetched whole or not at all, refused in one line."""

import os
import socket
import urllib.error
import urllib.request

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from sfumato.sources import Reading, describe, load, named, source_digest
from sfumato.sources.identity import one_source
from sfumato.sources.named import boxed, locate, published_part
from tests.sfumato.sources.writing import draw, refused, write_folder, write_idx, write_mnist_like


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No network, as the library that fetches sees it; returns the addresses that were asked for."""
    requested = []

    def fail(request, *args, **kwargs):
        requested.append(request if isinstance(request, str) else request.full_url)
        raise urllib.error.URLError("no route\nto host")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    return requested


def write_digits(root):
    """Files like MNIST's with labels 0 to 9."""
    write_mnist_like(root)
    for beginning, count in (("train", 30), ("t10k", 10)):
        write_idx(root / f"{beginning}-labels-idx1-ubyte.gz", np.arange(count) % 10)


# --- MNIST and its kin ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw"])
def test_both_layouts_are_found(tmp_path, place):
    write_digits(tmp_path / place)
    assert locate("mnist", str(tmp_path)) == tmp_path / place
    for part, count in (("train", 30), ("test", 10), ("all", 40)):
        facts, loaded = (read("mnist", Reading(part=part, folder=str(tmp_path))) for read in (describe, load))
        assert facts.records == len(loaded) == count and facts.classes == loaded.classes == tuple("0123456789")
        assert facts.source == "mnist" and loaded.pixels.shape[1:] == (1, 6, 6)
    assert source_digest("mnist", Reading(folder=str(tmp_path))) == source_digest(tmp_path / place)


def test_names_of_clothes_and_kana(tmp_path):
    for name in ("fashion-mnist", "kmnist"):
        write_digits(tmp_path / name)
    assert describe("fashion-mnist", Reading(folder=str(tmp_path))).classes[9] == "ankle boot"
    assert describe("kmnist", Reading(folder=str(tmp_path))).classes[2] == "su"


def test_emnist_letters_are_turned_upright_and_named(tmp_path):
    root = tmp_path / "EMNIST" / "raw"
    root.mkdir(parents=True)
    stored = np.random.default_rng(0).integers(0, 256, (52, 6, 5))
    for side in ("train", "test"):
        write_idx(root / f"emnist-letters-{side}-images-idx3-ubyte", stored)
        write_idx(root / f"emnist-letters-{side}-labels-idx1-ubyte", np.arange(52) % 26 + 1)
    write_idx(root / "emnist-digits-train-images-idx3-ubyte", stored)  # other splits lie beside
    facts, loaded = (read("emnist-letters", Reading(folder=str(tmp_path))) for read in (describe, load))
    assert facts.classes[0] == "a" and facts.classes[25] == "z" and loaded.labels[:2].tolist() == [0, 1]
    assert np.array_equal(loaded.pixels[:, 0], stored.transpose(0, 2, 1))
    assert (facts.height, facts.width) == loaded.pixels.shape[2:] == (5, 6)
    write_idx(root / "emnist-letters-train-labels-idx1-ubyte", np.arange(52) % 26)
    with refused("hold 0, but run from 1 to 26"):
        describe("emnist-letters", Reading(folder=str(tmp_path)))


def test_an_incomplete_set_is_not_taken_for_good(tmp_path, offline):
    root = tmp_path / "MNIST" / "raw"
    write_digits(root)
    for side in ("images-idx3", "labels-idx1"):
        (root / f"t10k-{side}-ubyte.gz").unlink()
    with refused("holds no test images of 'mnist'", "remove that folder"):
        describe("mnist", Reading(folder=str(tmp_path)))
    (root / "train-labels-idx1-ubyte.gz").unlink()
    with refused("has no labels beside it"):
        describe("mnist", Reading(folder=str(tmp_path)))
    (root / "train-images-idx3-ubyte.gz").unlink()
    (root / "t10k.tmp").touch()
    with refused("holds no images of 'mnist'", str(root)):
        describe("mnist", Reading(folder=str(tmp_path)))
    assert not offline


def test_files_cut_off_in_unpacking_are_refused_by_their_headers(tmp_path):
    root = write_mnist_like(tmp_path / "mnist", end="")
    path = root / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with refused("train-images-idx3-ubyte' promises 1,080 bytes and holds only 1,079"):
        describe(root)


# --- fetching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist", "emnist-letters", "cifar10", "omniglot"])
def test_without_a_network_one_line_says_what_to_do(tmp_path, name, offline):
    place = tmp_path / "new" / named.NAMED[name].place
    with refused(f"{name!r} is not in", "could not be fetched", str(place), "data.folder", "network"):
        describe(name, Reading(folder=str(tmp_path / "new")))
    assert offline  # torchvision did ask
    assert list((tmp_path / "new").iterdir()) == []


def test_celeba_without_a_network(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no route to host")

    monkeypatch.setattr(datasets.CelebA, "download", fail)
    with refused("'celeba' is not in", "no route to host", "list_attr_celeba.txt"):
        describe("celeba", Reading(folder=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


class Fetches:
    """Stands for a class of torchvision that fetches files in the way that `act` says."""

    def __init__(self, act):
        self.act = act

    def __call__(self, root, download):
        assert download
        print("what the library says")
        place = os.path.join(root, "MNIST", "raw")
        os.makedirs(place)
        self.act(place)


def test_a_download_appears_whole(tmp_path, monkeypatch, capsys):
    def act(place):
        assert not (tmp_path / "MNIST").exists()
        write_digits(type(tmp_path)(place))

    monkeypatch.setattr(datasets, "MNIST", Fetches(act))
    assert describe("mnist", Reading(folder=str(tmp_path))).records == 30
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(datasets, "MNIST", Fetches(lambda place: pytest.fail("fetched again")))
    assert len(load("mnist", Reading(folder=str(tmp_path)))) == 30


@pytest.mark.parametrize(
    "fault", [RuntimeError("File not found or corrupted."), OSError(28, "No space left on device")]
)
def test_a_download_that_breaks_off_leaves_nothing(tmp_path, monkeypatch, fault):
    def act(place):
        write_digits(type(tmp_path)(place))
        raise fault

    monkeypatch.setattr(datasets, "MNIST", Fetches(act))
    with refused("could not be fetched", str(fault)):
        describe("mnist", Reading(folder=str(tmp_path)))
    assert list(tmp_path.iterdir()) == [] and locate("mnist", str(tmp_path)) is None


def test_two_downloads_at_once_leave_one(tmp_path, monkeypatch):
    def act(place):
        write_digits(type(tmp_path)(place))
        write_digits(tmp_path / "MNIST" / "raw")  # the other one is faster

    monkeypatch.setattr(datasets, "MNIST", Fetches(act))
    assert describe("mnist", Reading(folder=str(tmp_path))).records == 30
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]


def test_something_else_in_the_way_is_not_overwritten(tmp_path, monkeypatch):
    (tmp_path / "MNIST" / "notes").mkdir(parents=True)
    monkeypatch.setattr(datasets, "MNIST", Fetches(lambda place: write_digits(type(tmp_path)(place))))
    with refused("could not be fetched", "MNIST", "remove that folder"):
        describe("mnist", Reading(folder=str(tmp_path)))
    assert [path.name for path in (tmp_path / "MNIST").iterdir()] == ["notes"]


def test_a_silent_network_is_given_up_and_others_keep_their_patience(tmp_path, monkeypatch):
    before, during = socket.getdefaulttimeout(), []
    monkeypatch.setattr(datasets, "MNIST", Fetches(lambda place: during.append(socket.getdefaulttimeout())))
    with refused("holds no images of 'mnist'"):
        describe("mnist", Reading(folder=str(tmp_path)))
    assert during == [named.SILENCE_SECONDS] and socket.getdefaulttimeout() == before


def test_what_a_killed_download_left_is_not_looked_at(tmp_path, offline):
    write_digits(tmp_path / ".download-x" / "MNIST" / "raw")
    with refused("'mnist' is not in"):
        describe("mnist", Reading(folder=str(tmp_path)))


def test_a_folder_is_needed(tmp_path, monkeypatch):
    with refused("where 'mnist' lies", "data.folder=PATH"):
        describe("mnist")
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "mnist", {"a": 2})
    with refused("'mnist' is not in", "write ./mnist for the folder"):
        describe("mnist", Reading(folder=str(tmp_path / "data")))


@pytest.mark.parametrize(("typed", "meant"), [("mnsit", "mnist"), ("CIFAR-10", "cifar10"), ("glyph", "glyphs")])
def test_an_unknown_name_suggests_the_nearest(typed, meant):
    for read in (describe, load):
        with refused(f"{typed!r} does not exist", f"did you mean {meant!r}?", "fashion-mnist", "folder"):
            read(typed)


# --- the others -------------------------------------------------------------------------------------------------------


def test_cifar_is_checked_by_torchvision_and_never_opened_unchecked(tmp_path):
    root = tmp_path / "cifar-10-batches-py"
    root.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (root / name).write_bytes(b"cos\nmkdir\n(Vsprung\ntR.")  # a pickle that makes a folder
    facts = describe("cifar10", Reading(folder=str(tmp_path)))
    assert (facts.records, facts.channels, facts.height, facts.classes[3]) == (50000, 3, 32, "cat")
    for read in (load, source_digest):
        with refused("incomplete or damaged", "cifar-10-batches-py"):
            read("cifar10", Reading(folder=str(tmp_path)))


def test_cifar_images_come_through(tmp_path, monkeypatch):
    class Small:
        def __init__(self, root, train):
            assert root == tmp_path
            self.data = np.full((3 if train else 2, 32, 32, 3), 7, np.uint8)
            self.targets = [0, 9, 3][: len(self.data)]

    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "batches.meta").touch()
    monkeypatch.setattr(datasets, "CIFAR10", Small)
    result = load("cifar10", Reading(part="all", folder=str(tmp_path), size=16, channels=1))
    assert result.pixels.shape == (5, 1, 16, 16) and result.labels.tolist() == [0, 9, 3, 0, 9]
    assert len(load("cifar10", Reading(part="test", folder=str(tmp_path)))) == 2


def write_celeba(root, count=12):
    """CelebA's lists and pictures, 10 high and 8 wide: every second one is male, parts 0, 1 and 2 in turn."""
    pictures = root / "celeba" / "img_align_celeba"
    pictures.mkdir(parents=True)
    names = [f"{i:06}.jpg" for i in range(1, count + 1)]
    for name in names:
        draw(np.random.default_rng(0), 10, 8, 3).save(pictures / name)
    parts = "".join(f"{name} {i % 3}\n" for i, name in enumerate(names))
    (root / "celeba" / "list_eval_partition.txt").write_text(parts)
    rows = "".join(f"{name} -1 {1 if i % 2 else -1}\n" for i, name in enumerate(names))
    (root / "celeba" / "list_attr_celeba.txt").write_text(f"{count}\nSmiling Male\n{rows}")
    return root


def test_celeba_by_its_lists(tmp_path):
    folder = str(write_celeba(tmp_path))
    for part, count in (("train", 4), ("test", 4), ("all", 12)):
        facts, loaded = (
            read("celeba", Reading(part=part, folder=folder, crop="centre", size=4)) for read in (describe, load)
        )
        assert facts.records == len(loaded) == count and facts.classes == ("female", "male")
        assert loaded.pixels.shape[1:] == (facts.channels, facts.height, facts.width) == (3, 4, 4)
    assert load("celeba", Reading(folder=folder)).labels.tolist() == [0, 1, 0, 1]
    assert len(source_digest("celeba", Reading(folder=folder))) == 64


def test_celeba_that_is_incomplete(tmp_path):
    root = write_celeba(tmp_path) / "celeba"
    (root / "img_align_celeba" / "000004.jpg").unlink()
    with refused("lacks 1 of 4 pictures", "list_attr_celeba.txt"):
        describe("celeba", Reading(folder=str(tmp_path)))
    (root / "list_attr_celeba.txt").write_text("12\nSmiling Old\n")
    with refused("list_attr_celeba.txt' is damaged"):
        describe("celeba", Reading(folder=str(tmp_path)))
    (root / "list_attr_celeba.txt").write_text("")
    with refused("list_attr_celeba.txt' is cut off"):
        describe("celeba", Reading(folder=str(tmp_path)))
    (root / "list_attr_celeba.txt").unlink()
    for name in ("celeba", "celeba-hair"):
        with refused("list_attr_celeba.txt' cannot be read (No such file or directory)", "put img_align_celeba/"):
            describe(name, Reading(folder=str(tmp_path)))


def test_celeba_by_hair_leaves_out_who_has_another_colour_or_two(tmp_path):
    root = write_celeba(tmp_path, count=6) / "celeba"
    flags = ["-1 1 -1", "1 -1 -1", "-1 -1 1", "-1 -1 -1", "1 -1 1", "1 -1 -1"]
    rows = "".join(f"{i:06}.jpg {flag} 1\n" for i, flag in enumerate(flags, 1))
    head = "Blond_Hair Black_Hair Brown_Hair Male"
    (root / "list_attr_celeba.txt").write_text(f"6\n{head}\n{rows}")
    (root / "list_eval_partition.txt").unlink()
    reading = Reading(folder=str(tmp_path), size=4, crop="centre")
    facts, loaded = (read("celeba-hair", reading) for read in (describe, load))
    assert facts.classes == loaded.classes == ("black", "blonde", "brown") and facts.records == 4
    assert loaded.labels.tolist() == [0, 1, 2, 1], "the first in the list is blond there, and black comes first here"
    with refused("names no picture of 'celeba-hair' in the part 'test'"):
        describe("celeba-hair", Reading(part="test", folder=str(tmp_path)))
    assert one_source("celeba-hair", "celeba", str(tmp_path)), "the same persons under two names"
    (root / "list_attr_celeba.txt").write_text(f"6\n{head.replace('Blond', 'Gray')}\n{rows}")
    with refused("list_attr_celeba.txt' is damaged"):
        describe("celeba-hair", reading)


def test_celeba_without_the_list_of_its_parts_has_the_published_ones():
    numbers = (1, 162_770, 162_771, 182_637, 182_638, 202_599)
    assert [published_part(f"{number:06}.jpg") for number in numbers] == ["0", "0", "1", "1", "2", "2"]
    assert published_part("me.jpg") == ""


def test_omniglot_as_published_becomes_white_on_black(tmp_path):
    root = tmp_path / "omniglot-py" / "images_background"
    for character in ("Greek/character01", "Greek/character02", "Latin/character01"):
        (root / character).mkdir(parents=True)
        for i in range(2):
            page = np.full((105, 105), 255, np.uint8)
            page[20:80, 50 : 53 + 20 * i] = 0  # a black bar on white
            Image.fromarray(page).convert("1").save(root / character / f"{i}.png")
    facts, loaded = (read("omniglot", Reading(part="all", folder=str(tmp_path))) for read in (describe, load))
    assert facts.classes == loaded.classes == ("Greek/character01", "Greek/character02", "Latin/character01")
    assert facts.records == len(loaded) == 6 and loaded.pixels.shape[1:] == (1, facts.height, facts.width)
    rows = np.flatnonzero(loaded.pixels[0, 0].max(1))
    assert loaded.pixels.mean() < 40 and (rows[0], rows[-1], loaded.pixels.max()) == (4, 23, 255)


def test_the_box_is_centred_by_mass():
    writing = np.zeros((105, 105, 1), np.uint8)
    writing[10:70, 30:60] = 255
    shown = boxed(writing)[:, :, 0] / 255
    place = np.arange(28)
    assert (
        abs((shown.sum(1) @ place) / shown.sum() - 13.5) <= 0.5
        and abs((shown.sum(0) @ place) / shown.sum() - 13.5) <= 0.5
    )
    assert shown.sum() == pytest.approx(20 * 10, rel=0.01)
    assert not boxed(np.zeros((105, 105, 1), np.uint8)).any()


def test_real_data_by_name(data):
    facts = describe("mnist", Reading(folder=str(data)))
    assert (facts.records, facts.classes, facts.height) == (60000, tuple("0123456789"), 28)
    mixed = describe("omniglot+glyphs", Reading(part="all", size=28, folder=str(data)))
    assert mixed.records == 4840 + 52 * 400 and mixed.classes[0] == "omniglot:Balinese/character01"
    assert mixed.classes[-1] == "glyphs:Z" and len(mixed.classes) == 242 + 52
