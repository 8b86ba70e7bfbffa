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


def test_perceptual_features_have_settings_of_their_own_in_latents_alone():
    settings = recipe(method="dp-mepf")
    assert settings.pretraining.steps == 0 and settings.judge.use == "filter" and settings.latent.steps > 1000
    pixels = recipe(method="dp-mepf", shape=(1, 8, 8)).method
    assert settings.backbone.steps > 300 and settings.method.training.steps >= 1
    assert settings.method.image > 0 == pixels.image
    colour = recipe(method="dp-mepf", shape=(3, 28, 28)).method
    assert colour.training.learning_rate < pixels.training.learning_rate == settings.method.training.learning_rate
    assert colour.image == settings.method.image
    assert settings.method.training.batch == pixels.training.batch == resolve("dp-mepf", "auto").method.training.batch
