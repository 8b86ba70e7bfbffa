"""Class moments and a judge, with what they may cost, where they pay."""

import math

import pytest

from sfumato.config import BackboneSettings
from tests.sfumato.recipe.making import recipe


def test_shares_of_a_very_large_target_are_small_and_not_none():
    settings = recipe("privacy.epsilon=1e6", records=60_000)
    assert 0 < settings.judge.share < 1e-4 and 0 < settings.matching.share < 1e-4


def test_class_moments_and_a_judge_where_they_pay():
    few, one = recipe(records=300), recipe(public_classes=1)
    large = recipe("latent.kind=patch", "latent.patch=8", shape=(3, 104, 104), records=60_000)
    assert (few.alignment.kind, few.judge.use) == ("none", "none")
    assert (one.alignment.kind, one.judge.use) == ("moments", "none"), "one public class teaches no features"
    assert (large.alignment.kind, large.judge.use) == ("none", "filter"), "second moments of too many numbers"
    shares = [recipe(f"privacy.epsilon={epsilon}", records=60_000) for epsilon in (10, 1, 0.2)]
    for result, epsilon in zip(shares, (10, 1, 0.2), strict=True):
        own = [result.alignment.share * epsilon, result.judge.share * epsilon, result.matching.share * epsilon]
        assert own[0] <= 0.701 * epsilon and own[1] <= 0.651, "the judge needs little"
        assert math.hypot(*own) < 0.85 * epsilon, "enough is left for gradients"


def test_a_method_that_has_moments_alone_never_reads_that_there_are_none():
    few = recipe(method="moments", records=300)
    reason = next(choice.why for choice in few.recipe.choices if choice.setting == "alignment.kind")
    assert few.alignment.kind == "moments" and few.judge.use == "none" and "30 records in a class are few" in reason


def test_a_judge_that_noise_would_teach_is_not_paid_for_and_leaves_the_public_half_as_it_is():
    for method in ("dp-sgd", "moments", "dp-merf"):
        heard, unheard = (recipe(f"privacy.epsilon={epsilon}", method=method, records=1500) for epsilon in (10, 1))
        assert heard.judge.use != "none" == unheard.judge.use
        assert heard.pretraining == unheard.pretraining and heard.latent == unheard.latent
        assert unheard.backbone == BackboneSettings()
    requested = recipe("judge.use=weigh", "privacy.epsilon=1", records=1500)
    assert requested.judge.use == "weigh" and requested.backbone.steps > 1


def test_classes_with_fewer_records_need_less_noise_on_their_moments():
    """Of the ensemble, whose moments have no cells."""
    costs = [
        10 * recipe(method="dp-ensemble", records=records).alignment.share
        for records in (120_000, 60_000, 30_000, 4_000)
    ]
    assert costs == pytest.approx([0.71, 0.71, 1.42, 2.7], abs=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "records", "cells"), [(10, 60_000, 64), (10, 10_000, 8), (1, 60_000, 8), (1, 10_000, 1)]
)
def test_classes_are_split_into_as_many_cells_as_their_records_and_the_budget_bear(epsilon, records, cells):
    settings = recipe(f"privacy.epsilon={epsilon}", method="moments", records=records)
    assert settings.alignment.cells == cells and settings.alignment.clusters == 1


@pytest.mark.parametrize(("epsilon", "records", "cells"), [(10, 60_000, 32), (10, 8_000, 8), (2, 60_000, 8)])
def test_beside_private_steps_too_where_most_of_epsilon_bears_them(epsilon, records, cells):
    beside = recipe(f"privacy.epsilon={epsilon}", method="dp-sgd", records=records)
    assert (beside.alignment.cells, beside.alignment.share) == (cells, 0.7)
    fewer = recipe(f"privacy.epsilon={epsilon / 10}", method="dp-sgd", records=records)
    assert fewer.alignment.cells == 1 and fewer.alignment.share <= 0.55


def test_a_network_that_learns_class_rows_alone_has_cells_too():
    rows = recipe("privacy.epsilon=10", method="dp-sgd", shape=(3, 28, 28), records=10_000)
    assert rows.network.kind == "unet" and rows.alignment.cells == 8
