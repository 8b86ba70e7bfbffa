"""The empirical denoiser, paid for by clusters of each class: the price under both relations, what one record touches, what the counts decide."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from sfumato import sources
from sfumato.diffusion.edm import step_noise
from sfumato.drawing import draw_images, private_drawing
from sfumato.images import Drawn, to_unit
from sfumato.methods import empirical_denoiser
from sfumato.methods.algorithm import worst_pair
from sfumato.methods.empirical_denoiser import empirical_steps
from sfumato.methods.plan import ANY_NUMBER, STAGE_DRAWING, protecting_groups
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting.accountant import gdp_epsilon
from sfumato.privacy.accounting.events import DiscreteHistogram, Gaussian
from sfumato.privacy.auditing.games import play_drawing
from sfumato.privacy.engine import kernel_mean
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.mechanisms import drawn
from sfumato.settings import resolve
from tests.refusals import refused
from tests.seeded import seeded_source
from tests.spends import KEYS

CPU = torch.device("cpu")
CLUSTERS = ("method.pay=cluster", "method.clusters=3", "method.trajectories=2")


def planned(*changes):
    settings, facts, _ = preflight(resolve("empirical-denoiser", changes=["generation.images=60", *CLUSTERS, *changes]))
    return settings, plan_for(settings, facts)


def private_of(tiny):
    """Sixty digits in the cells of the plan's partition."""
    actual = sources.load("digits", sources.Reading(part="train")).subset(slice(60))
    x, y = to_unit(actual.pixels), torch.from_numpy(actual.labels)
    return x, tiny.partition(tiny.parts).cells_of(x, y)


# The price


def slow_delta(mu, noise, counts, epsilon):
    """Of means that move by `mu` deviations, beside so many counts with discrete Gaussian noise that move by 1 each: the sum, over what the counts
    show, of the means' delta at the epsilon that is left; the exact formula, in two loops."""
    masses = {number: math.exp(-number * number / (2 * noise * noise)) for number in range(-60, 61)}
    total = sum(masses.values())
    if counts == 0:
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    delta = 0.0
    for number, mass in masses.items():  # the noise of a count with the record in it
        loss = (2 * number + 1) / (2 * noise * noise)
        delta += mass / total * slow_delta(mu, noise, counts - 1, epsilon - loss)
    return delta


def slow_epsilon(mu, noise, counts, delta):
    return brentq(lambda epsilon: slow_delta(mu, noise, counts, epsilon) - delta, 0, 60, xtol=1e-9)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_the_certificate_is_of_the_counts_and_of_the_trajectories_of_the_cells_that_a_neighbour_touches(relation):
    """Worked out by hand: one record more is in one count and in the trajectories of one cell. An exchange is in the same cell, where it moves
    every mean twice as far, or in two cells, where two counts and twice as many means move: no more than the certificate says, which takes both."""
    settings, plan = planned("method.clip=1", f"privacy.relation={relation}", "privacy.epsilon=30", "privacy.reason=x")
    histogram, *steps = [spend.event for spend in plan.spends]
    assert isinstance(histogram, DiscreteHistogram) and all(isinstance(step, Gaussian) for step in steps)
    assert {step.count for step in steps} == {2} and len(steps) == len(empirical_steps(settings.method))
    each = 1 / (settings.method.sample_rate * plan.facts.records / 10 / 3)  # C / expected, of C = 1
    mus = [each / step_noise(*step) for step in empirical_steps(settings.method)]
    assert [1 / step.noise_multiplier for step in steps] == pytest.approx(mus, rel=1e-9)
    means, noise, delta = 2 * sum(mu**2 for mu in mus), histogram.noise_multiplier, settings.privacy.delta
    if relation == "add_remove":
        exact = slow_epsilon(math.sqrt(means), noise, 1, delta)
    else:
        same_cell, two_cells = (
            slow_epsilon(2 * math.sqrt(means), noise, 0, delta),
            slow_epsilon(math.sqrt(2 * means), noise, 2, delta),
        )
        exact = slow_epsilon(2 * math.sqrt(means), noise, 2, delta)
        assert max(same_cell, two_cells) < exact
    assert exact * (1 - 1e-6) <= plan.certificate.epsilon <= exact * 1.003
    assert plan.certificate.images == ANY_NUMBER and plan.prototypes == 60


def test_the_counts_cost_their_share_and_the_open_clip_takes_the_rest():
    for share in (0.05, 0.3):
        _, plan = planned(f"method.count_share={share}")
        noise = plan.spends[0].event.noise_multiplier
        alone = slow_epsilon(1e-6, noise, 1, plan.privacy.delta)
        assert 0.99 * 10 * share <= alone <= 10 * share * (1 + 1e-6) and 9.9 <= plan.certificate.epsilon <= 10
    assert "number of private records of each of 3 clusters of each class" in str(plan)
    assert "2 trajectories of a cluster" in str(plan)


def test_the_number_of_clusters_changes_no_price_but_how_far_a_record_moves():
    """A record is in one cell of however many: at one share of a mean the price is the same."""
    _, three = planned("method.clip=1")
    _, six = planned("method.clip=0.5", "method.clusters=6")
    assert [spend.event for spend in three.spends] == [spend.event for spend in six.spends]
    assert three.certificate == six.certificate and six.prototypes == 2 * three.prototypes


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        (["method.by_class=false"], r"method\.by_class=false .* method\.pay=cluster"),
        (["method.branch=70"], r"method\.branch=70 lies behind"),
        (["method.clusters=1"], "method.clusters"),
        (["method.count_share=1"], "method.count_share"),
        (["method.pay=class"], r"method\.clusters=3 means nothing where classes stay whole .* use method\.pay=cluster"),
        (
            ["method.pay=image", "method.clusters=4", "method.trajectories=1", "method.count_share=0.2"],
            r"method\.count_share=0\.2 means nothing where each image pays .* use method\.pay=cluster",
        ),
        (["method.clip=60", "method.trajectories=9"], r"would cost epsilon .* use at most \d+ trajectories of a cluster"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_paid_by_clusters_is_refused_in_one_line(changes, culprit):
    with refused(culprit):
        planned(*changes)


def test_a_group_of_records_may_lie_in_many_cells_so_that_groups_are_refused():
    _, plan = planned()
    with refused(
        r"method\.name=empirical-denoiser protects single images, not each patient .*its drawing has no bound"
    ):
        protecting_groups(plan.model_copy(update={"facts": plan.facts.model_copy(update={"unit": "patient"})}))


def test_more_clusters_than_public_images_are_refused_before_the_door_opens(world):
    few = world("empirical-denoiser", *CLUSTERS, "method.clusters=50")
    with refused(r"method\.clusters=50 is more than the 40 different public images"):
        few.partition(replace(few.parts, images=few.parts.images[:40]))


# What one record touches


def points(tiny, private, counts, seed=0):
    """The points of a drawing with these noisy counts."""
    images = tiny.drawing(tiny.parts)(*private, seeded_source(seed), counts)
    assert isinstance(images, Drawn)
    return torch.from_numpy(images.points)


def test_a_record_touches_the_trajectories_of_its_own_cell_alone(world):
    """At equal counts and noise; what a record does to counts is the histogram's to hide."""
    tiny = world("empirical-denoiser", *CLUSTERS)
    x, cells = private_of(tiny)
    counts = torch.bincount(cells, minlength=30) + 10
    of, _ = tiny.partition(tiny.parts).places(counts)
    before = points(tiny, (x, cells), counts)
    gone = int(cells[7])
    left = torch.arange(60) != 7
    after = points(tiny, (x[left], cells[left]), counts)
    moved = (before != after).flatten(1).any(1)
    assert moved.any() and bool((of[moved] == gone).all())


def test_nothing_but_noisy_counts_decides_how_many_images_a_cell_has(world):
    """Empty cells and full ones look alike to whoever sees which points are drawn again: the counts alone say."""
    tiny = world("empirical-denoiser", *CLUSTERS)
    x, cells = private_of(tiny)
    counts = torch.tensor([40, 20, 0] * 10)
    actual = points(tiny, (x, cells), counts)
    again = points(tiny, (x[:0], cells[:0]), counts)
    for drawn_points in (actual, again):
        same = torch.cdist(drawn_points.flatten(1), drawn_points.flatten(1)) == 0
        assert same.sum(1).tolist() == [2, 2, 2, 2, 1, 1] * 10, (
            "four points by two trajectories, then two, of each class"
        )


def test_one_record_moves_each_mean_by_what_was_paid_whatever_the_counts_are(world, monkeypatch):
    """A far record, alone in cells whose noisy counts are below 0, small and large."""
    tiny = world("empirical-denoiser", *CLUSTERS, "method.beta=1e-200", "method.longest=null")
    paid = tiny.plan.events(STAGE_DRAWING)
    counts = torch.tensor([-5, 1, 900] * 10)
    parts = replace(tiny.parts, paid=paid, cell_counts=counts)
    mean, moved = kernel_mean.kernel_mean, []

    def both(records, at, sigma, **how):
        actual = mean(records, at, sigma, **how)
        more = mean(
            torch.cat([records, torch.ones(1, 1, 8, 8)]),
            at,
            sigma,
            **how | {"labels": torch.cat([how["labels"], how["wanted"][-1:]])},
        )
        moved.append(float((more - actual)[-1].norm()))
        assert torch.equal(more[:-1], actual[:-1])
        return actual

    monkeypatch.setattr(kernel_mean, "kernel_mean", both)
    x, cells = private_of(tiny)
    for wanted in ([1, 0], [0, 1], [1, 2]):
        moved.clear()
        empirical_denoiser.draw_privately(tiny.settings, parts, (x, cells), torch.tensor(wanted), seeded_source(0))
        steps = [event for event in paid if isinstance(event, Gaussian)]
        shares = [
            step_noise(*at) / event.noise_multiplier
            for at, event in zip(empirical_steps(tiny.settings.method), steps, strict=True)
        ]
        assert len(moved) == len(shares)
        assert all(actual <= most * (1 + 1e-4) + 1e-6 for actual, most in zip(moved, shares, strict=True))
        assert max(actual / most for actual, most in zip(moved, shares, strict=True)) > 0.99, "the bound is attained"


@pytest.mark.parametrize("left", [0, 1])
def test_hardly_any_record_does_not_show_by_a_crash(left, world):
    tiny = world("empirical-denoiser", *CLUSTERS)
    x, cells = private_of(tiny)
    assert points(tiny, (x[:left], cells[:left]), torch.full((30,), -3)).isfinite().all()


def test_in_pieces_each_trajectory_is_drawn_once(world, monkeypatch):
    tiny = world("empirical-denoiser", *CLUSTERS)
    x, cells = private_of(tiny)
    counts, wanted_cells = torch.tensor([40, 20, 0] * 10), []
    draw = empirical_denoiser.draw_privately

    def counting(settings, parts, private, y, source):
        wanted_cells.extend(y.tolist())
        return draw(settings, parts, private, y, source)

    monkeypatch.setattr("sfumato.drawing.PAID_TOGETHER", 7)
    partition = tiny.partition(tiny.parts)
    parts = replace(tiny.parts, paid=tiny.plan.events(STAGE_DRAWING))
    how = {"finish": tiny.method.finish, "partition": partition}
    images = private_drawing(counting, tiny.settings, parts, tiny.facts, 60, CPU, **how)(
        x, cells, seeded_source(0), counts
    )
    assert wanted_cells == [
        cell for label in range(10) for cell in (3 * label, 3 * label, 3 * label + 1, 3 * label + 1)
    ]
    assert images.labels.tolist() == [label for label in range(10) for _ in range(6)]
    assert all(len(np.unique(images.points[images.labels == label], axis=0)) == 4 for label in range(10))


# Through the door


def test_one_entry_pays_for_counts_and_steps_and_covers_any_number(world, access_to, tmp_path):
    tiny, ticks = world("empirical-denoiser", *CLUSTERS), itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks):02d}:00Z", KEYS) as ledger:
        access = replace(access_to(ledger)(STAGE_DRAWING, tiny), images=ANY_NUMBER)
        events = tiny.plan.events(STAGE_DRAWING)
        paid = drawn(access, events, tiny.drawing(tiny.parts), device=CPU, partition=tiny.partition(tiny.parts))
        (entry,) = (entry for entry in ledger.entries() if entry.kind == "reserve")
        kinds = [one["kind"] for one in entry.body["events"]]
        assert kinds == ["discrete_histogram", *["gaussian"] * 9] and entry.body["images"] == ANY_NUMBER
        assert ledger.total("digits").epsilon == pytest.approx(tiny.plan.certificate.epsilon, rel=1e-6)
        before = len(list(ledger.entries()))
        parts = replace(tiny.parts, prototypes=torch.from_numpy(paid.result.points))
        many = draw_images(empirical_denoiser.draw, tiny.settings, parts, tiny.facts, 200, CPU)
        assert len(many) == 200 and len(list(ledger.entries())) == before and ledger.verify() == []
    assert paid.result.labels.tolist() == [label for label in range(10) for _ in range(6)]


def test_counts_are_noised_as_paid(world, access_to, tmp_path):
    """Over many drawings that draw nothing: the counts that leave spread by the noise of their event around the true ones."""
    tiny, ticks, counted = world("empirical-denoiser", *CLUSTERS), itertools.count(), []
    events, partition = tiny.plan.events(STAGE_DRAWING), tiny.partition(tiny.parts)

    def nothing(x, cells, source, counts):
        counted.append(counts - torch.bincount(cells, minlength=30))
        return sources.load("digits", sources.Reading(part="train")).subset(slice(2))

    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:00:{next(ticks):02d}Z", KEYS) as ledger:
        for number in range(12):
            access = replace(access_to(ledger)(STAGE_DRAWING, tiny), images=ANY_NUMBER)
            drawn(access, events, nothing, device=CPU, partition=partition, source=seeded_source(number))
    noise = torch.stack(counted).double()
    assert noise.dtype == torch.float64 and abs(float(noise.mean())) < 0.2 * events[0].noise_multiplier
    assert float(noise.std()) == pytest.approx(events[0].noise_multiplier, rel=0.15)


def test_an_audit_plays_its_steps(world):
    tiny = world("empirical-denoiser", *CLUSTERS)
    events = tiny.plan.events(STAGE_DRAWING)
    fit, _ = play_drawing(worst_pair(tiny.method, tiny.settings, tiny.parts, events), events, numbers=64, delta=1e-3)
    assert (
        fit.faults == ()
        and fit.contribution == pytest.approx(1, abs=0.02)
        and fit.priced
        == pytest.approx(gdp_epsilon(math.sqrt(sum(e.count / e.noise_multiplier**2 for e in events[1:])), 1e-3))
    )
