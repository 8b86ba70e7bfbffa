"""The empirical denoiser's part of the recipe: the window and weights of its averages, and any number of images from what is paid for once."""

import pytest

from sfumato.recipe.averaging import BESIDE_AVERAGES, BRANCHED, MOST_TRAJECTORIES, PAID
from tests.sfumato.recipe.making import recipe


def denoiser(*changes, **reported):
    return recipe(*changes, method="empirical-denoiser", **reported)


def test_in_latents_averages_begin_early_and_images_branch_from_paid_trajectories():
    settings = denoiser(records=60_000)
    own = settings.method
    assert (own.percent, own.until, own.beta, own.longest, own.pay) == (33, 60, 0.001, 6.9, "class")
    assert own.trajectories == MOST_TRAJECTORIES and settings.generation.images == BRANCHED
    assert settings.generation.vary > 0, "strokes of a trajectory vary"


def test_in_latents_averages_are_taken_among_aligned_classes_and_no_judge_is_paid_for():
    settings = denoiser(records=60_000)
    assert settings.alignment.kind == "moments" and settings.alignment.share == BESIDE_AVERAGES
    assert denoiser(records=4000).alignment.share > BESIDE_AVERAGES, "fewer records need less noise"
    assert settings.judge.use == "none" and denoiser(shape=(1, 8, 8), records=1437).alignment.kind == "none"


def test_in_pixels_averages_are_those_of_the_embedded_digits_and_each_image_is_paid_for():
    own, digits = denoiser(shape=(1, 8, 8), records=1437).method, recipe_of_the_digits()
    assert (own.percent, own.until, own.beta, own.longest) == (45, 67.5, digits.beta, digits.longest)
    assert own.pay == "image" and denoiser(shape=(1, 8, 8), records=1437).generation.images == PAID


def recipe_of_the_digits():
    from sfumato.settings import resolve

    return resolve("empirical-denoiser", "digits").method


@pytest.mark.parametrize(
    ("records", "epsilon", "trajectories"),
    [(60_000, 10, 100), (6000, 10, 10), (60_000, 1, 10), (300, 10, 1), (6000, "inf", 10)],
)
def test_few_records_and_a_small_epsilon_pay_for_few_trajectories(records, epsilon, trajectories):
    assert (
        denoiser(f"privacy.epsilon={epsilon}", "privacy.reason=a trial", records=records).method.trajectories
        == trajectories
    )


def test_who_wants_to_pay_for_each_image_may():
    settings = denoiser("method.pay=image", "method.beta=0.5", records=60_000)
    assert settings.generation.images == PAID and settings.generation.vary == 0 and settings.method.beta == 0.5
