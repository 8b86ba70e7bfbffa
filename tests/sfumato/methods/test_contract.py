"""What every method keeps: a plan fixed beforehand, priced as it is paid, and examples of one record each."""

import functools
import itertools
import math
import re
import sys
from dataclasses import replace

import pytest
import torch

from sfumato import sources
from sfumato.errors import BadInput
from sfumato.images import to_unit
from sfumato.methods import METHODS
from sfumato.methods.plan import (
    ANY_NUMBER,
    STAGE_CENTRAL,
    STAGE_COUNTS,
    STAGE_DRAWING,
    STAGE_MATCHING,
    STAGE_MOMENTS,
    STAGE_SELECTION,
    Certificate,
    Plan,
)
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.events import DiscreteHistogram, MomentEvents
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.settings import resolve
from tests.spends import KEYS

every_method = pytest.mark.parametrize("method", METHODS)
every_tuned = pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.corrupt])
"""Methods that learn from private images by DP-SGD and release what learnt."""
every_walk = pytest.mark.parametrize(
    ("method", "solver"),
    [
        (name, solver)
        for name, method in METHODS.items()
        for solver in ("ddim", "dpm++", "ddpm", "pndm")
        if method.corrupt and (name != "dppm" or solver == "ddim")
    ],
)
"""The same with every solver; `dppm` has a walk of its own, and takes none."""


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


@pytest.fixture(scope="module")
def trained(world, access_to, tmp_path_factory):
    """`trained(method)`: the parts of the tiny world once everything is paid for, which happens once."""

    @functools.cache
    def parts(method):
        with Ledger(f"sqlite:///{tmp_path_factory.mktemp('paid')}/ledger.db", lambda: "now", KEYS) as opened:
            return world(method).pay(access_to(opened))[0]

    return parts


@functools.cache
def planned(method, *changes):
    settings, facts, _ = preflight(resolve(method, changes=changes))
    return plan_for(settings, facts)


def certified(method):
    """Skips what is said of a certificate where the plan promises none."""
    if not planned(method).certificate:
        pytest.skip("the plan has no certificate")


def fine_tuned(tiny):
    """Skips what is said of examples where nothing is trained on them."""
    if not tiny.plan.fine_tuning:
        pytest.skip("the plan has no fine-tuning")


def images(tiny, parts, y, generator):
    """What the method draws, without the labels that it may bring."""
    drawn = tiny.method.draw(tiny.settings, parts, y, generator)
    return tiny.method.labels(tiny.settings, parts, drawn)[0] if tiny.method.labels else drawn


def digits(count=24):
    result = sources.load("digits", sources.Reading(part="train")).subset(slice(count))
    return to_unit(result.pixels), torch.from_numpy(result.labels)


def test_each_method_is_known_by_its_own_name():
    for name, method in METHODS.items():
        assert method.section().name == name
        assert sys.modules[method.module].ALGORITHM is method and sys.modules[method.module].__doc__


# The plan


@every_method
def test_the_plan_is_deterministic_and_frozen(method):
    one, two = planned(method), planned.__wrapped__(method)
    assert one == two and Plan.model_validate_json(one.model_dump_json()) == one
    values = {"noise_multiplier": one, "epsilon": one.certificate, "event": one.spends[0], "source": one.claim}
    for field, value in values.items():
        if value is None:
            continue
        with pytest.raises(ValueError, match="frozen"):
            setattr(value, field, getattr(value, field))
    assert isinstance(one.spends, tuple) and isinstance(one.facts.classes, tuple)


@every_method
@pytest.mark.parametrize(
    "terms",
    [
        [],
        ["privacy.epsilon=1"],
        ["privacy.epsilon=3", "privacy.relation=replace_one"],
        ["privacy.epsilon=2", "privacy.delta=1e-6", "fine_tuning.sample_rate=0.05", "fine_tuning.steps=1000"],
    ],
    ids=str,
)
def test_the_certificate_meets_the_target_and_wastes_at_most_one_percent(method, terms):
    certified(method)
    settings, facts, _ = preflight(resolve(method, changes=terms))
    plan, target = plan_for(settings, facts), settings.privacy
    certificate = plan.certificate
    assert 0.99 * target.epsilon <= certificate.epsilon <= target.epsilon
    assert (certificate.delta, certificate.relation) == (target.delta, target.relation)
    released = plan.fine_tuning or plan.plain or plan.prototypes or not plan.events(STAGE_DRAWING)
    assert certificate.images == (ANY_NUMBER if released else plan.generation.images), (
        "weights, and maps, may draw any number"
    )
    priced = accountant.epsilon([spend.event for spend in plan.spends], target.delta, target.relation)
    assert certificate.epsilon == pytest.approx(priced, rel=1e-9), "the certificate is of the spends that are listed"
    assert all(len(plan.events(stage)) == 1 for stage in stages(plan) if stage not in (STAGE_DRAWING, STAGE_MOMENTS))
    sentence = certificate.sentence()
    assert f"({certificate.shown_epsilon}, {certificate.shown_delta})" in sentence and target.relation in sentence


def stages(plan):
    """Those that spend, in order, each once."""
    return list(dict.fromkeys(spend.stage for spend in plan.spends))


@every_tuned
def test_less_epsilon_and_more_steps_need_more_noise(method):
    certified(method)
    usual = planned(method).noise_multiplier
    assert planned(method, "privacy.epsilon=5").noise_multiplier > usual
    assert planned(method, "fine_tuning.steps=600").noise_multiplier > usual
    assert planned(method, "privacy.relation=replace_one").noise_multiplier > usual
    assert planned(method, "fine_tuning.draws=16").noise_multiplier == usual, "draws cost nothing"


@every_method
def test_the_claim_is_a_number_with_its_source(method):
    plan = planned(method)
    assert math.isfinite(plan.claim.epsilon) and plan.claim.epsilon > 0 and len(plan.claim.source) > 20


@every_method
def test_a_target_out_of_reach_is_refused_in_one_line(method):
    certified(method)
    with pytest.raises(BadInput) as refusal:
        planned(method, "privacy.epsilon=1e-12", "privacy.delta=1e-12")
    assert "\n" not in str(refusal.value) and "epsilon" in str(refusal.value)


# What is paid


@every_method
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_what_is_paid_is_what_was_planned(method, relation, world, access_to, ledger):
    tiny = world(method, f"privacy.relation={relation}")
    assert tiny.facts.records == 58 and (not tiny.plan.fine_tuning or tiny.plan.fine_tuning.steps == 2)
    _, entries = tiny.pay(access_to(ledger))
    spends = ledger.spends("digits")
    assert [(entry.body["stage"], *events) for entry, events in spends] == [
        (stage, *tiny.plan.events(stage)) for stage in stages(tiny.plan)
    ]
    looks = ["look"] * (tiny.plan.members.count if tiny.plan.members else 0)
    kinds = [entry.kind for entry in ledger.entries()]
    assert kinds == looks + ["reserve", "open"] * len(stages(tiny.plan)), "no other access"
    certificate, terms = tiny.plan.certificate, tiny.plan.privacy
    total = ledger.total("digits", terms.delta, relation)
    assert total.epsilon == (pytest.approx(certificate.epsilon, rel=1e-9) if certificate else math.inf)
    assert entries == {entry.hash: "DP" if certificate else "INTERNAL" for entry, _ in spends}
    assert all(entry.body["relation"] == relation for entry, _ in spends)


@every_method
def test_a_comparison_costs_nothing_and_stays_internal(method, world, access_to, ledger):
    _, entries = world(method).pay(access_to(ledger, comparison=True))
    assert {entry.kind for entry in ledger.entries()} == {"look"} and set(entries.values()) == {"INTERNAL"}


@every_method
def test_a_budget_of_the_planned_epsilon_is_enough_for_one_run(method, world, access_to, ledger):
    certified(method)
    tiny = world(method)
    ledger.set_budget("digits", tiny.settings.privacy.epsilon, tiny.plan.certificate.delta)
    tiny.pay(access_to(ledger))
    assert ledger.total("digits").left < 0.01 * tiny.settings.privacy.epsilon


# What is trained on


def as_trained(tiny):
    """The world's parts as they are when training starts, with made-up votes where votes are taken."""
    if not tiny.plan.votes:
        return tiny.parts
    return replace(tiny.parts, winners=torch.arange(10) % tiny.facts.public_classes)


@every_tuned
def test_a_records_examples_depend_on_that_record_alone(method, world):
    tiny = world(method)
    fine_tuned(tiny)
    corrupt = tiny.method.corrupt(tiny.settings, as_trained(tiny))
    x, y = digits()
    other_x, other_y = x.clone(), y.clone()
    other_x[7], other_y[7] = -x[7].flip(-1), (y[7] + 1) % 10
    one = corrupt(x, y, torch.Generator().manual_seed(1))
    two = corrupt(other_x, other_y, torch.Generator().manual_seed(1))
    for field in ("x_t", "t", "y", "target"):
        a, b = getattr(one, field), getattr(two, field)
        assert a.shape[:2] == (24, tiny.settings.fine_tuning.draws)
        others = torch.arange(24) != 7
        assert torch.equal(a[others], b[others]), field
    assert not torch.equal(one.x_t[7], two.x_t[7]) and not torch.equal(one.y[7], two.y[7])


@every_tuned
def test_a_records_examples_stand_in_its_place(method, world):
    """Exchanging two records exchanges their classes, and every copy carries its record's class."""
    tiny = world(method)
    fine_tuned(tiny)
    x, y = digits()
    examples = tiny.method.corrupt(tiny.settings, as_trained(tiny))(x, y, torch.Generator().manual_seed(1))
    assert torch.equal(examples.y, y[:, None].expand(examples.y.shape))
    assert examples.t.min() >= 1 and examples.t.max() <= tiny.settings.schedule.timesteps
    level = tiny.parts.schedule.alpha_bar[examples.t][..., None, None, None]
    undone = (examples.x_t - (1 - level).sqrt() * examples.target) / level.sqrt()
    torch.testing.assert_close(undone, x[:, None].expand_as(undone), rtol=1e-2, atol=1e-2)


@every_tuned
def test_no_records_give_no_examples(method, world):
    """A Poisson batch may be empty; that must not show by a crash."""
    tiny = world(method)
    fine_tuned(tiny)
    x, y = digits()
    examples = tiny.method.corrupt(tiny.settings, as_trained(tiny))(x[:0], y[:0], torch.Generator().manual_seed(1))
    assert examples.x_t.shape == (0, tiny.settings.fine_tuning.draws, *tiny.facts.shape)
    assert len(examples.t) == len(examples.y) == len(examples.target) == 0


@every_tuned
def test_a_run_of_empty_batches_reaches_its_end(method, world, access_to, ledger):
    tiny = world(method)
    spends = tuple(
        spend.model_copy(update={"event": spend.event.model_copy(update={"sample_rate": 1e-6})})
        if hasattr(spend.event, "sample_rate")
        else spend
        for spend in tiny.plan.spends
    )
    starved = replace(tiny, plan=tiny.plan.model_copy(update={"spends": spends}))
    parts, _ = starved.pay(access_to(ledger))
    assert all(p.isfinite().all() for p in parts.tuned.parameters())


# What is drawn


class Counted(torch.nn.Module):
    """A network that notes how many images it was asked about, and when."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.images, self.times = inner, 0, []

    def forward(self, x, t, y):
        self.images += len(x)
        self.times += t.tolist()
        return self.inner(x, t, y)


@every_walk
@pytest.mark.parametrize(
    "changes",
    [
        *([], ["generation.guidance=0"], ["generation.steps=7"], ["generation.steps=500"]),
        ["generation.early_steps=2", "generation.late_steps=5"],
        ["generation.early_steps=500", "generation.late_steps=1", "generation.guidance=0", "generation.eta=0"],
    ],
    ids=str,
)
def test_the_planned_evaluations_are_those_made(method, changes, solver, world, trained):
    tiny, parts = world(method, *changes, f"generation.solver={solver}"), trained(method)
    public, tuned = Counted(parts.public), Counted(parts.tuned)
    y = torch.arange(30) % 10
    generator = torch.Generator().manual_seed(0)
    drawn = images(tiny, replace(parts, public=public, tuned=tuned), y, generator)
    assert drawn.shape == (30, *tiny.facts.shape) and drawn.isfinite().all() and drawn.abs().max() <= 1
    assert public.images + tuned.images == tiny.plan.evaluations * 30
    assert tuned.images > 0 and min(tuned.times + public.times) >= 1


@every_walk
def test_drawing_follows_its_generator_and_the_class(method, solver, world, trained):
    tiny, parts = world(method, f"generation.solver={solver}"), trained(method)
    y = torch.arange(20) % 10

    def draw(y, seed):
        torch.manual_seed(seed + 100)
        return images(tiny, parts, y, torch.Generator().manual_seed(seed))

    assert torch.equal(draw(y, 0), draw(y, 0)) and not torch.equal(draw(y, 0), draw(y, 1))
    assert torch.equal(draw(y, 0), draw((y + 1) % 10, 0)) == (tiny.method.labels is not None)


@pytest.mark.parametrize(
    ("epsilon", "delta", "shown"),
    [
        (9.99301, 3.3635e-4, "(9.994, 0.000337)"),
        (9.993, 3.37e-4, "(9.993, 0.000337)"),
        (0.0001, 1e-5, "(0.001, 1e-05)"),
        (12.0, 0.1, "(12.000, 0.1)"),
    ],
)
def test_a_sentence_never_promises_more_than_was_certified(epsilon, delta, shown):
    certificate = Certificate(epsilon=epsilon, delta=delta, relation="add_remove", accountant="PLD")
    assert certificate.sentence().startswith(shown)


# Classes by other shares than even ones

CHOOSES = [name for name, method in METHODS.items() if not method.labels]
"""Methods that draw the class that they are asked for."""


@pytest.mark.parametrize("method", CHOOSES)
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_asking_for_the_classes_is_priced_with_everything_else(method, relation):
    requested = [
        "generation.classes=queried",
        "generation.count_noise=2",
        f"privacy.relation={relation}",
        "privacy.epsilon=3",
    ]
    plan = planned(method, *requested)
    assert [spend.stage for spend in plan.spends][0] == STAGE_COUNTS and len(plan.events(STAGE_COUNTS)) == 1
    assert plan.event(STAGE_COUNTS) == DiscreteHistogram(noise_multiplier=2)
    priced = accountant.epsilon([spend.event for spend in plan.spends], plan.privacy.delta, relation)
    assert plan.certificate.epsilon == pytest.approx(priced, rel=1e-9) and 2.97 <= priced <= 3
    without = planned(method, *requested[2:])
    assert not without.events(STAGE_COUNTS)
    rest = [spend.event for spend in plan.spends[1:]]
    assert accountant.epsilon(rest, plan.privacy.delta, relation) < without.certificate.epsilon * 0.99


@pytest.mark.parametrize("method", CHOOSES)
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_moments_are_priced_with_everything_else(method, relation):
    """Alone they cost their share of the target, or all of it where nothing else is asked."""
    terms = ["alignment.kind=moments", "alignment.share=0.3", "privacy.epsilon=3", f"privacy.relation={relation}"]
    cells = ["alignment.cells=8", "alignment.rounds=2"]
    plan = planned(method, *terms, *cells, *({"rapid": ["method.votes=false"]}.get(method, [])))
    paid = MomentEvents.of(plan.events(STAGE_MOMENTS))
    assert plan.moments and paid.means == paid.covariances and paid.paid == plan.events(STAGE_MOMENTS)
    times = (2, 4, 2)
    for event, more in zip((paid.counts, paid.distances, paid.rounds), times, strict=True):
        assert event.noise_multiplier == pytest.approx(more * paid.means.noise_multiplier)
    assert paid.rounds.count == 2
    alone = accountant.epsilon(paid.paid, plan.privacy.delta, relation)
    assert alone == pytest.approx(3.0 if method == "moments" else 0.9, rel=0.01)
    assert 2.97 <= plan.certificate.epsilon <= 3
    priced = accountant.epsilon([spend.event for spend in plan.spends], plan.privacy.delta, relation)
    assert plan.certificate.epsilon == pytest.approx(priced, rel=1e-9)


@pytest.mark.parametrize(
    ("method", "changes", "says"),
    [
        ("dppm", [], "labels of their own"),
        ("rapid", ["method.votes=true"], "method.votes=false"),
        ("empirical-denoiser", ["method.by_class=false"], "method.by_class=true"),
        ("dp-sgd", ["data.size=64"], "smaller data.size"),
    ],
)
def test_a_method_that_cannot_work_with_aligned_classes_is_refused_in_one_line(method, changes, says):
    with pytest.raises(BadInput, match=says) as refusal:
        planned(method, "alignment.kind=moments", *changes)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("method", CHOOSES)
def test_every_method_trains_and_draws_on_aligned_classes(method, world, access_to, ledger):
    once = ["method.phase_one=noised_once", "privacy.relation=replace_one", "schedule.timesteps=1000"]
    own = {"rapid": ["method.votes=false"], "dp-promise": [*once, "method.training.steps=2"]}
    tiny = world(method, "alignment.kind=moments", *own.get(method, []))
    parts, entries = tiny.pay(access_to(ledger))
    spends = ledger.spends("digits")
    assert spends[0][0].body["stage"] == STAGE_MOMENTS and spends[0][1] == tiny.plan.events(STAGE_MOMENTS)
    assert set(entries.values()) == {"DP"} and parts.alignment is not None
    total = ledger.total("digits", tiny.plan.privacy.delta, tiny.plan.privacy.relation)
    assert total.epsilon == pytest.approx(tiny.plan.certificate.epsilon, rel=1e-9)


CENTRAL = ["central.images=1", "privacy.epsilon=3"]
WARMED = sorted(name for name, method in METHODS.items() if method.corrupt and not method.blueprint)


@pytest.mark.parametrize("method", WARMED)
@pytest.mark.parametrize("of", ["cells", "samples"])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_central_images_are_priced_with_everything_else(method, of, relation):
    """Alone they cost their share of the target; three samples of a class more than one, three cells no more."""
    terms = ["privacy.epsilon=3", f"privacy.relation={relation}", f"central.of={of}", "central.share=0.2"]
    plan = planned(method, "central.images=3", *terms)
    event = plan.event(STAGE_CENTRAL)
    assert accountant.epsilon([event], plan.privacy.delta, relation) == pytest.approx(0.6, rel=0.01)
    assert 2.97 <= plan.certificate.epsilon <= 3
    priced = accountant.epsilon([spend.event for spend in plan.spends], plan.privacy.delta, relation)
    assert plan.certificate.epsilon == pytest.approx(priced, rel=1e-9)
    single = planned(method, "central.images=1", *terms).event(STAGE_CENTRAL)
    if of == "cells":
        assert event == single and event.count == 1
    else:
        assert (event.steps, single.steps) == (3, 1) and event.noise_multiplier > 1.3 * single.noise_multiplier


@pytest.mark.parametrize("method", sorted(set(METHODS) - set(WARMED)))
def test_a_method_without_dp_sgd_of_the_public_denoiser_takes_no_central_images(method):
    with pytest.raises(BadInput, match=r"central\.images=1: method\.name=.* does not train the public") as refusal:
        planned(method, "central.images=1")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["central.images=40"], "would be means of 3.59, .* use fewer"),
        (["central.of=samples", "central.sample_rate=0.05"], "raise central.sample_rate"),
        (["alignment.kind=moments"], "use alignment.kind=none"),
        (["data.size=64"], "latent.kind=kl"),
    ],
)
def test_central_images_that_cannot_serve_are_refused_in_one_line(changes, says):
    with pytest.raises(BadInput, match=says) as refusal:
        planned("dp-sgd", "central.images=4", *changes)
    assert "\n" not in str(refusal.value)


POINTS = {"empirical-denoiser": ["method.pay=class"], "dp-ensemble": ["method.prototypes=1", "method.members=40"]}
"""Settings with which a method pays for points alone, and draws any number of images from them."""
MATCHED = sorted(set(METHODS) - {"dppm", "dp-merf", "dp-mepf"})


@pytest.mark.parametrize("method", MATCHED)
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_mean_embeddings_to_match_are_priced_with_everything_else(method, relation):
    requested = ["privacy.epsilon=3", f"privacy.relation={relation}", "matching.share=0.2", "matching.frequencies=30"]
    plan = planned(method, *requested, *POINTS.get(method, []))
    assert accountant.epsilon(plan.events(STAGE_MATCHING), plan.privacy.delta, relation) == pytest.approx(0.6, rel=0.01)
    if plan.certificate:
        priced = accountant.epsilon([spend.event for spend in plan.spends], plan.privacy.delta, relation)
        assert plan.certificate.epsilon == pytest.approx(priced, rel=1e-9) and priced <= 3
    assert plan.matching.frequencies == 30 and planned(method, "matching.frequencies=9").matching is None


@pytest.mark.parametrize("method", sorted({*METHODS} - {*MATCHED} | {*POINTS}))
def test_a_method_whose_images_cannot_move_takes_no_mean_embeddings(method):
    with pytest.raises(BadInput, match=r"matching\.share=0\.2: method\.name=.* nothing is left to match") as refusal:
        planned(method, "matching.share=0.2")
    assert "\n" not in str(refusal.value)


def test_an_embedding_that_is_noise_is_refused_in_one_line():
    with pytest.raises(BadInput, match=r"classes of 144 of .* use fewer frequencies") as refusal:
        planned("dp-sgd", "matching.share=0.05")
    assert "\n" not in str(refusal.value)


def test_without_central_images_nothing_is_planned_for_them():
    plan = planned("dp-sgd", "central.share=0.5")
    assert plan == planned("dp-sgd") and plan.central is None and plan.measured is None


@pytest.mark.parametrize(
    "method", sorted(set(METHODS) - {"dppm", "dp-ensemble", "dp-merf", "dp-mepf", "empirical-denoiser"})
)
def test_a_choice_of_public_classes_is_priced_with_everything_else(method):
    plan = planned(method, "selection.classes=12", "selection.share=0.1", "privacy.epsilon=3")
    assert plan.spends[0].stage == STAGE_SELECTION and plan.facts.learnt_classes == 12 < plan.facts.public_classes
    assert accountant.epsilon(plan.events(STAGE_SELECTION), plan.privacy.delta) == pytest.approx(0.3, rel=0.01)
    if plan.certificate:
        priced = accountant.epsilon([spend.event for spend in plan.spends], plan.privacy.delta)
        assert plan.certificate.epsilon == pytest.approx(priced, rel=1e-9) and priced <= 3
    assert "learns from the 12 that private records vote for" in str(plan)


def test_as_many_clusters_as_the_records_can_tell_apart_are_planned():
    plan = planned("rapid", "selection.clusters=auto")
    (event,) = plan.events(STAGE_SELECTION)
    assert plan.facts.clusters == round(1437 / (1.5 * event.noise_multiplier)) and plan.facts.learnt_classes == 8
    assert plan.spends[0].what == "votes for the public clusters to learn from"
    assert f"images of those of {plan.facts.clusters} clusters" in " ".join(str(plan).split())
    assert plan == planned("rapid", f"selection.clusters={plan.facts.clusters}")


@pytest.mark.parametrize(
    ("method", "changes", "says"),
    [
        ("rapid", ["selection.classes=52"], r"selection\.classes=52 of 52 classes on the public side leaves none out"),
        ("dp-sgd", ["selection.classes=5", "pretraining.steps=0"], "pretraining.steps=0, so that no denoiser learns"),
        ("dppm", ["selection.classes=5"], "method.name=dppm begins afresh"),
        ("rapid", ["selection.classes=5", "method.distinct=true"], "needs 10 public classes, .* there are 5"),
        ("rapid", ["selection.sources=1"], r"data\.public='glyphs' is one source, and no mixture"),
        ("rapid", ["data.public=glyphs+shapes", "selection.sources=2"], "of 2 public sources leaves none out"),
        (
            "rapid",
            ["data.public=glyphs+shapes", "selection.sources=1", "selection.classes=4"],
            "set one of the two to 0",
        ),
        ("rapid", ["selection.clusters=9", "selection.classes=4"], "selection.clusters=9 chooses in another way"),
        ("rapid", ["selection.clusters=1"], r"selection\.clusters=1: use at least 2, and at most"),
        ("rapid", ["selection.clusters=6000"], "for 20800 public images, or selection.clusters=0"),
        ("rapid", ["selection.clusters=9", "pretraining.steps=0"], "use selection.clusters=0"),
        (
            "rapid",
            ["selection.clusters=auto", "privacy.epsilon=0.1"],
            "of 1437 records with noise of .* raise selection.share=0.05",
        ),
    ],
)
def test_a_choice_of_public_classes_that_cannot_be_made_is_refused_in_one_line(method, changes, says):
    with pytest.raises(BadInput, match=says) as refusal:
        planned(method, *changes)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("method", WARMED)
def test_every_method_that_trains_by_dp_sgd_warms_up_on_central_images(method, world, access_to, ledger):
    tiny = world(method, *CENTRAL, "data.share=0.1", "central.steps=3")
    parts, entries = tiny.pay(access_to(ledger))
    spends = ledger.spends("digits")
    assert spends[0][0].body["stage"] == STAGE_CENTRAL and spends[0][1] == tiny.plan.events(STAGE_CENTRAL)
    assert set(entries.values()) == {"DP"} and parts.warm is not None and parts.tuned is not None
    total = ledger.total("digits", tiny.plan.privacy.delta, tiny.plan.privacy.relation)
    assert total.epsilon == pytest.approx(tiny.plan.certificate.epsilon, rel=1e-9)


def test_central_images_of_latents_lie_where_latents_do(world, access_to, ledger):
    small = ["latent.kind=kl", "latent.width=4", "latent.steps=20", "latent.batch=32"]
    tiny = world("dp-sgd", *CENTRAL, *small, "data.share=0.1", "central.steps=3")
    parts, entries = tiny.pay(access_to(ledger))
    assert set(entries.values()) == {"DP"} and parts.shape == (3, 4, 4) and parts.warm is not None
    assert tiny.reference.centroids.shape == (1, 48)


@pytest.mark.parametrize("method", CHOOSES)
def test_declared_classes_cost_nothing(method):
    shares = "generation.shares={0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1, 8: 1, 9: 1}"
    declared = planned(method, "generation.classes=declared", shares)
    assert declared.spends == planned(method).spends
    assert list(declared.generation.shares.values()) == [0.1] * 10


@pytest.mark.parametrize("classes", ["declared", "queried"])
def test_classes_that_a_method_finds_itself_or_counts_that_cost_too_much_are_refused(classes):
    shares = ["generation.shares={0: 1}"] if classes == "declared" else []
    with pytest.raises(BadInput, match=f"dppm draws images with labels of their own, .* generation.classes={classes}"):
        planned("dppm", f"generation.classes={classes}", *shares)
    with pytest.raises(BadInput, match=f"method.by_class=false .* generation.classes={classes} would mean nothing"):
        planned("empirical-denoiser", f"generation.classes={classes}", "method.by_class=false", *shares)
    with pytest.raises(BadInput, match=r"count_noise=0.05 makes .* cost epsilon .* of privacy.epsilon=10 by itself"):
        planned("rapid", "generation.classes=queried", "generation.count_noise=0.05")


def test_a_sampler_that_pays_by_class_pays_for_the_most_common_one():
    def images(*changes):
        return {
            event.count
            for event in planned("empirical-denoiser", "generation.images=50", *changes).events(STAGE_DRAWING)
        }

    assert images() == {5}
    assert images("generation.classes=declared", "generation.shares={3: 3, 4: 2}") == {30}
    assert images("generation.classes=queried") == {50}
    assert images("generation.classes=queried", "generation.largest_share=0.2") == {10}
    dear = ["method.clip=10", "generation.images=4000", "generation.classes=declared", "generation.shares={3: 3, 4: 2}"]
    with pytest.raises(BadInput, match=r"ask for at most (\d+) images") as error:
        planned("empirical-denoiser", *dear)
    most = int(re.search(r"at most (\d+) images", str(error.value))[1])
    assert planned("empirical-denoiser", *dear, f"generation.images={most}").certificate.epsilon <= 10
