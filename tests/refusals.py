"""What a refusal is like: before any work, in one line, with the culprit."""

import contextlib

import pytest

from sfumato.errors import BadInput


@contextlib.contextmanager
def refused(culprit):
    """Expect `BadInput` in one line that matches `culprit`."""
    with pytest.raises(BadInput, match=culprit) as refusal:
        yield
    assert "\n" not in str(refusal.value)
