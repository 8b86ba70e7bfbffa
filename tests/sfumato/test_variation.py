"""Variation: small affine maps of drawn images, by a seed, for images that are not paid one by one."""

import numpy as np
import pytest
import torch

from artifacts.for_diffusers.write import lacking
from sfumato.drawing import draw_images
from sfumato.errors import BadInput
from sfumato.latents import PIXELS
from sfumato.preflight import plan_for, preflight
from sfumato.settings import resolve
from sfumato.variation import varied
from tests.sfumato.test_drawing import CPU, SETTINGS, facts, parts, shaded


def varying(amount):
    return SETTINGS.model_copy(update={"generation": SETTINGS.generation.model_copy(update={"vary": amount})})


def bars(count=200, side=28):
    """An upright bar in the middle of each image."""
    images = -torch.ones(count, 1, side, side)
    images[:, :, 6:22, 13:15] = 1
    return images


def test_each_image_is_moved_by_itself_and_no_farther_than_the_amount():
    before, after = bars(), varied(PIXELS, bars(), 0.1, torch.Generator().manual_seed(0))
    assert after.min() >= -1 and after.max() <= 1 and len(after.flatten(1).unique(dim=0)) == len(after)
    ink = (after + 1) / 2
    across = (ink * torch.arange(28.0)).sum((1, 2, 3)) / ink.sum((1, 2, 3)) - 13.5
    assert across.abs().max() <= 0.2 * 0.1 * 28 + 0.2 and across.std() > 0.1, (
        "shifted both ways, by a fiftieth of the side"
    )
    assert (ink.sum((1, 2, 3)) / ((before + 1) / 2).sum((1, 2, 3))).sub(1).abs().max() < 0.3, "about as much ink"
    assert torch.equal(varied(PIXELS, before, 0, torch.Generator()), before)


def test_a_drawing_varies_its_images_by_the_seed_and_keeps_their_classes():
    plain, one, two = (draw_images(shaded, varying(a), parts(), facts(), 12, CPU) for a in (0.0, 0.2, 0.2))
    assert np.array_equal(one.pixels, two.pixels) and np.array_equal(one.labels, plain.labels)
    assert not np.array_equal(one.pixels, plain.pixels)


def test_what_a_mechanism_draws_leaves_as_it_was_paid():
    paid = [
        draw_images(shaded, varying(a), parts(), facts(), 4, CPU, source=torch.Generator().manual_seed(1))
        for a in (0.0, 0.2)
    ]
    assert np.array_equal(paid[0].pixels, paid[1].pixels)


def test_images_that_are_paid_one_by_one_are_refused_before_any_work():
    settings, about, _ = preflight(resolve("dp-ensemble", changes=["generation.vary=.1", "generation.images=10"]))
    with pytest.raises(BadInput, match=r"generation.vary=0.1: each image of method.name=dp-ensemble is paid for"):
        plan_for(settings, about.model_copy(update={"public_classes": 52}))


def test_diffusers_says_that_it_varies_nothing():
    assert "diffusers varies no images" in lacking(resolve("dp-sgd", changes=["generation.vary=.1"]), ["tuned"])
