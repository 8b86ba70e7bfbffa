"""`sfumato check`: what it prints, keeps and writes down, and where it tells nobody."""

import sys

import pytest
from PIL import Image

from flows.cli import main
from tasks.runtime.environment import where
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
    return write_classes(tmp_path / "scans", {"ill": 6, "well": 6})


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
    assert code == 2 and "1 of 12 pictures cannot be read" in err and "is corrupt" in out


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
    objects = write_classes(tmp_path / "objects", {"cat": 6, "dog": 6, "owl": 6})
    sides = [objects, "--public", objects, "--set", "data.private_classes=[cat,1]"]
    code, _, err = check(*sides)
    assert code == 2 and "the class 'cat' of" in err and err.count("\n") == 1
    (objects / "owl" / "cut.png").write_bytes(b"no picture")
    code, out, _ = check(*sides, "--set", "data.public_without=[0,dog]")
    assert code == 0 and "12 images in 2 classes" in " ".join(out.split()) and "cut.png" not in out


def test_public_images_that_are_much_smaller_are_warned_of_or_refused(check, images, tmp_path):
    small = write_classes(tmp_path / "small", {"bark": 2, "sand": 2})
    for path in small.rglob("*.png"):
        Image.open(path).resize((5, 5)).save(path)
    code, _, err = check(images, "--public", small, "--set", "data.size=12")
    assert code == 2 and "enlarged 2.4 times to the 12" in err and err.count("\n") == 1
    out = check(images, "--public", small, "--set", "data.size=8")[1]
    assert "warning: public images" in out and "enlarged 1.6 times to 8" in " ".join(out.split())


def test_what_is_not_there_is_one_line(check, tmp_path):
    code, _, err = check(tmp_path / "nowhere")
    assert code == 2 and err.count("\n") == 1 and "does not exist" in err
