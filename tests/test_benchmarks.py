"""Every benchmark says what it is for without running it; figures are not tested."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = sorted(path.name for path in (ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_explains_itself(name, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SFUMATO_HOME": str(tmp_path / "home")}
    asked = [sys.executable, f"benchmarks/{name}", "--help"]
    told = subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    assert f"benchmarks/{name}" in told.stdout, "the docstring holds its command"
    assert not (tmp_path / "home").exists(), "asking for help leaves nothing behind"
