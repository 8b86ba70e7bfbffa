"""Stable import path of the accountant, for checks from outside."""

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
