"""Options that stand for settings, beside settings."""

import pytest

from flows.cli.options import with_short
from sfumato.errors import BadInput


def test_options_join_the_settings_that_they_stand_for():
    assert with_short(["seed=3"], 2.0, licence="MIT") == ["seed=3", "privacy.epsilon=2.0", 'release.licence="MIT"']


@pytest.mark.parametrize(
    "other", ["privacy.epsilon=4", "privacy.epsilon=inf", "privacy.epsilon=[3", "privacy.epsilon =4"]
)
def test_a_setting_of_two_values_is_refused(other):
    with pytest.raises(BadInput, match=r"privacy.epsilon is given twice, as .* and as 3.0: leave one of them out"):
        with_short([other], 3.0)


def test_the_same_value_twice_is_one():
    with_short(["privacy.epsilon=3", "privacy.epsilon = 3e0", "seed=1", "seed=1", "data.name=2024-13-45"], 3.0)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.classes=[a, b, a]", "name each class once: 'a' is there twice"),
        ("seed=2147483648", "should be less than 2147483648"),
        ("seed=99999999999999999999999", "should be less than 2147483648"),
    ],
)
def test_what_no_run_could_use_is_refused_by_a_plan(sfumato, setting, words):
    shown = sfumato("plan", "moments", "--set", setting)
    assert shown.code == 2 and words in shown.err and not shown.out
