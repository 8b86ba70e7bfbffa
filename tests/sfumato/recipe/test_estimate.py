"""The estimate grows with the work that the plan holds (times themselves are measured elsewhere)."""

from dataclasses import replace

import pytest

from sfumato.costs import COSTS
from sfumato.methods.empirical_denoiser import empirical_steps
from sfumato.preflight import plan_for, preflight
from sfumato.recipe import estimate as module
from sfumato.recipe import probe
from sfumato.recipe.estimate import OVERHEAD_SECONDS, estimate
from sfumato.settings import resolve


def minutes(monkeypatch, *changes, method="dp-sgd"):
    monkeypatch.setattr(probe, "measured", lambda *_: 1e-3)
    monkeypatch.setattr(probe, "PROBE_SECONDS", 1e9)  # however slow the machine
    monkeypatch.setattr(
        "sfumato.privacy.accounting.accountant.calibrate", lambda *_: 1.0
    )  # the price plays no part here
    monkeypatch.setattr("sfumato.privacy.accounting.accountant.epsilon", lambda *_: 1.0)
    monkeypatch.setattr("sfumato.privacy.accounting.accountant.dp_sgd_epsilon", lambda *_, **__: 1.0)
    settings, facts, _ = preflight(resolve(method, changes=changes))
    return estimate(settings, plan_for(settings, facts))


FEW = ["matching.frequencies=300", "matching.steps=7"]
NONE = ["pretraining.steps=10", "fine_tuning.steps=1", "generation.images=10", "evaluation.baseline=false"]


@pytest.mark.parametrize(
    ("stage", "change", "times"),
    [
        ("denoiser", "pretraining.steps=100", 10),
        ("DP-SGD", "fine_tuning.steps=20", 20),
        ("drawing", "generation.images=500", 50),
        ("drawing for comparison", "generation.images=500", 50),
    ],
)
def test_each_stage_counts(monkeypatch, stage, change, times):
    base, more = (dict(minutes(monkeypatch, *NONE, *given).stages)[stage] for given in ([], [change]))
    assert base > 0 and more == pytest.approx(times * base, rel=0.01)


def test_a_solver_that_asks_twice_a_step_takes_twice_as_long(monkeypatch):
    base, twice = (dict(minutes(monkeypatch, *NONE, *given).stages) for given in ([], ["generation.solver=heun"]))
    for stage in ("drawing", "drawing for comparison"):
        assert twice[stage] == pytest.approx(2 * base[stage], rel=0.05)


def test_candidates_are_drawn_without_guidance(monkeypatch):
    plain, guided = (
        dict(minutes(monkeypatch, *NONE, f"generation.guidance={weight}", method="private-evolution").stages)
        for weight in (0, 1)
    )
    assert guided["candidates"] == plain["candidates"] > 0 and guided["drawing"] > 1.5 * plain["drawing"]


def test_the_public_model_is_drawn_from_without_guidance(monkeypatch):
    plain, guided = (
        dict(minutes(monkeypatch, *NONE, f"generation.guidance={weight}", method="moments").stages) for weight in (0, 1)
    )
    for stage in ("drawing for comparison", "rehearsal"):
        assert guided[stage] == plain[stage] > 0


def test_stages_are_there_where_they_are_planned(monkeypatch):
    base = dict(minutes(monkeypatch, *NONE).stages)
    latents = dict(minutes(monkeypatch, *NONE, "latent.kind=kl", "latent.steps=200", "latent.batch=100").stages)
    assert set(latents) - set(base) == {"autoencoder"} and latents["autoencoder"] > 200 * 100 * 1e-3
    assert set(dict(minutes(monkeypatch, *NONE, method="rapid").stages)) - set(base) == {"extractor", "knowledge base"}
    long = ["method.phase_one=paper", "method.training.steps=4000", "method.boundary=0.95"]
    assert set(dict(minutes(monkeypatch, *NONE, *long, method="dp-promise").stages)) - set(base) == {"first phase"}
    compared = dict(minutes(monkeypatch, *NONE, "evaluation.baseline=true", method="rapid").stages)
    assert compared["drawing for comparison"] > 2 * base["drawing for comparison"], (
        "the baseline is trained and drawn from"
    )
    moved = dict(minutes(monkeypatch, *NONE, "matching.share=0.2", *FEW, "generation.images=9000").stages)
    assert set(moved) - set(base) == {"matching"} and moved["matching"] == pytest.approx(9000 * 7 * 1e-3)
    chosen = dict(minutes(monkeypatch, *NONE, "selection.clusters=20", "selection.candidates=1000000").stages)
    assert set(chosen) - set(base) == {"search for public images"} and 5 < chosen["search for public images"] < 40
    every = dict(minutes(monkeypatch, *NONE, "evaluation.classifiers=all").stages)
    assert every["judging"] > base["judging"]


def test_features_of_the_public_classifier_are_taken_of_every_drawn_image(monkeypatch):
    """A step of the generator takes its own image, and its features with their gradients; the classifier itself is trained."""
    own = ["method.training.batch=100", "method.training.steps=50"]
    kernel, classifier = (
        dict(minutes(monkeypatch, *NONE, *own, method=name).stages) for name in ("dp-merf", "dp-mepf")
    )
    assert set(classifier) - set(kernel) == {"backbone"}
    assert classifier["training"] - kernel["training"] == pytest.approx(50 * 100 * 1e-3 / 1, rel=0.5)
    assert classifier["training"] > kernel["training"]


def test_for_a_gpu_nothing_is_timed_and_its_table_serves(monkeypatch):
    monkeypatch.setattr(probe, "measured", lambda *_: pytest.fail("it was timed"))
    changes = ["network.kind=unet", "pretraining.steps=40000", "pretraining.batch=256"]
    settings, facts, _ = preflight(resolve("dp-sgd", changes=changes))
    there = estimate(settings, plan_for(settings, facts), gpu=True)
    denoiser = dict(there.stages)["denoiser"]
    assert denoiser >= 40_000 * COSTS["gpu"]["mlp"].step, "a step costs something, however small"
    slowly = {kind: replace(cost, work=100 * cost.work) for kind, cost in COSTS["gpu"].items()}
    monkeypatch.setitem(COSTS, "gpu", slowly)
    assert dict(estimate(settings, plan_for(settings, facts), gpu=True).stages)["denoiser"] > 2 * denoiser


def test_a_network_of_the_methods_own_is_measured_and_its_plain_training_counts(monkeypatch):
    none = ["pretraining.steps=0", "generation.images=10", "evaluation.baseline=false"]
    short, long = (minutes(monkeypatch, *none, f"method.training.steps={n}", method="dppm") for n in (10, 1000))
    assert long.minutes - short.minutes == pytest.approx(990 * 128 * 1e-3 / 60, rel=0.2)
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
    assert pairs > 0 and wide.minutes - narrow.minutes == pytest.approx(pairs / probe.PROBE_RECORDS * 1e-3 / 60)


def test_memory_follows_the_physical_batch(monkeypatch):
    one, four = (minutes(monkeypatch, f"machine.physical_batch={n}").gigabytes for n in (256, 1024))
    assert four - one > 2 * (one - minutes(monkeypatch, "machine.physical_batch=1").gigabytes)


def test_only_private_steps_hold_a_gradient_of_each_record(monkeypatch):
    none = ["pretraining.steps=0", "evaluation.baseline=false"]
    one, four = (
        minutes(monkeypatch, *none, f"machine.physical_batch={n}", method="dp-merf").gigabytes for n in (256, 1024)
    )
    assert one == four, "one noised mean of features is all that looks at private records"


def test_drawn_images_take_memory(monkeypatch):
    few, many = (minutes(monkeypatch, f"generation.images={n}").gigabytes for n in (1000, 501_000))
    pixels = 500_000 * 8 * 8
    assert many - few == pytest.approx(module.COPIES_DRAWN * pixels * probe.BYTES / 1e9)


@pytest.mark.parametrize("changes", [[], ["latent.kind=kl", "latent.width=4"], ["matching.share=0.2", *FEW]])
def test_the_probe_really_runs(changes):
    settings, facts, _ = preflight(resolve("dp-sgd", changes=["network.width=8", *changes]))
    result = estimate(settings, plan_for(settings, facts))
    assert OVERHEAD_SECONDS / 60 < result.minutes < 1e4 and result.gigabytes > module.BASE_GIGABYTES
