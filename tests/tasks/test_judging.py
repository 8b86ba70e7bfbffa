"""Backbone, paid judge and what it makes of drawn images, stage by stage: labels, entries, and what is kept beside."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from artifacts import serialization
from artifacts.gate import judged_of
from artifacts.references import PublicImages, Samples
from sfumato import sources
from sfumato.config import BackboneSettings, Generation, Judge, Machine
from sfumato.images import ImageSet
from sfumato.methods.plan import Facts
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.door import PrivateSet
from tasks.generation import comparable, judge_images
from tasks.inputs import Judging, Wanted
from tasks.private import train_judge
from tasks.public import train_backbone
from tasks.runtime.artifact import Draft
from tasks.terms import Order, Terms
from tests.tasks.runtime.test_artifact import CONTEXT, place, reported  # noqa: F401 (fixtures)

TERMS = Terms(relation="add_remove", delta=1e-4)
MACHINE = Machine()


def stored(place, kind, images):  # noqa: F811
    with place.store().writing() as folder:
        serialization.save_images(folder, images)
        return place.store().keep(kind, folder, parents=[])


def test_a_judge_of_letters_features_reads_digits_and_relabels_what_was_drawn(place, reported):  # noqa: F811
    letters = sources.load("glyphs", sources.Reading(size=8, glyphs_per_class=30))
    quick = BackboneSettings(width=8, steps=60, batch=64, learning_rate=1e-2)
    backbone = train_backbone.fn(CONTEXT, stored(place, PublicImages, letters), quick, 0, MACHINE)
    secret, paid = PrivateSet(name="digits", source="digits"), Gaussian(noise_multiplier=2.0, count=60)
    digits = sources.load("digits", sources.Reading(part="test"))
    facts = Facts(records=1437, classes=digits.classes, public_classes=52, shape=(1, 8, 8))
    order = Order(private=secret, terms=TERMS, machine=MACHINE)
    judge = train_judge.fn(CONTEXT, order, paid, backbone, Judge(), facts)
    assert (backbone.label, judge.label) == ("PUBLIC", "DP")
    with place.ledger() as ledger:
        assert [entry.kind for entry in ledger.entries("digits")] == ["reserve", "open", "commit"]
        assert ledger.replay() == []
    # Real digits stand for drawn ones; every third was drawn for another class.
    requested = np.where(np.arange(len(digits)) % 3 == 0, (digits.labels + 1) % 10, digits.labels)
    drawn = stored(place, Samples, ImageSet(digits.pixels, requested, digits.classes))
    both = Judging(backbone=backbone, judge=judge)

    def made(use, images):
        wanted = Wanted(generation=Generation(), facts=facts, images=images)
        ref = judge_images.fn(CONTEXT, drawn, both, wanted, use, MACHINE)
        folder = place.store().folder(ref)
        return ref, serialization.load_images(folder), serialization.load_drawn(folder)

    ref, relabelled, before = made("relabel", len(digits))
    assert ref.label == "DP" and judged_of(place.store(), ref.digest)["drawn"] == len(digits)
    right = (relabelled.labels == digits.labels).mean()
    assert right > 0.75 and np.array_equal(before, requested) and np.array_equal(relabelled.pixels, digits.pixels)
    ref, weighed, before = made("weigh", len(digits))
    assert ref.label == "DP" and np.array_equal(before, requested)
    assert (weighed.labels == digits.labels).mean() >= right - 0.01, "every third was drawn for another class"
    ref, agreeing, before = made("agreeing", 1)
    share = judged_of(place.store(), ref.digest)["agreed"]
    assert comparable(ref) and np.array_equal(agreeing.labels, before) and len(agreeing) == round(share * len(digits))
    _, kept_ones, before = made("filter", 100)
    assert np.bincount(kept_ones.labels).tolist() == [10] * 10 and np.array_equal(kept_ones.labels, before)


@pytest.mark.parametrize(("labels", "enough"), [([0, 1] * 3, True), ([0] * 9, False), ([0, 1], False)])
def test_too_few_images_or_classes_are_not_compared(place, labels, enough):  # noqa: F811
    pixels = np.zeros((len(labels), 1, 8, 8), np.uint8)
    assert comparable(stored(place, Samples, ImageSet(pixels, np.array(labels), ("a", "b")))) == enough


@pytest.mark.parametrize("use", ["relabel", "weigh", "filter", "agreeing"])
@pytest.mark.parametrize("gives", [0, 1, 2])
def test_a_judge_that_gives_one_class_alone_ends_nothing_that_is_paid_for(place, reported, monkeypatch, use, gives):  # noqa: F811
    """Two classes were drawn; a judge under much noise gives all images one of them, or the one that nobody asked for."""
    monkeypatch.setattr(serialization, "load_judge", lambda *_: OneClass(gives))
    monkeypatch.setattr(Draft, "open", lambda draft, ref: draft.store.folder(ref) if ref else None)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 1, 8, 8)).astype(np.uint8)
    drawn = stored(place, Samples, ImageSet(pixels, np.arange(24) % 2, ("a", "b", "c")))
    both = Judging.model_construct(backbone=None, judge=None)
    monkeypatch.setattr(Judging, "refs", lambda _: [])
    facts = Facts(records=100, classes=("a", "b", "c"), public_classes=5, shape=(1, 8, 8))
    wanted = Wanted(generation=Generation(), facts=facts, images=12)
    ref = judge_images.fn(CONTEXT, drawn, both, wanted, use, MACHINE)
    images = serialization.load_images(place.store().folder(ref))
    assert use != "filter" or set(images.labels.tolist()) == {0, 1}, "its one class is not believed"
    assert len(images) == {"filter": 12, "agreeing": 12 if gives < 2 else 0}.get(use, 24)
    assert use == "agreeing" or len(images)
    assert not comparable(ref) or use in ("filter", "weigh")


@dataclass
class OneClass:
    """A judge that is sure of one class whatever it is shown."""

    gives: int
    noise: float = 0.0

    def separation(self, drawn, device):
        return 0.0

    def of_set(self, images, device):
        return torch.eye(3)[torch.full((len(images),), self.gives)].clamp(min=1e-6).log()
