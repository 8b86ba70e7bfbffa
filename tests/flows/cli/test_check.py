"""`sfumato check`: what it prints, keeps and writes down, and where it tells nobody."""

import shutil
import sys
from collections import Counter

import pytest
from PIL import Image

from artifacts import serialization
from artifacts.references import PublicImages
from flows.cli import main
from sfumato.errors import BadInput
from sfumato.preflight import brought_to, plan_for, preflight, private_set
from sfumato.settings import resolve
from sfumato.sources import decoding, shapes
from tasks.checks import check_private
from tasks.public import read_public
from tasks.runtime.artifact import RunContext
from tasks.runtime.environment import where
from tasks.terms import Order, Terms
from tests.examples import home_at, write_classes


@pytest.fixture
def home(tmp_path):
    """A home of its own."""
    with home_at(tmp_path / "home") as path:
        yield path


@pytest.fixture
def check(home, monkeypatch, capsys):
    """The command in this process: exit code, output, errors."""

    def command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sfumato", "check", *map(str, arguments)])
        try:
            main.main()
        except SystemExit as leave:
            return leave.code, *capsys.readouterr()
        return 0, *capsys.readouterr()

    return command


@pytest.fixture
def images(tmp_path):
    return write_classes(tmp_path / "scans", {"ill": 30, "well": 30})


def test_a_sheet_is_printed_and_kept_as_internal_and_told_to_nobody(check, home, images, tmp_path):
    public = write_classes(tmp_path / "textures", {"bark": 4, "sand": 4})  # drawn from the seed of the private ones
    code, out, err = check(images, "--public", public)
    assert code == 2 and err.endswith("take the copies out of the public side\n")
    assert out.startswith("INTERNAL") and "pixel by pixel" in out
    sheet = home / "checks" / "scans.md"
    assert "INTERNAL" in sheet.read_text().splitlines()[0] and str(sheet) in out
    with where().ledger() as ledger:
        assert [(entry.kind, entry.dataset) for entry in ledger.entries()] == [("look", "scans")]
    assert not (home / "mlflow.db").exists() and not list((home / "runs").iterdir())


def test_good_images_end_well_and_broken_ones_do_not(check, images):
    assert check(images)[0] == 0
    (images / "ill" / "000.png").write_bytes(b"no picture")
    code, out, err = check(images)
    assert code == 2 and "1 of 60 pictures cannot be read" in err and "is corrupt" in out


def test_a_declared_class_that_is_written_otherwise_in_the_data_is_told(check, images):
    out = check(images, "--set", "data.classes=[ill,wel]")[1]
    assert "data.classes names 'wel', of which there is no image" in out
    assert "data.classes does not name 'well': 30 images are left out" in out
    assert "data.classes" not in check(images, "--set", "data.classes=[ill,well]")[1] + check(images)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "privacy.epsilon=1"], "only data.FIELD=VALUE"),
        (["--public", "."], "must not come from the private collection"),
        (["--set", "data.group=patient"], "data.group='patient'"),
        (["--public", "../nowhere"], "'../nowhere' does not exist"),
    ],
)
def test_mistakes_are_one_line_and_no_look(check, images, monkeypatch, arguments, words):
    monkeypatch.chdir(images)
    code, _, err = check(images, *arguments)
    assert code == 2 and err.startswith("sfumato: ") and err.count("\n") == 1 and words in err
    assert where().ledger().entries() == []


def test_one_source_on_both_sides_is_looked_at_by_its_chosen_classes(check, tmp_path):
    objects = write_classes(tmp_path / "objects", {"cat": 30, "dog": 30, "owl": 30, "yak": 30})
    sides = [objects, "--public", objects, "--set", "data.private_classes=[cat,1]"]
    code, _, err = check(*sides)
    assert code == 2 and "the class 'cat' of" in err and err.count("\n") == 1
    (objects / "owl" / "cut.png").write_bytes(b"no picture")
    code, out, err = check(*sides, "--set", "data.public_without=[0,dog]")
    assert code == 2 and "cut.png" in err and "corrupt" in err
    (objects / "owl" / "cut.png").unlink()
    code, out, _ = check(*sides, "--set", "data.public_without=[0,dog]")
    assert code == 0 and "60 images in 2 classes" in " ".join(out.split()) and "cut.png" not in out


def test_public_images_that_are_much_smaller_are_warned_of_or_refused(check, images, tmp_path):
    small = write_classes(tmp_path / "small", {"bark": 2, "sand": 2})
    for path in small.rglob("*.png"):
        Image.open(path).resize((5, 5)).save(path)
    code, _, err = check(images, "--public", small, "--set", "data.size=12")
    assert code == 2 and "enlarged 2.4 times to the 12" in err and err.count("\n") == 1
    out = check(images, "--public", small, "--set", "data.size=8")[1]
    assert "warning: public images" in out and "enlarged 1.6 times to 8" in " ".join(out.split())


def test_a_mixture_of_several_sizes_is_compared_at_the_size_that_a_run_would_take(check, tmp_path):
    write_classes(tmp_path / "others", {"x": 30, "y": 30}, 12, 12)
    scans = write_classes(tmp_path / "scans", {"a": 30, "b": 30})
    few = ["--set", "data.glyphs_per_class=5"]
    for more in ([], ["--set", "data.size=8"]):
        code, out, err = check(scans, "--public", f"glyphs+{tmp_path / 'others'}", *few, *more)
        assert code == 0 and "Pairs of an image and a public one" in out, err


def test_what_is_not_there_is_one_line(check, tmp_path):
    code, _, err = check(tmp_path / "nowhere")
    assert code == 2 and err.count("\n") == 1 and "does not exist" in err


# What a run refuses


def one(folder, make):
    path = next(folder.rglob("*.png"))
    image = Image.open(path)
    image.load()
    make(image).save(path)


def copy_to(public, image):
    image.save(public / "bark" / "copy.png")


def first(private):
    return Image.open(next(private.rglob("*.png")))


def emptied(folder, name):
    for path in (folder / name).iterdir():
        path.unlink()


MISTAKES = {
    "none": lambda private, public: (),
    "an image in colour among grey ones": lambda private, public: one(private, lambda image: image.convert("RGB")),
    "an image of another size": lambda private, public: one(private, lambda image: image.resize((9, 9))),
    "a broken image": lambda private, public: next(private.rglob("*.png")).write_bytes(b"hello"),
    "no other class": lambda private, public: shutil.rmtree(private / "ill"),
    "a class without images": lambda private, public: emptied(private, "ill"),
    "too few images": lambda private, public: [path.unlink() for path in list(private.rglob("*.png"))[3:]],
    "public images from the collection": lambda private, public: ["data.public=" + str(private)],
    "a copy on the public side": lambda private, public: copy_to(public, first(private)),
    "a copy that is one once it is resized": lambda private, public: copy_to(
        public, first(private).resize((16, 16), Image.Resampling.NEAREST)
    ),
    "a broken public image": lambda private, public: next(public.rglob("*.png")).write_bytes(b"hello"),
    "public images much too small": lambda private, public: ["data.size=40"],
    "groups that there are not": lambda private, public: ["data.group=patient"],
    "a limit": lambda private, public: ["data.limit=20"],
    "too much held out": lambda private, public: ["data.held_out=.99"],
    "images that are not square": lambda private, public: (
        write_classes(private, {"ill": 30, "well": 30}, width=9) and ()
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_check_refuses_what_a_run_refuses_before_it_trains(check, home, images, tmp_path, mistake):
    """One picture in colour among grey ones passed the check, and ended a run after a minute."""
    public = write_classes(tmp_path / "textures", {"bark": 20, "sand": 20}, seed=1)
    changes = MISTAKES[mistake](images, public)
    changes = changes if isinstance(changes, list) and all(isinstance(one, str) for one in changes) else []
    sides = [f"data.private={images}", f"data.public={public}"]
    refused = True
    try:
        settings, facts, _ = preflight(resolve("rapid", changes=[*sides, *changes]), str(tmp_path))
        plan_for(settings, facts)
        size, channels = brought_to(facts.shape)
        learnt_from = settings.data.model_copy(update={"channels": channels})
        with where().store().writing() as folder:
            serialization.save_images(folder, read_public(learnt_from, size, 0, lambda *_: None))
            ref = where().store().keep(PublicImages, folder, parents=[])
        terms = Terms(relation="add_remove", delta=1e-5)
        order = Order(private=private_set(settings), terms=terms, machine=settings.machine)
        check_private(order, RunContext(run="run-1", parents={}), ref)
        refused = False
    except BadInput:
        pass
    assert refused is (mistake != "none")
    arguments = [part for change in changes if not change.startswith("data.public=") for part in ("--set", change)]
    side = next((change.split("=", 1)[1] for change in changes if change.startswith("data.public=")), public)
    code, _, err = check(images, "--public", side, *arguments)
    assert code == (2 if refused else 0), (mistake, err)
    assert not refused or err.count("\n") >= 1


def test_every_reason_why_no_run_would_begin_is_said_at_once(check, images, tmp_path):
    public = write_classes(tmp_path / "textures", {"bark": 20, "sand": 20}, seed=1)
    shutil.copy(images / "ill" / "000.png", public / "bark" / "copy.png")
    code, _, err = check(images, "--public", public, "--set", "data.held_out=.99")
    assert code == 2 and "1 private picture is among the public ones" in err and "data.held_out=0.99" in err
    assert err.count("copies") == 1 and "; besides, " in err


def test_images_that_changed_since_they_were_paid_for_are_told_before_a_run_says_so(check, images):
    with where().ledger() as ledger:
        ledger.look("scans", "another digest", "judge", stage="evaluation", run="run-1", code_version="1")
    code, _, err = check(images)
    assert code == 2 and "changed since its last entry" in err and "--new-version" in err


def test_each_private_picture_is_decoded_once_and_public_ones_are_drawn_once(check, tmp_path, monkeypatch):
    """A collection was decoded four times, and the same shapes were drawn twice."""
    scans = write_classes(tmp_path / "scans", {"ill": 30, "well": 30}, 32, 32)
    decoded, drawings = Counter(), []
    real, draw = decoding.pixels_of, shapes.render_shapes
    monkeypatch.setattr(decoding, "pixels_of", lambda path: decoded.update([path]) or real(path))
    monkeypatch.setattr(shapes, "render_shapes", lambda *arguments: drawings.append(arguments) or draw(*arguments))
    code, _, err = check(
        *(scans, "--public", "shapes"),
        *("--set", "data.shapes_per_class=4", "--set", "data.share=.5", "--set", "data.size=32"),
    )
    assert code == 0, err
    assert set(decoded.values()) == {1} and len(decoded) == 60 and len(drawings) == 1
