"""What a piece of work sees of a section: what it does not depend on stands at one value for all runs."""

import pytest
from pydantic import ValidationError

from sfumato.config import LATER, Data, Generation, Judge, Section
from sfumato.marks import COMPARING, JUDGE_TRAINING, PROTOTYPES, PUBLIC_IMAGES, REHEARSING, NotFor


def test_the_public_images_depend_on_no_setting_of_the_private_side():
    private = {"private": "scans", "name": "a", "held_out": 0.3, "share": 0.5, "records": 9, "classes": ("x", "y")}
    private |= {"private_classes": ("x",), "group": "prefix", "unit": "patient", "window": "record"}
    mine = Data(public="omniglot", glyphs="digits", **private)
    assert mine.seen_by(PUBLIC_IMAGES) == Data(public="omniglot", glyphs="digits").seen_by(PUBLIC_IMAGES)
    assert mine.seen_by(PUBLIC_IMAGES).private == "" and mine.seen_by(PUBLIC_IMAGES).public == "omniglot"
    for change in ({"size": 16}, {"glyphs_per_class": 7}, {"public_without": ("x",)}, {"invert": "public"}):
        assert mine.model_copy(update=change).seen_by(PUBLIC_IMAGES) != mine.seen_by(PUBLIC_IMAGES), change


def test_each_work_sees_what_it_depends_on():
    mine = Generation(images=7, edition=3, redraw=0.4, classes="queried", count_noise=2.0, steps=9)
    assert mine.seen_by(COMPARING) == mine.model_copy(update={"edition": 0})
    assert mine.seen_by(REHEARSING) == Generation(images=7, steps=9)
    assert mine.seen_by(PROTOTYPES) == Generation(steps=9)
    assert Judge(use="filter", keep=0.5, share=0.3, steps=8).seen_by(JUDGE_TRAINING) == Judge(steps=8)


def test_a_field_without_the_mark_is_seen_by_every_work():
    """So that a further setting changes keys where nobody has thought about it, and nothing is found that was made otherwise."""

    class Further(Section):
        new: int = 0

    assert Further(new=3).seen_by(PUBLIC_IMAGES) == Further(new=3)
    with pytest.raises(ValidationError):
        Further(new=3).seen_by(PUBLIC_IMAGES).new = 4


def test_no_mark_hides_a_value_that_keys_of_before_left_out():
    """A field that came later is left out of a key at its default alone, so that is what its mark must put there."""
    for section in (Data, Generation, Judge):
        for name, field in section.model_fields.items():
            for mark in field.metadata:
                if isinstance(mark, NotFor) and LATER in field.metadata:
                    assert mark.at is None, name
