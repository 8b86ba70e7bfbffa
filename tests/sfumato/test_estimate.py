"""The estimate grows with the work that the plan holds (times themselves are measured elsewhere)."""

import pytest

from sfumato import estimate as module
from sfumato.estimate import OVERHEAD_SECONDS, estimate
from sfumato.methods.empirical_denoiser import empirical_steps
from sfumato.preflight import plan_for, preflight
from sfumato.settings import resolve


def minutes(monkeypatch, *changes, method="dp-sgd"):
    monkeypatch.setattr(module, "_measure", lambda *_: 1e-3)
    monkeypatch.setattr("sfumato.privacy.accountant.calibrate", lambda *_: 1.0)  # the price plays no part here
    monkeypatch.setattr("sfumato.privacy.accountant.epsilon", lambda *_: 1.0)
    monkeypatch.setattr("sfumato.privacy.accountant.dp_sgd_epsilon", lambda *_, **__: 1.0)
    settings, facts, _ = preflight(resolve(method, changes=changes))
    return estimate(settings, plan_for(settings, facts))


def test_each_stage_counts(monkeypatch):
    none = ["pretraining.steps=0", "fine_tuning.steps=1", "generation.images=10", "evaluation.baseline=false"]
    base = minutes(monkeypatch, *none).minutes - OVERHEAD_SECONDS / 60
    for change in ("pretraining.steps=100", "fine_tuning.steps=20", "generation.images=5000"):
        assert minutes(monkeypatch, *none, change).minutes - OVERHEAD_SECONDS / 60 > 3 * base, change
    assert minutes(monkeypatch, *none, "evaluation.baseline=true").minutes - OVERHEAD_SECONDS / 60 > 1.5 * base
    latents = minutes(monkeypatch, *none, "latent.kind=kl", "latent.steps=200", "latent.batch=100").minutes
    assert latents == pytest.approx(base + OVERHEAD_SECONDS / 60 + 200 * 100 * 1e-3 / 60), "the autoencoder is trained"
    assert minutes(monkeypatch, *none, method="rapid").minutes > base + OVERHEAD_SECONDS / 60, (
        "the extractor is trained"
    )
    long = ["method.phase_one=paper", "method.training.steps=4000", "method.boundary=0.95"]
    assert minutes(monkeypatch, *none, *long, method="dp-promise").minutes > base + OVERHEAD_SECONDS / 60


def test_a_network_of_the_methods_own_is_measured_and_its_plain_training_counts(monkeypatch):
    none = ["pretraining.steps=0", "generation.images=10", "evaluation.baseline=false"]
    short, long = (minutes(monkeypatch, *none, f"method.training.steps={n}", method="dppm") for n in (10, 1000))
    assert long.minutes - short.minutes == pytest.approx(990 * 128 * 1e-3 / 60)
    large = minutes(monkeypatch, *none, "method.network.kind=refinenet", "method.network.width=64", method="dppm")
    assert large.gigabytes > short.gigabytes


def test_what_is_compared_with_private_records_counts(monkeypatch):
    none = ["pretraining.steps=0", "evaluation.baseline=false", "generation.images=100"]
    wide, narrow = (
        minutes(monkeypatch, *none, f"method.until={until}", method="empirical-denoiser") for until in (67.5, 50)
    )
    longer, shorter = (
        empirical_steps(resolve("empirical-denoiser", changes=[f"method.until={until}"]).method) for until in (67.5, 50)
    )
    pairs = 100 * (len(longer) - len(shorter)) * 1437
    assert pairs > 0 and wide.minutes - narrow.minutes == pytest.approx(pairs / module.PROBE_RECORDS * 1e-3 / 60)


def test_memory_follows_the_physical_batch(monkeypatch):
    one, four = (
        minutes(monkeypatch, f"machine.physical_batch={n}").gigabytes - module.BASE_GIGABYTES for n in (256, 1024)
    )
    assert four == pytest.approx(one * (1024 + 10) / (256 + 10))


@pytest.mark.parametrize("changes", [[], ["latent.kind=kl", "latent.width=4"]])
def test_the_probe_really_runs(changes):
    settings, facts, _ = preflight(resolve("dp-sgd", changes=["network.width=8", *changes]))
    found = estimate(settings, plan_for(settings, facts))
    assert OVERHEAD_SECONDS / 60 < found.minutes < 1e4 and found.gigabytes > module.BASE_GIGABYTES
