"""Sources that need no file, each opened by its name."""

import pytest

from sfumato.sources import built_in, drawn_once, glyphs, shapes
from sfumato.sources.built_in import BUILT_IN, DRAWN, OPENERS
from sfumato.sources.catalogue import Reading


def test_each_source_by_name_has_its_opener():
    assert tuple(OPENERS) == BUILT_IN and set(DRAWN) < set(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_opened_has_the_name_that_was_given(name):
    facts = OPENERS[name](Reading(part="train", size=8, glyphs_per_class=1, shapes_per_class=1)).facts
    assert facts.source == name and facts.records > 0 and (facts.height, facts.width) == (8, 8)


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawing_that_follows_the_same_one_in_a_block_is_that_one(name, monkeypatch):
    drawings = []
    module, function = {"glyphs": (glyphs, "render_glyphs"), "shapes": (shapes, "render_shapes")}[name]
    real = getattr(module, function)
    monkeypatch.setattr(module, function, lambda *arguments: drawings.append(arguments) or real(*arguments))

    def drawn(seed):
        reading = Reading("all", size=8, characters="ab", glyphs_per_class=2, shapes_per_class=2, seed=seed)
        return [(record.pixels.tobytes(), record.label) for record in OPENERS[name](reading).records()]

    with drawn_once():
        assert drawn(1) == drawn(1) and len(drawings) == 1
        assert drawn(2) != drawn(1) and len(drawings) == 3, "one drawing is in memory, not all"
    assert built_in._LAST_DRAWING.get() is None, "and none after the block"
    drawn(1)
    drawn(1)
    assert len(drawings) == 5
