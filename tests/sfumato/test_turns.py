"""Images of one class are told apart by their turns, and features learnt so see what is in them."""

import numpy as np
import torch

from sfumato import sources
from sfumato.backbone import train_backbone
from sfumato.config import BackboneSettings
from sfumato.evaluation.classifier import classifier_of, features
from sfumato.images import ImageSet, to_unit
from sfumato.turns import training_name, turned_if_one_class


def one_class(height=8, width=8, count=10):
    pixels = np.random.default_rng(0).integers(0, 256, (count, 1, height, width), dtype=np.uint8)
    return ImageSet(pixels, np.zeros(count, np.int64), ("unlabelled",))


def test_each_image_is_turned_once_and_keeps_its_shape():
    images = one_class()
    turned = turned_if_one_class(images)
    assert turned.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1] and len(turned.classes) == 4
    assert np.array_equal(turned.pixels[3, 0], np.rot90(images.pixels[3, 0], 3))
    flat = turned_if_one_class(one_class(8, 6))
    assert flat.classes == ("turned by 0", "turned by 180") and flat.pixels.shape[2:] == (8, 6)
    assert np.array_equal(flat.pixels[1, 0], np.rot90(one_class(8, 6).pixels[1, 0], 2))


def test_images_of_several_classes_are_left_as_they_are():
    digits = sources.load("digits")
    assert turned_if_one_class(digits) is digits
    assert training_name("x", 10, (1, 8, 8)) == ("x", 10) and training_name("x", 1, (1, 8, 6)) == ("turns of x", 2)


def test_features_learnt_from_turns_tell_digits_apart_better_than_chance():
    letters = sources.load("glyphs", sources.Reading(part="all", size=8, glyphs_per_class=60))
    nameless = ImageSet(letters.pixels, np.zeros(len(letters), np.int64), ("unlabelled",))
    digits = sources.load("digits")
    seen = features(classifier_of(nameless), to_unit(digits.pixels))
    nearest = (torch.cdist(seen, seen) + torch.eye(len(seen)) * 1e9).argmin(1).numpy()
    assert (digits.labels[nearest] == digits.labels).mean() > 0.5, "chance is a tenth"


def test_a_backbone_learns_from_them_too():
    trained = train_backbone(BackboneSettings(width=8, steps=30, batch=32), one_class(count=200), seed=0)
    assert trained.backbone.logits(torch.zeros(2, 1, 8, 8)).shape == (2, 4)
