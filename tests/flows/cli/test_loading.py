"""Loading without the collector: it is on again afterwards, and leaves alone what was loaded."""

import gc

import pytest

from flows.cli.loading import loading


def test_nothing_is_collected_while_libraries_load_and_what_is_there_then_is_left_alone():
    before = gc.get_freeze_count()
    try:
        with loading():
            assert not gc.isenabled()
        assert gc.isenabled() and gc.get_freeze_count() > before
        with pytest.raises(ImportError), loading():
            raise ImportError("no such library")
        assert gc.isenabled()
    finally:
        gc.unfreeze()
