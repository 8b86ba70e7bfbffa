"""The accountant where checks from outside import it: names that stay, whatever moves behind them."""

from sfumato.privacy.accounting.accountant import (
    calibrate_noise,
    compose_gdp,
    dp_sgd_epsilon,
    gdp_delta,
    gdp_epsilon,
    subsampled_gaussian_clt,
    subsampled_gaussian_epsilon,
)

__all__ = [
    "calibrate_noise",
    "compose_gdp",
    "dp_sgd_epsilon",
    "gdp_delta",
    "gdp_epsilon",
    "subsampled_gaussian_clt",
    "subsampled_gaussian_epsilon",
]
