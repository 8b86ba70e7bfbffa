"""The library alone: what its wheel holds, and that it works where nothing of the outer half is installed."""

import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
import yaml

from sfumato import __version__

ROOT = Path(__file__).resolve().parent.parent
BUILT_FROM = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "sfumato", "artifacts", "tasks", "flows")
LEFT_OUT = shutil.ignore_patterns("__pycache__")
OUTER = ("prefect", "mlflow", "lightly", "typer", "rich", "fastapi", "faiss", "torchvision")
"""What comes with an extra; the library must do without."""


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
    (found,) = folder.glob("*.whl")
    return found


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
    assert f"{info}/entry_points.txt" not in names  # the command line belongs to the checkout


def test_the_version_is_said_alike():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["**/*.py", "presets/*.yaml", "sweeps/*.yaml"])
def test_nothing_of_the_library_is_missing(names, pattern):
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "sfumato").glob(pattern)}
    assert there and there <= names


@pytest.mark.slow
def test_the_library_works_alone(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = f"""
        import sys

        sys.path.insert(0, {str(tmp_path)!r})
        sys.modules.update(dict.fromkeys({OUTER!r}))  # None: to import it is an error

        import sfumato
        from sfumato.preflight import plan_for, preflight
        from sfumato.named_settings import presets, sweeps
        from sfumato.settings import resolve

        assert sfumato.__file__.startswith({str(tmp_path)!r})
        assert "digits" in presets() and sweeps()
        settings, facts, _ = preflight(resolve("dp-sgd"))
        print(plan_for(settings, facts).certificate.sentence())
    """
    alone = [sys.executable, "-P", "-c", textwrap.dedent(program)]
    done = subprocess.run(alone, capture_output=True, text=True, cwd=tmp_path, env={}, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "differential privacy for one image with its label" in done.stdout
