"""Accuracy of retrieval, the likelihood reference and the echo against slow forms, and the choice of k."""

import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from sfumato.config import Schedule
from sfumato.diffusion.schedule import make_schedule
from sfumato.rehearsal_findings import RetrievalFindings
from sfumato.retrieval.accuracy import chosen, likeliest_class, measured, numbers
from sfumato.retrieval.choice import recipe_of, retrieves, times_above
from sfumato.retrieval.features import FeatureMap, OneStep
from sfumato.retrieval.knowledge_base import KnowledgeBase, base_without_keys, build_knowledge_base

T = 40
SCHEDULE = make_schedule(Schedule(timesteps=T, beta_start=0.01, beta_end=0.2))
CLEAR = make_schedule(Schedule(timesteps=T, beta_start=1e-6, beta_end=0.1))


def unit(count, features=8, seed=0):
    return F.normalize(torch.randn(count, features, generator=torch.Generator().manual_seed(seed)), dim=1)


class Pixels(nn.Module):
    """The pixels, as unit vectors."""

    def forward(self, x):
        return F.normalize(x.flatten(1), dim=1)


class Chance(nn.Module):
    """Features that have nothing to do with the image."""

    def forward(self, x):
        return unit(len(x), seed=int(x.abs().sum() * 1000) % 2**31)


def nothing(x, t, y):
    """A denoiser that predicts no noise."""
    return torch.zeros_like(x)


def digits(count=900):
    images, labels = load_digits(return_X_y=True)
    return torch.from_numpy(images[:count] / 8 - 1).float().view(-1, 1, 8, 8), torch.from_numpy(labels[:count]).long()


def base_of(features, x, y, time=1):
    return build_knowledge_base(features, x, y, time=time, by_class=False, seed=0)


def columns():
    """Ten classes that a bright column tells apart."""
    y, x = torch.arange(600) % 10, torch.zeros(600, 1, 8, 8)
    for label, bright in enumerate(torch.linspace(-0.9, 0.9, 10)):
        x[y == label, :, :, label % 8] = bright + 0.05
    return x, y


def test_retrieval_is_right_where_classes_are_apart_and_chance_where_features_say_nothing():
    (x, y), clear = columns(), FeatureMap(OneStep(CLEAR, nothing), Pixels())
    result = measured(base_of(clear, x[:400], y[:400]), clear, x[400:], y[400:], seed=0)
    assert result.first > 0.97 and result.five >= result.first and result.reference > 0.97
    assert result.chance == pytest.approx(0.1) and result.chance_five == pytest.approx(1 - 0.9**5)
    mixed = KnowledgeBase(unit(400, seed=11), x[:400], x[:400], y[:400], False, time=1)
    result = measured(mixed, FeatureMap(OneStep(CLEAR, nothing), Chance()), x[400:], y[400:], seed=0)
    assert result.first == pytest.approx(result.chance, abs=5 * math.sqrt(0.1 * 0.9 / 200))
    assert result.five == pytest.approx(result.chance_five, abs=5 * math.sqrt(0.41 * 0.59 / 200))


def test_real_digits_are_found_again_at_little_noise_and_not_at_much():
    x, y = digits()
    features = FeatureMap(OneStep(SCHEDULE, nothing), Pixels())

    def result(time):
        return measured(base_of(features, x[:600], y[:600], time), features, x[600:], y[600:], seed=1)

    quiet, loud = result(2), result(T)
    assert quiet.first > 0.85 and loud.first < 0.35
    assert quiet.reference > 0.85 and loud.reference < 0.5
    assert (quiet.time, quiet.share, loud.share) == (2, 2 / T, 1.0)


@pytest.mark.parametrize("time", [T // 2, T])
def test_no_query_of_the_same_seed_finds_a_trajectory_by_its_noise(time):
    """A run measures, and draws, by the seed that it builds the base with: the n-th query must not have the noise of the n-th trajectory."""
    x, y = digits()
    features = FeatureMap(OneStep(SCHEDULE, nothing), Pixels())
    base = base_of(features, x[:600], y[:600], time)
    queries, noise = features.noised(x[600:], time, torch.Generator().manual_seed(0))
    nearest = base.search(queries, 1)[:, 0]
    assert (nearest == torch.arange(len(nearest))).float().mean() < 0.03
    assert F.cosine_similarity(noise.flatten(1), base.noise[: len(noise)].flatten(1)).abs().max() < 0.7


def test_trajectories_taken_at_random_have_noise_of_their_own_too():
    x, y = digits(300)
    begun = torch.randn(x.shape, generator=torch.Generator().manual_seed(7))
    noise = base_without_keys(x, y, by_class=False, seed=7).noise
    assert F.cosine_similarity(begun.flatten(1), noise.flatten(1)).abs().max() < 0.7


def test_chance_follows_the_shares_of_the_classes():
    y, blank = torch.tensor([0] * 90 + [1] * 10), torch.zeros(100, 1, 2, 2)
    knowledge = KnowledgeBase(unit(100), blank, blank, y, False, time=1)
    requested = torch.tensor([0] * 5 + [1] * 5)
    result = measured(knowledge, FeatureMap(OneStep(SCHEDULE, nothing), Chance()), blank[:10], requested, seed=0)
    assert result.chance == pytest.approx(0.9 * 0.5 + 0.1 * 0.5)
    assert result.chance_five == pytest.approx(0.5 * (1 - 0.1**5) + 0.5 * (1 - 0.9**5))


@pytest.mark.parametrize("products", [2**26, 500])
def test_the_reference_is_the_class_posterior_under_the_mixture_of_the_bases_images(products, monkeypatch):
    monkeypatch.setattr("sfumato.retrieval.accuracy.PRODUCTS", products)
    x, y = digits(200)
    features = FeatureMap(OneStep(SCHEDULE, nothing), Pixels())
    base, noised = base_of(features, x[:150], y[:150], time=12), torch.randn(50, 1, 8, 8) * 0.7
    level = math.prod(1 - (0.01 + 0.19 * i / (T - 1)) for i in range(12))
    logits = -(noised[:, None] - math.sqrt(level) * base.images[None]).double().square().flatten(2).sum(2) / (
        2 * (1 - level)
    )
    classes = [torch.stack([row[y[:150] == c].logsumexp(0) for c in range(10)]).argmax() for row in logits]
    assert torch.equal(likeliest_class(base, SCHEDULE, noised), torch.stack(classes))


def test_a_label_that_is_asked_for_comes_back_as_an_echo():
    """A denoiser that draws the class that it is asked for, whatever it sees, "retrieves" perfectly from noise alone."""
    x, y = columns()
    pictures = {label: x[y == label][0] for label in range(10)}

    def parrot(x_t, t, classes):
        level = CLEAR.alpha_bar[t].view(-1, 1, 1, 1)
        wanted = torch.stack([pictures.get(int(c), torch.zeros(1, 8, 8)) for c in classes])
        return (x_t - level.sqrt() * wanted) / (1 - level).sqrt()

    seen = FeatureMap(OneStep(CLEAR, parrot, conditional=True), Pixels())
    result = measured(
        base_of(seen, x[:400], y[:400], T), FeatureMap(OneStep(CLEAR, parrot), Pixels()), x[400:], y[400:], seed=0
    )
    assert result.labelled_first == result.echo == 1.0 and result.first < 0.4


def at(time, first, chance=0.02):
    others = dict.fromkeys(("five", "chance_five", "reference", "labelled_first", "labelled_five", "echo"), 0.5)
    return RetrievalFindings(time=time, share=time / T, first=first, chance=chance, **others)


def test_the_largest_time_at_which_retrieval_works_is_chosen():
    blank, labels = torch.zeros(9, 1, 2, 2), torch.arange(9)
    bases = [KnowledgeBase(unit(9), blank, blank, labels, False, time=time) for time in (32, 20, 12, 6)]
    findings = [at(32, 0.03), at(20, 0.11), at(12, 0.3), at(6, 0.7)]
    assert chosen(bases, findings).time == 20 and numbers(bases[1], findings)["retrieval_accuracy"] == 0.11
    none = chosen(bases[:1], findings[:1])
    assert not none.has_keys and numbers(none, findings[:1])["retrieval_accuracy"] == 0.03
    assert numbers(none, ()) == {}


@pytest.mark.parametrize(
    ("accuracy", "chance", "works"),
    [
        (0.1, 0.02, True),
        (0.099, 0.02, False),
        (0.5, 0.1, True),
        (0.74, 0.5, False),
        (0.75, 0.5, True),
        (1.0, 1.0, True),
    ],
)
def test_retrieval_works_at_five_times_chance_or_half_way_to_certainty(accuracy, chance, works):
    assert retrieves(accuracy, chance) == works


def test_auto_measures_the_papers_time_and_every_tenth_below_above_v():
    assert (
        times_above(0.4, 52) == (0.8, 0.7, 0.6, 0.5)
        and times_above(0.6, 52) == (0.8, 0.7)
        and times_above(0.8, 52) == ()
    )
    assert times_above(0.4, 1) == (), "where all are of one class, nothing can be measured"


def test_the_recipe_of_retrieval_goes_by_declared_facts():
    grey, colour = (
        {name: value for name, value, _ in recipe_of((0.8, 0.7), 52, photographs=colour)} for colour in (False, True)
    )
    assert grey == {"times": (0.8, 0.7), "extractor.contrast": "classes", "query.key_draws": 8}
    assert colour["extractor.mirror"] is True and colour["extractor.edge"] == "border"
    assert not list(recipe_of((), 1, photographs=False)), "one class teaches no contrast"
