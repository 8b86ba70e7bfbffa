"""Advice about another method: given where it was measured, on what a recipe chose, and never for the method itself."""

import pytest

from sfumato.methods.plan import Facts
from sfumato.recipe.advice import ALONE, WHERE, advice
from sfumato.recipe.auto import follow
from sfumato.settings import resolve
from tests.source_code import ROOT

STROKES = Facts(records=60_000, classes=tuple("0123456789"), public_classes=294, shape=(1, 28, 28))
CHESTS = Facts(records=3_882, classes=("0", "1"), public_classes=200, shape=(1, 28, 28))
PHOTOGRAPHS = Facts(records=2_500, classes=tuple("abcde"), public_classes=195, shape=(3, 32, 32))


def advised(method, facts, *changes):
    return advice(follow(resolve(method, "auto", changes), facts, 60_000))


@pytest.mark.parametrize("method", ["rapid", "dp-sgd", "dp-promise"])
def test_many_images_of_few_numbers_are_for_class_moments_that_move(method):
    assert ALONE in advised(method, STROKES, "data.private=mnist", "data.public=omniglot+glyphs")


def test_at_a_small_epsilon_class_moments_alone_are_named():
    still = "matching.share=0"
    assert ALONE in advised("rapid", CHESTS, still, "privacy.epsilon=1") and not advised("rapid", CHESTS, still)


@pytest.mark.parametrize("epsilon", [1, 10])
def test_of_photographs_class_moments_alone_are_named(epsilon):
    assert "in colour" in advised("rapid", PHOTOGRAPHS, f"privacy.epsilon={epsilon}")


@pytest.mark.parametrize("method", ["dp-merf", "dp-mepf"])
def test_a_generator_of_images_in_colour_is_advised_against(method):
    assert ALONE in advised(method, PHOTOGRAPHS) and "colour" in advised(method, PHOTOGRAPHS)


def test_a_method_that_would_be_named_hears_nothing():
    assert not advised(ALONE, PHOTOGRAPHS, "privacy.epsilon=1")
    assert not advised(ALONE, STROKES) and not advised("dp-merf", STROKES)


def test_settings_of_ones_own_hear_nothing():
    assert not advice(resolve("rapid", "digits", ["privacy.epsilon=1"]))


def test_the_section_that_is_named_is_there():
    page, _, heading = WHERE.partition("#")
    assert f"## {heading.replace('-', ' ').capitalize()}\n" in (ROOT / page).read_text()
