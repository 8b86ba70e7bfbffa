"""Progress callbacks: what is counted as one piece, and what is told in percents alone."""

import pytest

from sfumato.progress import in_percent


@pytest.mark.parametrize("total", [1, 7, 100, 5145, 5146])
def test_percents_say_nothing_of_the_number_of_steps(total):
    heard = []
    show = in_percent(lambda *step: heard.append(step))
    for done in range(total + 1):
        show(done, total)
    assert {whole for _, whole in heard} == {100} and heard[0] == (0, 100) and heard[-1] == (100, 100)
    assert heard == sorted(heard)
