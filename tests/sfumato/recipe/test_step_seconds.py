"""What one image takes in each kind of step."""

import pytest

from sfumato.costs import COSTS, TRAINING, Work
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.engine import clipping
from sfumato.recipe import probe
from sfumato.recipe import step_seconds as module
from sfumato.recipe.step_seconds import Learner, step_seconds
from sfumato.settings import resolve


def seconds(monkeypatch, *changes, method="dp-sgd"):
    monkeypatch.setattr(probe, "measured", lambda *_: 1e-3)
    monkeypatch.setattr(probe, "PROBE_SECONDS", 1e9)
    settings, facts, _ = preflight(resolve(method, changes=changes))
    return step_seconds(settings, plan_for(settings, facts), probe.Probe(COSTS["cpu"]))


def test_a_learner_takes_its_images_and_its_updates():
    learner = Learner(step=3.0, work=Work(1.0, 1), update=0.5)
    assert learner.seconds(steps=10, batch=4) == pytest.approx(10 * (4 * 3.0 + 0.5))
    assert learner.reading == 3.0 / TRAINING


def test_what_a_run_has_not_takes_no_time(monkeypatch):
    none = seconds(monkeypatch, "evaluation.baseline=false", method="dp-merf")
    assert none.coder.step == none.half_coder == none.backbone.step == none.extractor == 0
    assert none.clipped == none.noise == none.compared == none.moved == 0 < none.forward
    assert seconds(monkeypatch, "evaluation.baseline=true", method="dp-merf").clipped > 0, "plain DP-SGD beside it"
    assert seconds(monkeypatch, method="rapid").extractor > 0
    latents = seconds(monkeypatch, "latent.kind=kl")
    assert latents.half_coder == latents.coder.step / TRAINING / 2 > 0
    assert seconds(monkeypatch, method="empirical-denoiser").compared == 1e-3 / probe.PROBE_RECORDS


def test_a_method_without_a_network_of_its_own_draws_by_the_denoiser(monkeypatch):
    shared, own = (seconds(monkeypatch, method=name) for name in ("moments", "dppm"))
    assert shared.own is shared.denoiser and shared.own_forward == shared.forward
    assert own.own is not own.denoiser and own.own.work != own.denoiser.work


@pytest.mark.parametrize("kind", ["resnet18", "convolutions"])
def test_the_work_of_an_extractor_is_counted_even_where_no_step_is_timed(kind):
    """A batch norm refuses one image of one position where it learns from it, and a table needs the layers' own work."""
    settings, facts, _ = preflight(
        resolve(
            "rapid",
            changes=[f"method.extractor.kind={kind}", f"method.extractor.features={512 if kind == 'resnet18' else 64}"],
        )
    )
    by_table = step_seconds(settings, plan_for(settings, facts), probe.Probe(COSTS["gpu"], times=False))
    assert by_table.extractor > 0


def test_a_network_that_is_too_large_to_be_timed_is_not_made(monkeypatch):
    made, build = [], module.build
    monkeypatch.setattr(module, "build", lambda *args, **kwargs: made.append(build(*args, **kwargs)) or made[-1])
    monkeypatch.setattr(probe, "weigh_records", lambda *_, **__: pytest.fail("it was timed"))
    large = ["network.kind=mlp", "network.width=2048"]
    assert seconds(monkeypatch, *large).clipped > 0
    assert {parameter.device.type for model in made for parameter in model.parameters()} == {"meta"}


def test_clipped_gradients_are_timed_without_the_validation_of_the_network(monkeypatch):
    settings, facts, _ = preflight(resolve("dp-sgd", changes=["fine_tuning.draws=4"]))
    monkeypatch.setattr(clipping, "survey", lambda *_: pytest.fail("made-up records need none"))
    assert step_seconds(settings, plan_for(settings, facts), probe.Probe(COSTS["cpu"])).clipped > 0
