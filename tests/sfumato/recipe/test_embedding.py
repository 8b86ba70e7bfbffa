"""The recipe of methods whose generator learns from mean embeddings."""

from sfumato.settings import resolve
from tests.sfumato.recipe.making import recipe


def test_mean_embeddings_ask_no_public_denoiser_and_have_a_judge():
    settings = recipe(method="dp-merf")
    assert settings.pretraining.steps == 0 and settings.alignment.kind == "none" and settings.judge.use == "filter"
    assert settings.method.training.steps > 1000 and settings.latent.steps > 1000
    assert settings.network.width > recipe(method="dp-sgd").network.width
    assert recipe(method="dp-merf", shape=(3, 32, 32)).network.kind == "mlp"
    small = recipe(method="dp-merf", shape=(1, 8, 8))
    usual = resolve("dp-merf", "digits").method
    assert small.method.frequencies == usual.frequencies < settings.method.frequencies
    assert recipe("pretraining.steps=5", method="dp-merf").pretraining.steps == 5, "for `generation.refine`"


def test_what_was_tried_with_features_of_a_kernel_is_not_taken_for_others():
    settings = recipe(method="dp-mepf")
    assert settings.pretraining.steps == 0 and settings.judge.use == "filter" and settings.latent.steps > 1000
    usual = resolve("dp-mepf", "digits").method
    assert settings.method.training.learning_rate == usual.training.learning_rate
    assert settings.backbone.steps > 300 and settings.method.training.steps >= 1
    assert settings.method.image > 0 == recipe(method="dp-mepf", shape=(1, 8, 8)).method.image, "in latents alone"
