"""The library alone: what its wheel holds, and that it works, as the README has it, where nothing of the outer half is installed."""

import contextlib
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from email import message_from_string
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sfumato import __version__

ROOT = Path(__file__).resolve().parent.parent
BUILT_FROM = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "sfumato", "artifacts", "tasks", "flows")
LEFT_OUT = shutil.ignore_patterns("__pycache__")
OURS = ("artifacts", "tasks", "flows")
"""What is no part of the wheel."""
KNOWN = {
    "prefect",
    "mlflow",
    "lightly",
    "typer",
    "fastapi",
    "faiss",
    "torchvision",
    "diffusers",
    "pyarrow",
    "pandas",
    *OURS,
}
"""Some of what the library must do without."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy so that the checkout stays clean."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "checkout"
    copy.mkdir()
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=LEFT_OUT)
        else:
            shutil.copyfile(ROOT / name, copy / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--wheel-dir", folder, copy], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (result,) = folder.glob("*.whl")
    return result


@pytest.fixture(scope="module")
def names(wheel) -> set[str]:
    """The files in it."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.slow
def test_the_wheel_is_that_of_the_library(wheel, names):
    assert wheel.name == f"sfumato-{__version__}-py3-none-any.whl"
    info = f"sfumato-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"sfumato", info}
    assert {"sfumato/py.typed", f"{info}/METADATA", f"{info}/licenses/LICENSE"} <= names
    with zipfile.ZipFile(wheel) as archive:
        scripts = archive.read(f"{info}/entry_points.txt").decode().split("\n")
    assert scripts[:2] == ["[console_scripts]", "sfumato = sfumato.__main__:main"], "recipients' commands alone"


def test_the_version_is_said_alike():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["**/*.py", "presets/*.yaml", "sweeps/*.yaml"])
def test_nothing_of_the_library_is_missing(names, pattern):
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "sfumato").glob(pattern)}
    assert there and there <= names


@pytest.fixture(scope="module")
def outer(wheel) -> list[str]:
    """The modules here that `pip install` of the wheel would not bring: those of no distribution that it declares, or that these declare."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"sfumato-{__version__}.dist-info/METADATA").decode()
    brought, todo = (
        set[tuple[str, str]](),
        [(Requirement(one), "") for one in message_from_string(text).get_all("Requires-Dist")],
    )
    while todo:
        wanted, asking = todo.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": asking}):
            continue
        for extra in ("", *wanted.extras):
            if (pair := (canonicalize_name(wanted.name), extra)) not in brought:
                brought.add(pair)
                with contextlib.suppress(metadata.PackageNotFoundError):  # for another platform
                    todo += [(Requirement(one), extra) for one in metadata.requires(wanted.name) or ()]
    names = {name for name, _ in brought}
    owners = metadata.packages_distributions()
    missing = [name for name, of in owners.items() if not names & {canonicalize_name(one) for one in of}]
    assert set(KNOWN) <= {*missing, *OURS} and not {"torch", "numpy", "sqlalchemy"} & set(missing)
    return sorted({*missing, *OURS} - {"sfumato"})


@pytest.fixture
def alone(wheel, outer, tmp_path):
    """Runs a program where nothing but the wheel and what it depends on is installed; what it printed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    start = f"""
        import sys

        sys.path.insert(0, {str(tmp_path)!r})
        sys.modules.update(dict.fromkeys({outer!r}))  # None: to import it is an error

        import sfumato

        assert sfumato.__file__.startswith({str(tmp_path)!r})
    """

    def run(program: str) -> str:
        text = textwrap.dedent(start) + textwrap.dedent(program)
        done = subprocess.run(
            [sys.executable, "-P", "-c", text], capture_output=True, text=True, cwd=tmp_path, env={}, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_presets_and_sweeps_go_along(alone):
    program = """
        from sfumato.named_settings import presets, sweeps

        print(*presets(), *sweeps())
    """
    assert {"digits", "auto", "retrieval"} <= set(alone(program).split())


def test_the_lines_of_the_readme_run_with_the_wheel_alone(alone, released, tmp_path):
    """No search library, no orchestrator: a plan, a promise, and images of a model that was drawn by retrieval."""
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) <= 10
    (tmp_path / "released").symlink_to(released)
    ends = """
print(images.shape, images.dtype, labels.min(), labels.max(), threes.shape)
again, _ = model.draw(10, classes=["3"], seed=7)
assert (again == threes).all() and not (images[:10] == images[10:20]).all()
"""
    reported = alone(lines + ends)
    assert reported.count("differential privacy for one image with its label") == 2
    assert reported.endswith("(1000, 1, 8, 8) uint8 0 9 (10, 1, 8, 8)\n")


def test_more_images_are_drawn_and_written_with_the_wheel_alone(alone, released, tmp_path):
    program = f"""
        from sfumato import generate

        sys.argv = ["generate", {str(released)!r}, "--images", "6", "--classes", "3", "7", "--to", "more"]
        generate.main()
    """
    assert "6 images in" in alone(program)
    assert len(list((tmp_path / "more" / "data" / "train").rglob("*.png"))) == 6


def test_recipients_commands_work_with_the_wheel_alone(alone, released):
    program = f"""
        from sfumato.__main__ import main

        for words in (["verify-card", {str(released)!r}], ["run", "rapid"], ["--version"]):
            sys.argv = ["sfumato", *words]
            print(main())
    """
    reported = alone(program).splitlines()
    assert [line.split(":")[0] for line in reported[:3]] == ["holds"] * 3 and reported[3:] == [
        "0",
        "2",
        f"sfumato {__version__}",
        "0",
    ]


@pytest.mark.slow
def test_the_script_that_checks_a_card_goes_along(alone, released):
    program = f"""
        from sfumato import verify_card

        print(verify_card.main([{str(released / "card.json")!r}]))
    """
    reported = alone(program).splitlines()
    assert [line.split(":")[0] for line in reported[:3]] == ["holds"] * 3 and reported[3] == "0"
