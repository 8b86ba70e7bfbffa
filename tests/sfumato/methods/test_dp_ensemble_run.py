"""The ensemble at work: what one member can change, what noise hides it, what that costs, and what is refused."""

import itertools
import math
import re
from dataclasses import replace

import pytest
import torch

from sfumato.diffusion.samplers import NO_CLASS, ddim
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import BadInput
from sfumato.methods import dp_ensemble
from sfumato.methods.parts import Parts
from sfumato.methods.plan import ANY_NUMBER, Facts
from sfumato.networks.attention import Attention
from sfumato.networks.build import build
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting.accountant import gdp_epsilon
from sfumato.privacy.accounting.events import Gaussian
from sfumato.settings import resolve
from tests.refusals import refused

SHAPE = (1, 8, 8)
FACTS = Facts(records=1437, classes=tuple("0123456789"), public_classes=52, shape=SHAPE)
FEW = ["generation.steps=20", "schedule.timesteps=50", "generation.images=20"]


def settings_with(*changes):
    return preflight(resolve("dp-ensemble", changes=[*FEW, *changes]))


def planned(*changes):
    settings, facts, _ = settings_with(*changes)
    return plan_for(settings, facts)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_members_from_scratch_know_nothing_of_the_public_images():
    assert not planned().members.scratch
    assert planned("method.start=scratch").members.scratch
    with pytest.raises(BadInput, match=r"method.start=scratch with method.adapters=8: .* use method.start=public"):
        planned("method.start=scratch", "method.adapters=8")


@pytest.mark.parametrize(
    ("preset", "shape", "records", "one", "ten"),
    [("ensemble-mnist", (1, 32, 32), 60000, 3.94, 15.85), ("ensemble-cifar10", (3, 32, 32), 50000, 6.68, 28.91)],
)
def test_the_papers_networks_plan_at_the_price_that_their_presets_name(preset, shape, records, one, ten):
    """Anonymous 2023, Section 4 and Table 1: 100 members, 500 epochs in batches of 128, heads of 64 channels."""
    settings = resolve("dp-ensemble", preset)
    network, method = settings.network, settings.method
    facts = Facts(records=records, classes=tuple("0123456789"), public_classes=10, shape=shape)
    plan = dp_ensemble.plan(settings, facts)
    assert plan.certificate.epsilon == pytest.approx(ten, abs=0.01)
    single = dp_ensemble.claim("linear", 250, 2 * method.radius, 100, "min", 0, 50, 1, 1e-5)
    assert single.epsilon == pytest.approx(one, abs=0.01)
    assert plan.members.scratch == (preset == "ensemble-mnist")
    assert method.training.steps == round(500 * records / 100 / 128)
    assert (network.head_channels, network.resampling, network.dropout) == (64, "block", 0.3)
    with torch.device("meta"):
        model = build(network, shape, 10)
    heads = [layer.heads for layer in model.modules() if isinstance(layer, Attention)]
    assert (
        set(heads) == {64 * multiplier // 64 for multiplier in network.multipliers[:3]} and len(heads) == 3 * 3 + 3 * 4
    )


def test_no_accounting_shapes_what_members_are_clipped_to(monkeypatch):
    """Its code is in no cache key: after a repair of it, samples of the old radius would be found again at the new price."""
    settings, *_ = settings_with()
    before = dp_ensemble.unit_cost(settings)
    monkeypatch.setattr(dp_ensemble, "accountant", None)
    assert dp_ensemble.unit_cost(settings) == before > 0


class Says(torch.nn.Module):
    """A denoiser that answers by a function of (x, t, y), and notes what it was asked."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self.calls = answer, []

    def forward(self, x, t, y):
        self.calls.append((x.clone(), t.clone(), y.clone()))
        return self.answer(x, t, y)


def weak(x, t, y):
    """A smooth prediction that moves with the time, whatever the class."""
    return torch.tanh(x) * (0.5 + t.view(-1, 1, 1, 1) / 100)


def always(value):
    return Says(lambda x, t, y: torch.full_like(x, value))


def parts_of(settings, public, members, images=1000):
    """Parts as the task puts them together, paid for at radius 1."""
    noise = len(members) / (2 * dp_ensemble.unit_cost(settings))
    event = Gaussian(noise_multiplier=noise, count=images)
    return Parts(make_schedule(settings.schedule), SHAPE, FACTS, public, members=tuple(members), paid=(event,))


# The step


@pytest.mark.parametrize("clipped", ["deviation", "prediction"])
@pytest.mark.parametrize("formulation", ["A", "B", "min"])
def test_one_member_moves_a_step_by_at_most_what_its_noise_is_priced_for(clipped, formulation):
    """Members 2 to 4 stay, the first says anything: |shift of the mean| <= 2 radius / k * sigma / xi."""
    settings, _, _ = settings_with(f"method.clipped={clipped}", f"method.formulation={formulation}")
    others = [Says(weak), Says(lambda x, t, y: -x), Says(lambda x, t, y: 3 * torch.cos(x))]
    wild = [
        *(always(value) for value in (0.0, 1e6, -1e6, 3e38, -3e38, math.nan, math.inf, -math.inf)),
        Says(lambda x, t, y: torch.where(x > 0, 1e4, -1e4)),
        Says(weak),
    ]
    own, radius, k = dp_ensemble.window(settings), 0.7, 4
    x, y = 0.3 * torch.randn(16, *SHAPE, generator=generator()), torch.arange(16) % 10
    worst = 0.0
    for index in (1, 5, 12, 19):
        t, level = torch.full_like(y, own.grid.times[index]), float(own.grid.level[index])
        kind = own.formulations(formulation)[index]
        bound = 2 * radius / k * float(own.grid.sigma[index] / own.grid.scales["AB".index(kind)][index])
        means = []
        for first in wild:
            parts = parts_of(settings, Says(weak), [first, *others])
            image = dp_ensemble.averaged(settings, parts, x, t, y, level, weak(x, t, y), kind, radius)
            assert image.isfinite().all()
            means.append(float(own.grid.of_image[index]) * image)
        shifts = [(a - b).flatten(1).norm(dim=1).max() / bound for a in means for b in means]
        worst = max(worst, *map(float, shifts))
        assert max(shifts) <= 1 + 1e-4, (index, kind)
    assert worst > 0.9, "the bound is met, so that a smaller noise would not do"


def test_the_noise_of_each_step_is_the_posteriors_and_none_is_added_at_the_end():
    """A public model that always implies a black image: what is left of a step is its noise."""
    settings, _, _ = settings_with("method.skip_last=0.5")
    schedule = make_schedule(settings.schedule)

    def black(x, t, y):
        return x / schedule.noise(t)

    public = Says(black)
    drawn = dp_ensemble.draw_privately(
        settings, parts_of(settings, public, [Says(black)] * 2), (), torch.zeros(400, dtype=torch.long), generator()
    )
    assert drawn.abs().max() < 1e-5
    seen = [(x.double(), int(t[0])) for x, t, _ in public.calls]
    assert [t for _, t in seen] == list(reversed(dp_ensemble.window(settings).grid.times)) and len(seen) == 20
    for (x, now), (after, then) in itertools.pairwise(seen):
        level, before = float(schedule.alpha_bar[now]), float(schedule.alpha_bar[then])
        alpha = level / before
        sigma = math.sqrt((1 - before) / (1 - level) * (1 - alpha))
        left = after - math.sqrt(alpha) * (1 - before) / (1 - level) * x
        assert float(left.std()) == pytest.approx(sigma, rel=0.02), (now, then)


@pytest.mark.parametrize("formulation", ["A", "B", "min"])
def test_members_like_the_public_model_draw_what_ancestral_sampling_draws(formulation):
    settings, _, _ = settings_with(f"method.formulation={formulation}", "generation.guidance=2")
    public, y = Says(weak), torch.arange(12) % 10
    parts = parts_of(settings, public, [Says(weak)] * 3)
    drawn = dp_ensemble.draw_privately(settings, parts, (), y, generator(3))
    noise = generator(3)
    start = torch.randn(12, *SHAPE, generator=noise)
    times = [*reversed(dp_ensemble.window(settings).grid.times), 0]
    plain = ddim(parts.schedule, Says(weak), start, torch.full_like(y, NO_CLASS), times, eta=1.0, generator=noise)
    torch.testing.assert_close(drawn, plain, rtol=1e-3, atol=1e-3)


def test_the_norm_that_is_clipped_to_follows_from_what_is_paid(monkeypatch):
    """Half the noise multiplier is twice the radius; and with hardly any radius members say nothing."""
    settings, _, _ = settings_with()
    requested = []

    def spy(settings, parts, x, t, y, level, public, kind, radius, basis, features):
        requested.append(radius)
        return x.clamp(-1, 1)

    y = torch.arange(4)
    parts = parts_of(settings, Says(weak), [always(5.0)] * 3)
    (event,) = parts.paid
    less = replace(parts, paid=(event.model_copy(update={"noise_multiplier": event.noise_multiplier / 2}),))
    mute = replace(parts, paid=(event.model_copy(update={"noise_multiplier": 1e9}),))
    with monkeypatch.context() as patched:
        patched.setattr(dp_ensemble, "averaged", spy)
        for one in (parts, less):
            dp_ensemble.draw_privately(settings, one, (), y, generator())
    assert [min(requested), max(requested), len(requested)] == pytest.approx([1.0, 2.0, 36])
    plain = replace(mute, members=(Says(weak),) * 3)
    same = (dp_ensemble.draw_privately(settings, one, (), y, generator()) for one in (mute, plain))
    torch.testing.assert_close(*same, atol=1e-4, rtol=1e-4)


def test_no_more_images_are_drawn_than_were_paid_for():
    settings, _, _ = settings_with()
    parts = parts_of(settings, Says(weak), [Says(weak)], images=4)
    assert len(dp_ensemble.draw_privately(settings, parts, (), torch.arange(4), generator())) == 4
    with pytest.raises(ValueError, match="5 images are asked for and 4 are paid for"):
        dp_ensemble.draw_privately(settings, parts, (), torch.arange(5), generator())


def test_guidance_is_combined_before_clipping():
    settings, _, _ = settings_with("method.clipped=prediction", "method.formulation=A", "generation.guidance=3")
    member = Says(lambda x, t, y: torch.where((y < 0).view(-1, 1, 1, 1), 0.2, 0.4) * torch.ones_like(x))
    parts = parts_of(settings, Says(weak), [member])
    y = torch.arange(2)
    x, t = torch.zeros(2, *SHAPE), torch.full_like(y, 40)
    guided = torch.full_like(x, 4 * 0.4 - 3 * 0.2)
    clipped = guided * 1.5 / guided[0].norm()
    result = dp_ensemble.averaged(settings, parts, x, t, y, 0.3, weak(x, t, y), "A", 1.5)
    torch.testing.assert_close(result, (-math.sqrt(0.7) * clipped / math.sqrt(0.3)).clamp(-1, 1), rtol=1e-4, atol=1e-5)


def test_the_public_model_takes_the_first_and_the_last_steps_and_knows_no_class():
    settings, _, _ = settings_with("method.skip_first=0.15", "method.skip_last=0.25")
    public, member = Says(weak), Says(weak)
    parts = parts_of(settings, public, [member])
    dp_ensemble.draw_privately(settings, parts, (), torch.arange(3), generator())
    times = list(reversed(dp_ensemble.window(settings).grid.times))
    assert [int(t[0]) for _, t, _ in member.calls] == times[3:15]
    assert [int(t[0]) for _, t, _ in public.calls] == times and all((y == NO_CLASS).all() for _, _, y in public.calls)
    assert member.calls[0][2].tolist() == [0, 1, 2] + [NO_CLASS] * 3


@pytest.mark.parametrize(
    "changes", [[], ["generation.guidance=0"], ["method.clipped=prediction", "method.skip_first=0.3"]]
)
def test_the_planned_evaluations_are_those_made(changes):
    settings, facts, _ = settings_with("method.members=3", *changes)
    public, members = Says(weak), [Says(weak) for _ in range(3)]
    dp_ensemble.draw_privately(settings, parts_of(settings, public, members), (), torch.zeros(7).long(), generator())
    made = sum(len(x) for model in (public, *members) for x, _, _ in model.calls)
    assert made == 7 * plan_for(settings, facts).evaluations


# The price


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    ("formulation", "first", "last", "images", "k"),
    [("B", 0, 0.08, 6, 20), ("A", 0.1, 0.1, 9, 50), ("min", 0, 0.2, 40, 30)],
)
def test_the_certificate_is_the_closed_form(relation, formulation, first, last, images, k):
    """On the paper's schedule it is Theorem 3.3 for all images; an exchange, which may reach two shards, doubles mu."""
    changes = [
        f"method.formulation={formulation}", f"method.skip_first={first}", f"method.skip_last={last}", "method.radius=0.4",
        f"method.members={k}", f"generation.images={images}", f"privacy.relation={relation}", "privacy.epsilon=1e4",
        "privacy.reason=a test",
    ]  # fmt: skip
    settings, facts, _ = preflight(resolve("dp-ensemble", changes=changes))
    plan = plan_for(settings, facts)
    delta = settings.privacy.delta
    stated = dp_ensemble.claim(
        "linear", 250, 0.8, k, formulation, round(250 * first), round(250 * last), images, delta
    )  # fmt: skip
    assert plan.claim.epsilon == pytest.approx(stated.epsilon, rel=1e-9) and "Theorem 3.3" in plan.claim.source
    mu = stated.mu * (2 if relation == "replace_one" else 1)
    assert plan.certificate.epsilon == pytest.approx(gdp_epsilon(mu, delta), rel=1e-9)
    assert (plan.certificate.images, plan.certificate.relation) == (images, relation)
    (spend,) = plan.spends
    assert (spend.event.noise_multiplier, spend.event.count) == (pytest.approx(math.sqrt(images) / stated.mu), images)


def test_without_a_radius_the_plan_takes_the_largest_that_is_paid_for():
    plan = planned()
    radius = float(re.search(r"clipped to norm ([\d.]+)", plan.spends[0].what)[1])
    assert 9.9 < plan.certificate.epsilon <= 10
    assert planned(f"method.radius={0.99 * radius}").certificate.epsilon < plan.certificate.epsilon
    with pytest.raises(BadInput, match=r"method\.radius"):
        planned(f"method.radius={1.01 * radius}")


def test_a_refusal_says_how_many_images_how_many_members_or_which_radius_would_fit():
    requested = ["method.radius=0.5", "generation.images=1000"]
    with pytest.raises(BadInput) as refusal:
        planned(*requested)
    reported = str(refusal.value)
    images, members = int(re.search(r"pays for (\d+) ", reported)[1]), int(re.search(r"members=(\d+)", reported)[1])
    radius = float(re.search(r"or method\.radius=([\d.]+)$", reported)[1])
    assert "\n" not in reported and "generation.images=1000 with method.radius=0.5" in reported
    for one, more in (
        (
            [requested[0], f"generation.images={images}"],
            [requested[0], f"generation.images={images + 1}"],
        ),
        ([*requested, f"method.members={members}"], [*requested, f"method.members={members - 1}"]),
        (
            ["generation.images=1000", f"method.radius={radius}"],
            ["generation.images=1000", f"method.radius={1.01 * radius}"],
        ),
    ):
        assert planned(*one).certificate.epsilon <= 10
        with pytest.raises(BadInput):
            planned(*more)
    with pytest.raises(BadInput, match=r"pays for no such image: take method\.members=\d+"):
        planned("method.radius=50")


def test_the_plan_answers_how_many_images_and_how_many_members():
    plan = planned("method.radius=0.2", "generation.images=6")
    most = int(re.search(r"pays for (\d+) such images", plan.spends[0].what)[1])
    members = int(re.search(r"1,000 take (\d+) members", plan.spends[0].what)[1])
    assert planned("method.radius=0.2", f"generation.images={most}").certificate.epsilon <= 10
    with pytest.raises(BadInput):
        planned("method.radius=0.2", f"generation.images={most + 1}")
    assert planned("method.radius=0.2", "generation.images=1000", f"method.members={members}")


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ("method.members=2000", r"method\.members=2000 is more than the 1437 private records"),
        ("method.skip_last=0", r"method\.skip_last=0 of 20 steps leaves the last one .* method\.skip_last=0\.05 or more"),
        ("method.skip_last=0.9 method.skip_first=0.1", "leave none of 20 steps"),
        ("generation.eta=0", r"generation\.eta=0: the noise of ancestral sampling is what hides a record"),
        ("generation.eta=0.5", r"generation\.eta=0\.5"),
        ("generation.solver=pndm", r"generation\.solver=pndm"),
        ("generation.steps=1", r"generation\.steps=1: use 2 or more"),
        ("generation.images=0", r"'generation\.images' has value 0"),
        ("method.radius=0", r"'method\.radius' has value 0"),
        ("method.radius=-1", r"'method\.radius' has value -1"),
        ("method.members=0", r"'method\.members' has value 0"),
        ("method.prototypes=-1", r"'method\.prototypes' has value -1"),
        ("method.prototypes=5 method.radius=3", r"method\.prototypes=5 in each of 10 classes with method\.radius=3 would cost more"),
    ],
)  # fmt: skip
def test_bad_input_is_told_before_any_work_in_one_line(change, culprit):
    with refused(culprit):
        planned(*change.split())


# Prototypes


def test_prototypes_are_paid_for_once_and_cover_any_number_of_images():
    few, many = (planned("method.prototypes=2", f"generation.images={images}") for images in (50, 5000))
    assert few.prototypes == many.prototypes == 20 and few.spends == many.spends
    assert few.certificate == many.certificate and few.certificate.images == ANY_NUMBER
    assert few.spends[0].event.count == 20 and few.evaluations > many.evaluations
    assert planned("method.prototypes=0").prototypes == 0


def test_images_are_drawn_from_the_prototypes_of_their_class_by_the_public_model():
    settings, _, _ = settings_with("method.prototypes=3", "generation.redraw=0.02")
    marked = torch.linspace(-0.9, 0.9, 30).view(30, 1, 1, 1).expand(30, *SHAPE).clone()
    schedule = make_schedule(settings.schedule)
    public = Says(lambda x, t, y: torch.zeros_like(x))
    parts = Parts(schedule, SHAPE, FACTS, public, prototypes=marked)
    y = torch.arange(400) % 10
    drawn = dp_ensemble.draw(settings, parts, y, generator())
    nearest = (drawn.mean((1, 2, 3))[:, None] - marked[:, 0, 0, 0]).abs().argmin(1)
    assert torch.equal(nearest // 3, y) and len(set(nearest.tolist())) == 30, "all of them serve, each for its class"
    assert all((y == NO_CLASS).all() for _, _, y in public.calls)
    assert torch.equal(drawn, dp_ensemble.draw(settings, parts, y, generator()))
