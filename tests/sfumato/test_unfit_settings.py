"""Parts of the settings that do not go together are refused in one line that names them, and what goes together is planned.

A choice of public classes: `tests/sfumato/methods/test_contract.py`.
"""

import pytest

from sfumato.errors import BadInput
from sfumato.preflight import plan_for, preflight
from sfumato.settings import resolve


def planned(method, *changes):
    settings, facts, _ = preflight(resolve(method, "digits", changes))
    return plan_for(settings, facts)


@pytest.mark.parametrize(
    ("method", "changes", "named"),
    [
        ("dp-sgd", ["network.prediction=energy"], "network.prediction=energy"),
        ("dppm", ["generation.classes=declared"], "generation.classes=declared"),
        ("dp-sgd", ["generation.classes=queried", "generation.count_noise=.01"], "generation.count_noise=0.01"),
        ("dp-sgd", ["judge.use=weigh", "judge.directions=5000"], "judge.directions=5000"),
        ("dppm", ["judge.use=filter"], "judge.use=filter"),
        ("dp-merf", ["judge.use=guide"], "judge.use=guide"),
        ("dp-merf", ["fine_tuning.rates=[0.1,0.2]"], r"fine_tuning.rates=\[0.1,0.2\]"),
        ("dp-sgd", ["fine_tuning.rates=[0.1]"], r"fine_tuning.rates=\[0.1\]"),
        ("dp-sgd", ["fine_tuning.rates=[0.1,0.1]"], r"fine_tuning.rates=\[0.1,0.1\]"),
        ("dppm", ["alignment.kind=moments"], "alignment.kind=moments"),
        ("dp-merf", ["central.images=5"], "central.images=5"),
        ("dp-sgd", ["central.images=5", "alignment.kind=moments"], "alignment.kind=moments"),
        ("dp-sgd", ["central.images=100", "central.of=cells"], r"central.images=100 .*means of"),
        ("dp-merf", ["matching.share=.2"], "matching.share=0.2.*matching.share=0$"),
        ("empirical-denoiser", ["matching.share=.2"], r"matching.share=0, or keep paid points"),
        ("dp-sgd", ["matching.share=.001"], "matching.share=0.001"),
        ("empirical-denoiser", ["generation.vary=.1", "method.pay=image"], "generation.vary=0.1"),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_name_in_one_line(method, changes, named):
    with pytest.raises(BadInput, match=named) as refusal:
        planned(method, *changes)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "changes",
    [
        ["fine_tuning.rates=[0.1,0.2]"],
        ["judge.use=weigh"],
        ["central.images=2", "central.of=cells"],
        ["generation.classes=queried"],
    ],
)
def test_what_goes_together_is_planned_and_paid_for(changes):
    assert len(planned("dp-sgd", *changes).spends) > len(planned("dp-sgd").spends)
