"""Private steps: how large, how many, and which layers bear noise."""

import pytest

from tests.sfumato.recipe.making import recipe


def test_few_private_steps_of_more_copies_where_epsilon_times_records_is_little():
    rich, little = recipe("privacy.epsilon=10"), recipe("privacy.epsilon=0.2")
    assert (rich.fine_tuning.draws, little.fine_tuning.draws, little.fine_tuning.steps) == (2, 4, 60)
    assert rich.fine_tuning.steps > 60 and rich.pretraining.steps == little.pretraining.steps, (
        "one public half for all targets"
    )


def test_less_privacy_budget_and_fewer_records_train_less():
    rich, poor = recipe(records=60_000), recipe("privacy.epsilon=.2", records=2_500)
    assert set(poor.fine_tuning.trainable) < set(rich.fine_tuning.trainable)
    assert poor.fine_tuning.steps < rich.fine_tuning.steps and poor.fine_tuning.batch < rich.fine_tuning.batch
    grouped = recipe(records=277, unit="person", images=9_000)
    assert 277 / 8 < grouped.fine_tuning.batch < 277 / 2


def test_after_class_moments_a_network_over_positions_trains_its_class_rows_alone():
    """Noise on modulation and attention makes a public model forget more than private records teach it."""
    few, many = (recipe(shape=(3, 32, 32), records=count) for count in (3_900, 60_000))
    for result in (few, many):
        assert result.alignment.kind == "moments" and result.alignment.share == 0.7
        assert result.fine_tuning.trainable == ("rows",) and result.fine_tuning.rate_rows == 0.01
    alone = recipe("privacy.epsilon=.2", "alignment.kind=none", records=2_500)
    assert alone.fine_tuning.trainable == ("rows",) and alone.fine_tuning.rate_rows == 0.05
    for epsilon in (10, 1):
        aligned = recipe(f"privacy.epsilon={epsilon}", records=60_000)
        assert (aligned.fine_tuning.rate_rows, aligned.fine_tuning.rate_other) == (0.01, 2e-4)
    plain = recipe("alignment.kind=none", shape=(3, 32, 32), records=3_900)
    assert "film" in plain.fine_tuning.trainable, "without moments it is training that brings the class"
    small, large = recipe(records=3_900), recipe(records=60_000)
    assert "film" in small.fine_tuning.trainable and "rest" in large.fine_tuning.trainable, (
        "an MLP was not seen to forget"
    )


@pytest.mark.parametrize("records", [10_000, 100_000])
def test_private_steps_leave_the_public_half_its_time(records):
    """However many records there are: with 100,000 forty steps of 8,192 once left 1,000 public steps of 20,000."""
    made = recipe(shape=(3, 32, 32), records=records)
    assert made.pretraining.steps > 10_000 and made.fine_tuning.steps >= 40 and made.fine_tuning.batch >= 1024
