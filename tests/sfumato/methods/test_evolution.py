"""What Private Evolution makes of votes: shares, ballots within a class, variations, and a denoiser that follows the shares."""

import pytest
import torch

from sfumato import evolution
from sfumato.config import Pretraining
from sfumato.evolution import Elected, Population
from sfumato.methods.plan import Evolution
from sfumato.networks.denoiser import class_rows

HOW = Evolution(
    candidates=40, features="pixels", directions=1, threshold=2.0, largest=2.0, variation=0.25,
    training=Pretraining(steps=1),
)  # fmt: skip


def pixels(images):
    return images.flatten(1)


@pytest.fixture
def tiny(world):
    return world("private-evolution")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_votes_below_their_noise_count_as_none_and_hubs_are_bounded():
    votes = torch.tensor([[2, 3, 3, -5], [100, 4, 4, 0], [0, 1, -1, 2]])
    shares = evolution.elected(Population(torch.zeros(3, 4, 1, 8, 8)), votes, HOW, noise_multiplier=1.0).shares
    assert torch.equal(shares[0], torch.tensor([0, 0.5, 0.5, 0], dtype=torch.float64)), "2 is not above 2 deviations"
    # The mean of 100, 4 and 4 is 36: the first counts as 72.
    assert shares[1].tolist() == pytest.approx([72 / 80, 4 / 80, 4 / 80, 0])
    assert shares[2].tolist() == [0.25] * 4, "nothing is known of a class without votes that count"
    assert shares.sum(1).tolist() == pytest.approx([1] * 3)


def test_a_record_votes_for_the_nearest_candidate_of_its_own_class(tiny):
    """Against a loop; a candidate of another class that is nearer still gets no vote, and each image votes by itself."""
    parts = tiny.parts
    population = Population(torch.randn(10, 4, 1, 8, 8, generator=seeded()).clamp(-1, 1))
    x, y = torch.rand(30, 1, 8, 8, generator=seeded(1)) * 2 - 1, torch.arange(30) % 10
    vote = evolution.ballot(pixels, parts, population)
    cosine = torch.nn.functional.cosine_similarity
    slow = [
        int(cosine(image.flatten()[None], population.x[label].flatten(1)).argmax())
        for image, label in zip(x, y, strict=True)
    ]
    assert vote(x, y).tolist() == slow
    assert torch.cat([vote(image[None], label[None]) for image, label in zip(x, y, strict=True)]).tolist() == slow
    assert vote(torch.full((1, 1, 8, 8), torch.nan), y[:1]).tolist() == [0], "an image without features votes too"


def test_the_first_candidates_are_of_every_public_class_for_every_private_one(tiny):
    population = evolution.first_population(tiny.settings, tiny.parts, 26)
    assert population.x.shape == (10, 26, 1, 8, 8) and population.x.isfinite().all()
    assert torch.equal(population.labels, torch.arange(10)[:, None].expand(10, 26))
    again = evolution.first_population(tiny.settings, tiny.parts, 26)
    assert torch.equal(population.x, again.x)


def test_the_next_candidates_are_those_with_votes_once_and_variations_of_them(tiny):
    population = evolution.first_population(tiny.settings, tiny.parts, 4)
    shares = torch.zeros(10, 4, dtype=torch.float64)
    shares[:, 1] = 1
    again = evolution.next_population(tiny.settings, tiny.parts, Elected(population, shares), 0.25, 1)
    assert torch.equal(again.x[:, 0], population.x[:, 1]), "once as it is"
    apart = (again.x[:, 1:] - population.x[:, 1:2]).flatten(2).norm(dim=2)
    others = (population.x[:, 1:2] - population.x[:, [0, 2, 3]]).flatten(2).norm(dim=2)
    assert apart.min() > 0 and apart.mean() < others.mean(), (
        "a variation is nearer to its parent than its siblings were"
    )
    evenly = evolution.next_population(
        tiny.settings, tiny.parts, Elected(population, torch.full((10, 4), 0.25)), 0.25, 1
    )
    assert evenly.x.isfinite().all()


def test_a_denoiser_learns_from_candidates_as_often_as_their_votes_say(tiny, monkeypatch):
    """The shades of ten classes, of which a third and two thirds of the votes go to two of three shades."""
    shades = torch.tensor([-1.0, 0.0, 1.0])
    x = shades.view(1, 3, 1, 1, 1).expand(10, 3, 1, 8, 8).repeat(1, 100, 1, 1, 1)
    shares = torch.tensor([1.0, 2.0, 0.0]).repeat(10, 100) / 300
    seen, learn = [], evolution.pretrain
    monkeypatch.setattr(evolution, "pretrain", lambda *given, **how: seen.extend(given) or learn(*given, **how))
    training = Pretraining(steps=3, batch=16)
    model, losses = evolution.distilled(tiny.parts, Elected(Population(x), shares), training, seed=0)
    _, _, examples, labels, _ = seen
    assert len(losses) == 3 and class_rows(model).shape[0] == 10
    assert torch.bincount(labels).tolist() == [evolution.EXAMPLES * 300] * 10
    mean = examples[labels == 7][:, 0, 0, 0]
    assert (mean < 0).float().mean() == pytest.approx(1 / 3, abs=0.05) and mean.max() == 0
