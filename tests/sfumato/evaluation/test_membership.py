"""Attacks: areas that can be worked out by hand, losses that compare record by record, distances to the bit."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from sfumato.config import Schedule
from sfumato.diffusion.objective import denoising_examples
from sfumato.diffusion.samplers import NO_CLASS
from sfumato.diffusion.schedule import add_noise, make_schedule
from sfumato.errors import BadInput
from sfumato.evaluation.attack_results import LEAST_RECORDS, Membership
from sfumato.evaluation.membership import (
    COMBINED,
    CONTROL,
    CURVE_RATES,
    NEAREST,
    Models,
    attack_times,
    canary_scores,
    combined,
    denoising_losses,
    image_attack,
    loss_attacks,
    membership,
    nearest,
    nearest_distance,
)

SCHEDULE = make_schedule(Schedule(timesteps=50))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Remembers(nn.Module):
    """A denoiser that knows some images by heart: near one of them it tells the noise, elsewhere it says nothing."""

    def __init__(self, known, schedule=SCHEDULE):
        super().__init__()
        self.known, self.schedule, self.calls = known, schedule, []

    def forward(self, x, t, y):
        self.calls.append((x, t, y))
        if self.known is None:
            return torch.zeros_like(x)
        signal, noise = self.schedule.signal(t), self.schedule.noise(t)
        guesses = (x[:, None] - signal[:, None] * self.known[None]) / noise[:, None]
        best = guesses.square().flatten(2).mean(2).argmin(1)
        result = guesses[torch.arange(len(x)), best]
        near = result.square().flatten(1).mean(1) < 2
        return torch.where(near.view(-1, 1, 1, 1), result, torch.zeros_like(x))


# The ROC curve


def test_the_area_is_sklearns_and_ties_count_by_half():
    members, others = normal(200).round(decimals=1) + 0.5, normal(150, seed=1).round(decimals=1)
    result = membership("a", members, others)
    assert result.auc == pytest.approx(roc_auc_score(np.r_[np.ones(200), np.zeros(150)], torch.cat([members, others])))
    low, high = result.auc_interval
    assert low < result.auc < high and (result.members, result.others) == (200, 150)
    assert membership("a", torch.zeros(20), torch.zeros(20)).auc == 0.5
    assert result.succeeded and not membership("a", normal(200), normal(200, seed=1)).succeeded


def test_a_perfect_attack_and_its_opposite():
    perfect = membership("a", np.arange(20) + 100, np.arange(30))
    assert (perfect.auc, perfect.strict_rate, perfect.loose_rate) == (1, 1, 1)
    assert perfect.auc_interval == (1, 1) and set(perfect.curve) == {1.0}
    worst = membership("a", np.arange(20), np.arange(30) + 100)
    assert (worst.auc, worst.strict_rate, worst.loose_rate) == (0, 0, 0)


def test_true_positive_rates_are_those_at_the_false_positive_rates():
    others = np.arange(1000.0)
    members = np.r_[np.full(30, 5000.0), np.full(20, 985.5), np.full(50, -1.0)]
    result = membership("a", members, others)
    assert result.strict_rate == 0.3, "14 others of 1000 lie above the second group"
    assert result.loose_rate == 0.5
    assert result.curve[0] == 0.3 and result.curve[-1] == 1 and len(result.curve) == len(CURVE_RATES)
    assert list(result.curve) == sorted(result.curve)


def test_the_interval_covers_the_true_area():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(60):  # N(1, 1) against N(0, 1): the area is Phi(1 / sqrt 2) = 0.7602
        low, high = membership("a", rng.normal(1, 1, 80), rng.normal(0, 1, 80)).auc_interval
        covered += low <= 0.7602 <= high
    assert covered >= 52


def test_a_value_is_frozen_and_survives_json():
    result = membership("a", normal(20), normal(20, seed=1), t=7)
    assert Membership.model_validate_json(result.model_dump_json()) == result
    with pytest.raises(ValueError, match="frozen"):
        result.auc = 1.0


@pytest.mark.parametrize(
    ("members", "others", "words"),
    [
        (torch.zeros(LEAST_RECORDS - 1), torch.zeros(50), "9 members are too few"),
        (torch.zeros(50), torch.zeros(0), "0 others are too few"),
        (torch.full((50,), torch.nan), torch.zeros(50), "members are NaN or infinite"),
        (torch.zeros(50), torch.full((50,), torch.inf), "others are NaN or infinite"),
        (torch.zeros(50, 2), torch.zeros(50), "shape"),
    ],
)
def test_scores_that_cannot_be_judged_are_refused(members, others, words):
    with pytest.raises(BadInput, match=words):
        membership("the attack", members, others)


# Losses


def test_losses_are_the_error_of_the_predicted_noise_at_each_time():
    x, y = normal(5, 1, 4, 4), torch.arange(5)
    model = Remembers(None)
    losses = denoising_losses(SCHEDULE, model, x, y, times=[1, 50], draws=3, generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    noise = [torch.randn(x.shape, generator=generator) for _ in range(6)]
    expected = [sum(n.square().flatten(1).mean(1) for n in part) / 3 for part in (noise[:3], noise[3:])]
    assert torch.allclose(losses, torch.stack(expected))
    for (seen, t, classes), drawn in zip(model.calls, noise, strict=True):
        assert torch.equal(seen, add_noise(SCHEDULE, x, t, drawn)) and torch.equal(classes, y)
    assert [int(t[0]) for _, t, _ in model.calls] == [1, 1, 1, 50, 50, 50]


def test_equal_generators_give_two_models_the_same_noise_and_pieces_change_only_the_memory(monkeypatch):
    x, y = normal(6, 1, 4, 4), torch.zeros(6, dtype=torch.long)
    a, b = Remembers(None), Remembers(x)
    for model in (a, b):
        denoising_losses(SCHEDULE, model, x, y, times=[5], draws=2, generator=torch.Generator().manual_seed(1))
    assert all(torch.equal(one[0], other[0]) for one, other in zip(a.calls, b.calls, strict=True))
    monkeypatch.setattr("sfumato.evaluation.membership.CHUNK", 4)
    result = denoising_losses(SCHEDULE, b, x, y, times=[5, 9], draws=2, generator=torch.Generator().manual_seed(1))
    assert result.shape == (2, 6) and len(b.calls[-1][0]) == 2


def test_a_model_that_remembers_is_found_out_and_the_control_is_not():
    members, others = normal(40, 1, 4, 4).clamp(-1, 1), normal(40, 1, 4, 4, seed=1).clamp(-1, 1)
    y, heard = torch.zeros(40, dtype=torch.long), []
    public = Remembers(None)
    models = Models(SCHEDULE, public, Remembers(members))
    rows = loss_attacks(models, (members, y), (others, y), seed=0, progress=lambda *count: heard.append(count))
    by_name = {row.name: row for row in rows}
    times = attack_times(50)
    assert [row.t for row in rows] == [None, *times, None] and heard == [(1, 2), (2, 2)]
    assert by_name[COMBINED].auc > 0.95 and by_name[COMBINED].succeeded
    assert by_name[f"loss, t = {times[0]}"].auc > 0.95
    assert not by_name[CONTROL].succeeded
    assert all((classes == NO_CLASS).all() for _, _, classes in public.calls)


def test_equal_models_say_nothing_and_a_diverged_one_is_refused():
    members, others, y = normal(20, 1, 4, 4), normal(20, 1, 4, 4, seed=1), torch.zeros(20, dtype=torch.long)
    same = Models(SCHEDULE, Remembers(None), Remembers(None))
    rows = loss_attacks(same, (members, y), (others, y), seed=0)
    assert {row.auc for row in rows if row.name != CONTROL} == {0.5}
    broken = Models(SCHEDULE, Remembers(None), Remembers(torch.full((1, 1, 4, 4), torch.nan)))
    broken.tuned.forward = lambda x, t, y: torch.full_like(x, torch.nan)
    with pytest.raises(BadInput, match="NaN or infinite; look for a model that diverged"):
        loss_attacks(broken, (members, y), (others, y), seed=0)
    with pytest.raises(BadInput, match="no records to attack"):
        loss_attacks(same, (members[:0], y[:0]), (others, y), seed=0)


def test_times_lie_between_one_and_the_last():
    assert attack_times(1000) == [20, 50, 100, 200, 300, 500, 700, 900]
    assert attack_times(2) == [1, 2] and min(attack_times(3)) >= 1


def test_combining_standardises_each_attack():
    good, noise = torch.cat([torch.ones(10), torch.zeros(10)]), normal(20) * 1e6
    members, others = combined(torch.stack([good, noise])[:, :10], torch.stack([good, noise])[:, 10:])
    assert torch.cat([members, others]).mean().abs() < 1e-9
    alone, _ = combined(noise[None, :10], noise[None, 10:])
    assert alone.abs().max() < 5, "a large scale does not drown the other attack"
    flat, _ = combined(torch.ones(1, 3), torch.ones(1, 4))
    assert flat.tolist() == [0, 0, 0]


def test_canaries_are_scored_at_the_examples_of_training():
    x, y, calls = normal(8, 1, 4, 4), torch.arange(8), []

    def corrupt(images, classes, generator):
        calls.append(len(images))
        return denoising_examples(SCHEDULE, images, classes, draws=2, low=1, high=10, generator=generator)

    scores = canary_scores(corrupt, Remembers(None), Remembers(x[:4]), x, y, rounds=5, seed=0)
    assert scores.shape == (8,) and calls == [8] * 5
    assert scores[:4].min() > 0.5 > 0.1 > scores[4:].max(), "the remembered ones, and only they, got easier"


# Distances


def test_distances_are_per_pixel_exact_and_independent_of_the_pieces():
    images, reference = normal(7, 1, 3, 3), normal(30, 1, 3, 3, seed=1)
    slow = torch.tensor([[float((a - b).double().square().mean().sqrt()) for b in reference] for a in images])
    for chunk in (1, 4, 1000):
        distance, which = nearest(images, reference, chunk=chunk)
        assert torch.allclose(distance, slow.min(1).values.double()) and torch.equal(which, slow.argmin(1))
    exact = nearest_distance(reference[[3, 8]], reference)
    assert exact.tolist() == [0, 0]
    assert nearest_distance(reference[:1] + 0.25, reference[:1]).item() == pytest.approx(0.25)


def test_images_that_repeat_records_give_them_away():
    records = normal(60, 1, 4, 4)
    result = image_attack(torch.cat([records[:30], normal(20, 1, 4, 4, seed=1)]), records[:30], records[30:])
    assert result.name == NEAREST and result.auc == 1
    assert not image_attack(normal(50, 1, 4, 4, seed=2), records[:30], records[30:]).succeeded


@pytest.mark.parametrize(
    ("images", "reference", "words"),
    [
        (torch.zeros(0, 1, 2, 2), torch.zeros(3, 1, 2, 2), "images to compare: there are none"),
        (torch.zeros(3, 1, 2, 2), torch.zeros(0, 1, 2, 2), "records to compare with: there are none"),
        (torch.full((3, 1, 2, 2), torch.nan), torch.zeros(3, 1, 2, 2), "NaN or infinite"),
        (torch.zeros(3, 1, 2, 2), torch.zeros(3, 1, 3, 3), "bring both to one size"),
    ],
)
def test_images_that_cannot_be_compared_are_refused(images, reference, words):
    with pytest.raises(BadInput, match=words):
        nearest(images, reference)
