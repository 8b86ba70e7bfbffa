"""Which public classes win, and what is left of the public images."""

import numpy as np
import pytest
import torch

from sfumato.backbone import train_backbone
from sfumato.config import BackboneSettings
from sfumato.held_out import held_out
from sfumato.images import ImageSet, to_unit
from sfumato.selection import ballot, chosen, elected, fewest, joined, preferred, sources_of


def images(classes: int, each: int) -> ImageSet:
    """Every image is told apart by its pixels."""
    count = classes * each
    pixels = np.zeros((count, 1, 2, 2), np.uint8)
    pixels.reshape(count, 4)[:, :2] = np.stack([np.arange(count) // 256, np.arange(count) % 256], 1)
    return ImageSet(pixels, np.arange(count) % classes, tuple(f"class {number}" for number in range(classes)))


def numbers(of: ImageSet) -> set[int]:
    flat = of.pixels.reshape(len(of), 4).astype(int)
    return set((flat[:, 0] * 256 + flat[:, 1]).tolist())


def test_each_private_class_in_turn_names_its_best():
    votes = torch.tensor([[9, 50, 40, 0, 1], [3, 2, 1, 0, -5]])
    assert elected(votes, 1) == [1]
    assert elected(votes, 2) == [0, 1], "a small class has its say before the second wish of a large one"
    assert elected(votes, 3) == [0, 1, 2]
    assert elected(votes, 4) == [0, 1, 2, 3] and elected(votes, 5) == [0, 1, 2, 3, 4]


def test_a_wish_that_is_taken_falls_to_the_next_best():
    votes = torch.tensor([[5, 4, 0, 1], [9, 3, 2, 1]])
    assert elected(votes, 2) == [0, 1], "both want 0, and the second takes 1"
    assert elected(votes, 3) == [0, 1, 3]


@pytest.mark.parametrize("count", [0, 6])
def test_no_more_classes_win_than_there_are(count):
    with pytest.raises(ValueError, match="of 5 public classes"):
        elected(torch.zeros(2, 5), count)


@pytest.mark.parametrize("seed", [0, 3])
def test_the_images_of_the_winners_are_all_there_once_under_new_numbers(seed):
    every = images(8, 60)
    part = chosen(every, [1, 4, 6], seed)
    wanted = numbers(every.subset(np.isin(every.labels, [1, 4, 6])))
    assert len(part) == 180 and numbers(part) == wanted and part.classes == ("class 1", "class 4", "class 6")
    names = np.array(every.classes)
    for name in part.classes:
        there = numbers(part.subset(np.array(part.classes)[part.labels] == name))
        assert there == numbers(every.subset(names[every.labels] == name))


@pytest.mark.parametrize("seed", [0, 3])
def test_what_no_public_stage_has_learnt_from_is_withheld_of_the_choice_too(seed):
    every = images(8, 60)
    part = chosen(every, [0, 5], seed)
    before, after = held_out(every, seed), held_out(part, seed)
    withheld = numbers(before.withheld) & numbers(part)
    fewer, more = sorted([withheld, numbers(after.withheld)], key=len)
    assert fewer <= more and len(after.withheld) == 12, "as far as there are as many"


def test_a_record_votes_for_the_class_that_the_backbone_takes_it_for():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    pixels = (80 * labels[:, None, None, None] + rng.integers(0, 20, (60, 1, 8, 8))).astype(np.uint8)
    public = ImageSet(pixels, labels, ("dark", "grey", "light"))
    backbone = train_backbone(BackboneSettings(steps=60, batch=30, width=8), public, seed=0).backbone
    vote, x = ballot(backbone), to_unit(pixels)
    votes = vote(x, torch.zeros(60, dtype=torch.long))
    assert votes.shape == (60,) and (votes == torch.from_numpy(labels)).float().mean() > 0.9
    alone = torch.cat([vote(x[n : n + 1], torch.zeros(1, dtype=torch.long)) for n in range(6)])
    assert torch.equal(alone, votes[:6]), "each image by itself, whatever its own class"


def of_two(first: int, second: int) -> tuple[int, ...]:
    return (0,) * first + (1,) * second


def test_the_source_of_a_class_is_told_by_its_name():
    classes = ("glyphs:a", "glyphs:shapes:b", "shapes:leaves")
    assert sources_of(classes, ("glyphs", "shapes")) == (0, 0, 1)
    assert sources_of(("b:a", "a:a"), ("b", "a")) == (0, 1)
    assert sources_of(("a:one", "a:b:one"), ("a", "a:b")) == (0, 1)
    assert sources_of(("a", "b"), ("glyphs",)) == ()
    assert fewest(of_two(5, 2)) == 2 and fewest(()) == 0


def test_sources_win_by_the_votes_of_all_private_classes_together():
    votes = torch.tensor([[9, 2, 0], [1, 30, 3], [4, 5, -2]])
    assert preferred(votes, 1) == [1] and preferred(votes, 2) == [0, 1]


@pytest.mark.parametrize(("first", "second", "into"), [(5, 2, 2), (3, 3, 3), (7, 3, 3)])
def test_the_classes_of_a_source_are_joined_into_as_many_as_the_smallest_has(first, second, into):
    of = of_two(first, second)
    every = images(first + second, 10)
    part = joined(every, of, into)
    assert len(part.classes) == 2 * into and np.array_equal(part.pixels, every.pixels)
    sources = np.array(of)[every.labels]
    assert np.array_equal(part.labels // into, sources), "no class holds images of two sources"
    pairs = sorted({(old, new) for old, new in zip(every.labels.tolist(), part.labels.tolist(), strict=True)})
    assert len(pairs) == first + second, "each class goes to one"
    assert [new for _, new in pairs] == sorted(new for _, new in pairs), "neighbours with neighbours"
    assert {new for _, new in pairs} == set(range(2 * into)), "none is empty"


def test_joined_classes_have_the_names_of_their_first_and_last():
    part = joined(images(5, 2), of_two(5, 0), 2)
    assert part.classes == ("class 0 to class 2", "class 3 to class 4")
    assert joined(images(2, 2), of_two(2, 0), 2).classes == ("class 0", "class 1")


def test_a_record_votes_for_the_source_whose_classes_together_are_likeliest():
    class Reader:
        def logits(self, x):
            return torch.tensor([[0.4, 0.3, 0.3], [0.6, 0.2, 0.2]]).log()

    x, y = torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.long)
    assert ballot(Reader())(x, y).tolist() == [0, 0]
    assert ballot(Reader(), (0, 1, 1))(x, y).tolist() == [1, 0]
