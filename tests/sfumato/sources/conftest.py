"""A folder of pictures for the tests of sources."""

from pathlib import Path

import pytest

from tests.sfumato.sources.writing import write_folder


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_folder(tmp_path / "pets", {"cat": 30, "ant": 20})
