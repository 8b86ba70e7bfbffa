"""Games against the priced queries: nothing is found where they do what their entries say, and planted defects are found by name."""

import itertools
import math

import pytest
import torch

from sfumato import alignment
from sfumato.config import Judge
from sfumato.privacy.accounting.events import (
    DiscreteHistogram,
    Gaussian,
    MomentEvents,
    NoisedRecords,
    SubsampledGaussian,
    Uncertified,
)
from sfumato.privacy.auditing import query_games
from sfumato.privacy.auditing.findings import FALSE_ALARM
from sfumato.privacy.auditing.query_games import (
    copying,
    counting,
    embedding_sums,
    learning_head,
    play_queries,
    queries_of,
    summing,
    taking_moments,
    voting,
)
from sfumato.privacy.engine import class_moments, linear_head, queries
from sfumato.privacy.noise import Source
from sfumato.privacy.units import single_records
from tests.seeded import seeded_source

DELTA = 1e-5
COUNTS = DiscreteHistogram(noise_multiplier=4.0)
SUMS = Gaussian(noise_multiplier=6.0)
MOMENTS = MomentEvents(counts=DiscreteHistogram(noise_multiplier=8.0), means=SUMS, covariances=SUMS.model_copy())
REFINED = MOMENTS.model_copy(
    update={"distances": DiscreteHistogram(noise_multiplier=20.0), "rounds": Gaussian(noise_multiplier=12.0, count=2)}
)
COPIES = NoisedRecords(noise_multiplier=12.0)
GRADIENTS = Gaussian(noise_multiplier=12.0, count=10)
QUERIES = {
    "class counts": lambda each: counting(COUNTS, each=each),
    "class votes": lambda each: voting(COUNTS, each=each),
    "class moments": lambda each: taking_moments(MOMENTS, each=each),
    "class moments, k-means": lambda each: taking_moments(REFINED, each=each),
    "central images": lambda each: summing(SUMS, each=each),
    "mean embeddings": lambda each: embedding_sums(SUMS, each=each),
    "noised copies": lambda each: copying(COPIES, each=each),
    "paid judge": lambda each: learning_head(GRADIENTS, Judge(), each=each),
}
"""Each about epsilon 1."""
RELATIONS = {"noised copies": "replace_one"}
"""Of those that are not priced under `add_remove`."""
NAMES = list(QUERIES)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """No plays beside those of the games: planted defects are large."""
    monkeypatch.setattr(query_games, "PLAYS", 1)


def fit_of(name, each=1):
    (fit,), bound = play_queries([QUERIES[name](each)], delta=DELTA, relation=RELATIONS.get(name, "add_remove"))
    return fit, bound


def same_each_time(monkeypatch):
    """Let all noise of the games follow from the same seeds."""
    seeds = itertools.count()
    monkeypatch.setattr(query_games, "system_source", lambda: seeded_source(next(seeds)))


@pytest.mark.parametrize("each", [1, 3], ids=["records", "groups"])
@pytest.mark.parametrize("name", NAMES)
def test_a_query_that_does_what_its_entry_says_has_no_fault_and_nearly_its_price(name, each, monkeypatch):
    """With noise that is the same each time: a bound of 95 % may be above the price by chance."""
    same_each_time(monkeypatch)
    fit, bound = fit_of(name, each)
    assert fit.what == name.partition(",")[0] and fit.faults == (), f"false alarms: {FALSE_ALARM}"
    assert fit.contribution == pytest.approx(1, abs=2e-3), "the record weighs as much as it can"
    assert fit.noise == pytest.approx(1, abs=0.12) and 1 <= fit.noise_at_most < 1.3
    assert 0.7 * fit.priced < fit.epsilon <= fit.priced and bound.epsilon <= fit.priced


def less_noise(monkeypatch, share):
    """Let all noise of queries be so much smaller."""
    real, whole = queries.noised, Source.discrete_gaussian

    def noised(values, *, noise_multiplier, **given):
        return real(values, noise_multiplier=share * noise_multiplier, **given)

    for asking in (queries, class_moments):
        monkeypatch.setattr(asking, "noised", noised)
    monkeypatch.setattr(Source, "discrete_gaussian", lambda self, shape, sigma: whole(self, shape, share * sigma))


@pytest.mark.parametrize("name", NAMES)
def test_halved_noise_is_found_and_shown_above_the_price(monkeypatch, name):
    less_noise(monkeypatch, 0.5)
    fit, _ = fit_of(name)
    assert "the noise is at most 0.5" in fit.faults[0] and fit.noise == pytest.approx(0.5, abs=0.06)
    assert fit.epsilon > 1.4 * fit.priced


@pytest.mark.parametrize("name", [name for name in NAMES if "k-means" not in name])
def test_hardly_any_noise_is_shown_by_guesses_alone(monkeypatch, name):
    less_noise(monkeypatch, 0.005)
    fit, bound = fit_of(name)
    assert bound.epsilon > 2 > fit.priced, "were all of a hundred right: 3.1"


@pytest.mark.parametrize("name", ["class counts", "class votes"])
def test_a_group_whose_records_all_count_is_found(monkeypatch, name):
    monkeypatch.setattr(queries, "one_of_each", lambda images, source: images)
    fit, _ = fit_of(name, each=3)
    assert any("moved the discrete_histogram by 3.000" in fault for fault in fit.faults)


def unclipped(head, x, y, units, scale):
    away = (scale * x @ head.T).softmax(1)
    away[torch.arange(len(y)), y] -= 1
    return away.T @ x


def test_gradients_that_are_not_clipped_are_found(monkeypatch):
    monkeypatch.setattr(linear_head, "clipped_gradient", unclipped)
    fit, _ = fit_of("paid judge")
    assert "one record moved the gaussian by" in fit.faults[-1] and fit.contribution > 1.4


def test_a_group_that_adds_all_its_gradients_is_found(monkeypatch):
    monkeypatch.setattr(queries, "units_of", lambda images, each: single_records(len(images)))
    assert any("one record moved the gaussian by 3" in fault for fault in fit_of("paid judge", each=3)[0].faults)


def test_more_looks_than_are_paid_for_are_found(monkeypatch):
    real = queries.train_head
    monkeypatch.setattr(queries, "train_head", lambda *args, steps, **named: real(*args, steps=steps + 1, **named))
    assert "it looks 11 times, and 10 are paid for" in fit_of("paid judge")[0].faults


def test_records_whose_norm_is_not_bounded_are_found(monkeypatch):
    monkeypatch.setattr(class_moments, "within", lambda x, most: x)
    faults = " ".join(fit_of("class moments")[0].faults)
    assert "one record moved the gaussian by 2.0" in faults, "4 for a radius of 2"


def test_a_central_image_of_unbounded_records_or_of_all_of_a_group_is_found(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(queries, "within", lambda x, most: x)
        assert "one record moved the gaussian by 2.0" in " ".join(fit_of("central images")[0].faults)
    monkeypatch.setattr(queries, "owners", lambda images: torch.arange(len(images)))
    assert "one record moved the gaussian by 3" in " ".join(fit_of("central images", each=3)[0].faults)


def test_a_second_moment_of_the_wrong_norm_is_found(monkeypatch):
    """What is off the diagonal counted twice, as it stands in a matrix, against a noise for the matrix's norm."""
    real = alignment.packed

    def doubled(matrices):
        row, column = torch.triu_indices(matrices.shape[-1], matrices.shape[-1])
        return real(matrices) * torch.where(row == column, 1.0, math.sqrt(2)).to(matrices)

    monkeypatch.setattr(alignment, "packed", doubled)
    fit, _ = fit_of("class moments")
    assert any("one record moved the gaussian by" in fault for fault in fit.faults) and fit.contribution > 1.3


@pytest.mark.parametrize("diagonal", [True, False])
def test_noise_on_a_part_of_the_second_moments_is_found(monkeypatch, diagonal):
    real = class_moments.noised

    def partly(values, **given):
        result = real(values, **given)
        if values[0].ndim == 1:  # a packed matrix
            size = math.isqrt(2 * values[0].numel())
            row, column = torch.triu_indices(size, size)
            result = [
                torch.where((row == column) == diagonal, one, value) for one, value in zip(result, values, strict=True)
            ]
        return result

    monkeypatch.setattr(class_moments, "noised", partly)
    assert fit_of("class moments")[0].faults


def test_one_noise_for_the_second_moments_of_all_classes_is_found(monkeypatch):
    real, retained = class_moments.noised, []

    def again(values, **given):
        if values[0].ndim > 1:
            retained.clear()
            return real(values, **given)
        retained.append(real([0 * values[0]], **given)[0])
        return [values[0] + retained[0]]

    monkeypatch.setattr(class_moments, "noised", again)
    assert "the noise of one tensor comes again in another" in fit_of("class moments")[0].faults


def test_centres_that_know_the_sums_before_their_noise_are_found(monkeypatch):
    """Second moments around the true means: then what the others add tells of the record, and the record moves more than was priced.

    Which of the two is seen follows the noise; that of these seeds shows both.
    """
    same_each_time(monkeypatch)
    real, true = class_moments.noised, []

    def noised(values, **given):
        if values[0].ndim > 1:
            true[:] = [values[0].clone()]
        return real(values, **given)

    centres = alignment.centres

    def knowing(counts, sums, noise, reference):
        return centres(counts, true[0].view_as(sums), noise, reference)

    class Seeing:
        def __getattr__(self, name):
            return knowing if name == "centres" else getattr(alignment, name)

    monkeypatch.setattr(class_moments, "noised", noised)
    monkeypatch.setattr(class_moments, "alignment", Seeing())
    of_the_others, of_the_record = fit_of("class moments")[0].faults
    assert "lets out something else than its entry says of the others" in of_the_others
    assert "one record moved the gaussian by 2." in of_the_record


def test_queries_of_earlier_kinds_are_not_played():
    result = queries_of([Gaussian(noise_multiplier=3.0)], [COUNTS], MOMENTS.paid[:2], [GRADIENTS], None, each=2)
    assert [query.what for query in result] == ["class votes", "paid judge"]
    sampled = SubsampledGaussian(noise_multiplier=3.0, sample_rate=0.5, steps=2)
    result = queries_of([], [], [], [], None, each=1, central=[SUMS, sampled])
    assert [query.what for query in result] == ["central images"], "coins of samples are not known to a game"
    result = queries_of([], [], [], [], None, each=1, copies=[COPIES, Uncertified(reason="Phase I")])
    assert [query.what for query in result] == ["noised copies"], "Phase I as published has no price"


def test_a_round_of_k_means_that_counts_every_record_of_a_group_in_full_is_found(monkeypatch):
    monkeypatch.setattr(class_moments.Records, "weights", lambda self, place: torch.ones(len(place)).double())
    assert "one record moved the gaussian by 3" in " ".join(fit_of("class moments, k-means", each=3)[0].faults)


def test_a_round_of_k_means_that_is_not_paid_for_is_found(monkeypatch):
    real = class_moments.k_means

    def once_more(records, moments, event, *others):
        return real(records, moments, event.model_copy(update={"count": event.count + 1}), *others)

    monkeypatch.setattr(class_moments, "k_means", once_more)
    assert "it looks 5 times, and 4 are paid for" in fit_of("class moments, k-means")[0].faults


def test_all_queries_of_a_run_are_guessed_by_together():
    fits, bound = play_queries([counting(COUNTS), taking_moments(MOMENTS)], delta=DELTA)
    assert [fit.what for fit in fits] == ["class counts", "class moments"] and bound.canaries == 100
