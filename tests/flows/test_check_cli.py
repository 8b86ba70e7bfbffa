"""`sfumato check`: what it prints, keeps and writes down, and where it tells nobody."""

import sys

import pytest

from flows import cli
from tasks.where import where
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
            cli.main()
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


def test_what_is_not_there_is_one_line(check, tmp_path):
    code, _, err = check(tmp_path / "nowhere")
    assert code == 2 and err.count("\n") == 1 and "does not exist" in err
