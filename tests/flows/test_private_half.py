"""What the private half of a run asks of the stages: what is paid, in which order, and what stands on what."""

import itertools

import pytest

from artifacts.references import (
    ClassCounts,
    ClassMoments,
    NoisedImages,
    PhaseOneModel,
)
from flows.private_half import BASELINE, terms
from flows.synthesize import PUBLIC_ONLY, run_plan
from tasks import central, embedding, evolution, generation, private, public
from tasks.runtime.caching import canonical
from tests.flows.journal import OF_A_WANTED_CLASS, QUERIED, made, planned, stages


def test_members_are_looked_at_first_and_stand_behind_a_priced_drawing(book):
    run = planned("dp-ensemble", "method.members=3", "method.key=two")
    plan = run.plan
    run_plan(run)
    members = ["train-member"] * 3
    drawn = ["generate-privately", "generate", "find-nearest", "evaluate", "check-copies"]
    assert stages(book) == ["load-public", "check", "pretrain", "train-classifier", "rehearse", *members, *drawn]
    trained = book.of(private.train_member)
    assert [one.given.shard for one in trained] == [0, 1, 2] and not any(one.paid for one in trained)
    (drawing,) = book.of(generation.generate_privately)
    paid = drawing.given
    assert drawing.paid and paid.events == plan.events("drawing") and paid.wanted.images == plan.generation.images
    assert len(paid.inputs.members) == 3 and not paid.order.terms.comparison


def test_a_claim_travels_with_what_is_paid_and_not_with_the_comparison():
    run = planned()
    plan = run.plan
    assert terms(plan).claim == plan.claim.model_dump(mode="json") and not terms(plan).comparison
    assert terms(plan, comparison=True).claim is None
    assert (terms(plan).delta, terms(plan).relation) == (plan.certificate.delta, plan.certificate.relation)


def test_the_votes_are_asked_for_with_the_whole_plan_in_view(book):
    run = planned()
    plan = run.plan
    run_plan(run)
    (votes,) = book.of(private.take_votes)
    assert votes.given.order.terms.following == (plan.spends[-1].event,)
    assert all(not one.given.order.terms.following for one in book.of(private.fine_tune))


def test_a_first_phase_on_noised_copies_pays_once_and_then_trains_on_them(book):
    once = ["method.phase_one=noised_once", "privacy.relation=replace_one"]
    run = planned("dp-promise", *once)
    plan = run.plan
    run_plan(run)
    assert stages(book)[5:9] == ["noise-once", "train-phase-one", "fine-tune", "generate"]
    (copies,), (trained,) = book.of(private.noise_once), book.of(private.train_phase_one)
    in_terms = copies.given.order.terms
    assert copies.given.event == plan.spends[0].event and in_terms.relation == "replace_one"
    assert in_terms.following == (plan.spends[1].event,), "the budget must bear Phase II too"
    assert in_terms.claim is None, "the same copies serve runs that differ in Phase II"
    assert isinstance(trained.given.source, NoisedImages) and trained.given.phase == plan.phase_one
    tuned, baseline = (one.given.inputs for one in book.of(private.fine_tune))
    assert isinstance(tuned.started, PhaseOneModel) and baseline.started is None


def test_a_first_phase_as_published_opens_the_door_itself(book):
    run = planned("dp-promise", "method.phase_one=paper")
    plan = run.plan
    run_plan(run)
    assert "noise-once" not in stages(book)
    (trained,) = book.of(private.train_phase_one)
    assert trained.given.source == plan.spends[0].event and trained.given.source.kind == "uncertified" and trained.paid


@pytest.mark.parametrize("method", OF_A_WANTED_CLASS)
def test_classes_are_counted_first_and_the_images_stand_on_the_counts(book, method):
    members = ["method.members=2", "method.key=two"] if method == "dp-ensemble" else []
    run = planned(method, QUERIED, *members)
    plan = run.plan
    run_plan(run)
    (counted,) = book.of(private.count_classes)
    in_terms = counted.given.order.terms
    assert counted.given.event == plan.spends[0].event and counted.paid and in_terms.claim is None
    assert in_terms.following == tuple(spend.event for spend in plan.spends[1:]), "the budget must bear the rest"
    paying = [private.take_votes, private.fine_tune, evolution.vote, embedding.embed, generation.generate_privately]
    first = next(n for n, one in enumerate(book.calls) if one.stage is private.count_classes)
    assert all(n > first for n, one in enumerate(book.calls) if one.stage in paying)
    drawn, own = book.of(generation.generate), book.of(generation.generate_privately)
    counts = own[0].given.wanted.counts if own else drawn[0].given.counts
    assert isinstance(counts, ClassCounts)
    assert all(one.given.counts is None for one in drawn if one.note == PUBLIC_ONLY)
    assert all(one.given.counts == counts for one in drawn if one.note == BASELINE)


@pytest.mark.parametrize("method", OF_A_WANTED_CLASS)
def test_moments_are_taken_before_all_else_and_all_stands_on_them(book, method):
    own = {
        "rapid": ["method.votes=false"],
        "dp-ensemble": ["method.members=2", "method.key=two"],
        "dp-promise": ["method.phase_one=noised_once", "privacy.relation=replace_one"],
    }
    run = planned(method, "alignment.kind=moments", *own.get(method, []))
    plan = run.plan
    run_plan(run)
    (taken,) = book.of(private.take_moments)
    in_terms = taken.given.order.terms
    assert taken.given.events.paid == plan.events("moments") and taken.paid and in_terms.claim is None
    rest = plan.spends[len(taken.given.events.paid) :]
    assert in_terms.following == tuple(spend.event for spend in rest), "the budget must bear the rest"
    (measured,) = book.of(public.measure)
    assert taken.given.reference.digest and not measured.paid
    stages = [
        private.train_phase_one,
        private.fine_tune,
        private.train_member,
        evolution.vote,
        embedding.embed,
        generation.generate_privately,
    ]
    standing = [one for stage in stages for one in book.of(stage) if one.note != BASELINE]
    refs = [one.given.inputs.moments for one in standing]
    refs += [one.given.moments for one in book.of(private.noise_once)]
    refs += [one.given.inputs.moments for one in book.of(generation.generate) if not one.note]
    assert refs and {type(ref) for ref in refs} == {ClassMoments} and len({ref.digest for ref in refs}) == 1
    others = [one.given.inputs for one in book.of(generation.generate) if one.note in (PUBLIC_ONLY, BASELINE)]
    assert others and all(inputs.moments is None for inputs in others), "plain DP-SGD is compared with, unaligned"


@pytest.mark.parametrize("method", ["rapid", "dp-sgd", "dp-promise"])
def test_central_images_are_summed_before_all_else_and_private_training_begins_warm(book, method):
    own = ["method.phase_one=noised_once", "privacy.relation=replace_one"] if method == "dp-promise" else []
    run = planned(method, "central.images=2", *own)
    plan = run.plan
    run_plan(run)
    (summed,), (warmed,) = book.of(central.sum_up), book.of(central.warm_up)
    assert summed.given.event == plan.event("central") and summed.paid and summed.given.order.terms.claim is None
    assert summed.given.order.terms.following == tuple(spend.event for spend in plan.spends[1:])
    assert warmed.given.sums.digest == made(book, summed) and warmed.given.groups == plan.fine_tuning.trainable
    assert (warmed.given.inputs.votes is not None) == (plan.votes is not None)
    assert (warmed.given.inputs.started is not None) == (plan.phase_one is not None)
    tuned = [one for one in book.of(private.fine_tune) if one.note != BASELINE]
    assert [one.given.inputs.warm.digest for one in tuned] == [made(book, warmed)]
    others = [one.given.inputs.warm for one in book.of(private.fine_tune) if one.note == BASELINE]
    assert others == [None] * len(others), "plain DP-SGD is compared with, cold"


@pytest.mark.parametrize(
    ("method", "last"),
    [
        ("rapid", "alignment.kind=moments alignment.share=0.1 method.votes=false"),
        ("rapid", "central.images=2"),
        ("dp-ensemble", "alignment.kind=moments alignment.share=0.1 method.members=3 method.prototypes=2"),
        ("empirical-denoiser", "alignment.kind=moments alignment.share=0.1 method.pay=class"),
    ],
)
def test_the_budget_must_bear_with_each_payment_all_that_the_run_pays_for_after_it(book, monkeypatch, method, last):
    monkeypatch.setattr(generation, "comparable", lambda samples: False)
    shared = ["selection.classes=8", "generation.classes=queried", "judge.use=weigh", "judge.share=0.1"]
    plan = (run := planned(method, *shared, "matching.share=0.2", "matching.frequencies=50", *last.split())).plan
    run_plan(run)
    paying = [one.given for one in book.calls if one.paid and hasattr(one.given, "order")]
    wholes = [vars(one).get("events", (vars(one).get("event"),)) for one in paying]
    events = [getattr(events, "paid", events) for events in wholes]
    for number, one in enumerate(paying):
        later = itertools.chain(*events[number + 1 :])
        assert sorted(map(repr, one.order.terms.following)) == sorted(map(repr, later)), number
    assert sorted(map(repr, itertools.chain(*events))) == sorted(repr(spend.event) for spend in plan.spends)


def test_why_so_large_an_epsilon_is_wanted_reaches_the_ledger_and_no_cache_key():
    run = planned("dp-sgd", "privacy.epsilon=60", "privacy.reason=nobody sees it but us")
    plan = run.plan
    requested = terms(plan)
    assert requested.reason == "nobody sees it but us"
    other = requested.model_copy(update={"reason": "another wording"})
    assert canonical(requested) == canonical(other)
