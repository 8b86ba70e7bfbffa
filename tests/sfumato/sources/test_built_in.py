"""Sources that need no file, each opened by its name."""

import pytest

from sfumato.sources.built_in import BUILT_IN, DRAWN, OPENERS
from sfumato.sources.catalogue import Reading


def test_each_source_by_name_has_its_opener():
    assert tuple(OPENERS) == BUILT_IN and set(DRAWN) < set(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_opened_has_the_name_that_was_given(name):
    facts = OPENERS[name](Reading(part="train", size=8, glyphs_per_class=1, shapes_per_class=1)).facts
    assert facts.source == name and facts.records > 0 and (facts.height, facts.width) == (8, 8)
