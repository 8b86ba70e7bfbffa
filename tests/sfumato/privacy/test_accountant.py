"""Names that checks from outside import."""

import pytest

from sfumato.privacy import accountant
from sfumato.privacy.accounting import accountant as behind


@pytest.mark.parametrize("name", accountant.__all__)
def test_what_is_called_stable_is_found_where_it_always_was(name):
    assert getattr(accountant, name) is getattr(behind, name)


def test_it_prices_plain_numbers():
    noise = accountant.calibrate_noise(3.0, 1e-5, 0.1, 50)
    assert accountant.dp_sgd_epsilon(noise, 0.1, 50, 1e-5) == pytest.approx(3.0, abs=0.01)
    assert accountant.gdp_delta(accountant.compose_gdp([0.6, 0.8]), accountant.gdp_epsilon(1.0, 1e-5)) == pytest.approx(
        1e-5
    )
