"""Judging takes a share of the time, and no more."""

import functools

import pytest

from sfumato.costs import COSTS
from sfumato.evaluation.effort import judging_seconds
from sfumato.recipe.judging import judged_sets
from sfumato.settings import resolve
from tests.sfumato.recipe.making import facts, recipe


@pytest.mark.parametrize(
    ("shape", "classifiers"),
    [((1, 28, 28), "fast"), ((1, 28, 28), "all"), ((3, 32, 32), "fast"), ((3, 64, 64), "fast")],
)
def test_judging_takes_a_quarter_of_the_time_at_most(shape, classifiers):
    requested = [f"evaluation.classifiers={classifiers}", "evaluation.scikit_images=1"]
    result = recipe(*requested, shape=shape, records=60_000)
    how, drawn, quarter = result.evaluation, result.generation.images, 0.25 * 3600
    takes = functools.partial(judging_seconds, table=COSTS["cpu"], sizes=judged_sets(result, facts(shape, 60_000)))
    assert takes(how, judged=how.images) <= quarter
    assert 2000 <= how.images <= drawn and (how.epochs == 50 or (classifiers == "all" and how.epochs >= 10))
    longer = how.model_copy(update={"epochs": how.epochs + 1})
    assert how.images == drawn or takes(longer, judged=drawn) > quarter, "no less than there is time for"


def test_papers_are_judged_as_they_were():
    assert resolve("rapid", "rapid-mnist").evaluation.epochs == 50
    result = recipe("evaluation.classifiers=all", "evaluation.epochs=50", "evaluation.images=30000", shape=(3, 64, 64))
    assert (result.evaluation.epochs, result.evaluation.images) == (50, 30_000), "what is set stays"
