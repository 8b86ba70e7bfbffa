"""The ensemble with many members: heads on one public network, projected deviations, members that abstain, and distillation."""

import itertools
import math
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from sfumato import adapters, sources
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import BadInput
from sfumato.images import ImageSet, to_unit
from sfumato.latents import PIXELS
from sfumato.methods import dp_ensemble
from sfumato.methods.parts import Parts, untuned
from sfumato.methods.plan import ANY_NUMBER, STAGE_DRAWING, STAGE_TRAINING, Facts
from sfumato.networks.build import build
from sfumato.preflight import plan_for, preflight
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.shards import dealt, shards_trained
from sfumato.settings import resolve
from tests.refusals import refused
from tests.spends import KEYS

SHAPE, CPU = (1, 8, 8), torch.device("cpu")
FACTS = Facts(records=1437, classes=tuple("0123456789"), public_classes=52, shape=SHAPE)
FEW = ["generation.steps=20", "schedule.timesteps=50", "generation.images=20", "method.adapters=6", "method.members=4"]
SMALL = ["network.kind=mlp", "network.width=16", "network.blocks=1", "network.condition=8"]


def settings_with(*changes):
    return preflight(resolve("dp-ensemble", changes=[*FEW, *SMALL, *changes]))[0]


def planned(*changes):
    settings, facts, _ = preflight(resolve("dp-ensemble", changes=[*FEW, *SMALL, *changes]))
    return plan_for(settings, facts)


class Counted(torch.nn.Module):
    """A network that notes at which times it was asked."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.times = inner, []

    def forward(self, x, t, y):
        self.times.append(int(t[0]))
        return self.inner(x, t, y)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parts_of(settings, images=1000, members=4):
    """A small public network, heads with weights of some size, public images; paid for at radius 1."""
    public = build(settings.network, SHAPE, 52, seed=1).eval().requires_grad_(False)
    with torch.no_grad():
        public.output.weight.normal_(0, 0.1, generator=generator(2))
    heads = adapters.heads_for(adapters.Trunk(public), SHAPE, 10, count=members, width=6)
    for place, value in enumerate((heads.rows, heads.up)):
        value.data.normal_(0, 0.3, generator=generator(3 + place))
    heads = adapters.joined([heads])
    heads.known = torch.ones_like(heads.known)
    voices = dp_ensemble.voices(settings, FACTS, members)
    event = Gaussian(noise_multiplier=voices / (2 * dp_ensemble.unit_cost(settings)), count=images)
    shown = torch.randn(200, 64, generator=generator(5)) @ torch.diag(torch.linspace(1, 0.1, 64))
    return Parts(
        make_schedule(settings.schedule), SHAPE, FACTS, public, heads=heads, paid=(event,), images=shown.view(-1, *SHAPE)
    )  # fmt: skip


# The step


@pytest.mark.parametrize("formulation", ["A", "B"])
@pytest.mark.parametrize(
    "changes", [[], ["method.directions=9"], ["method.abstain=true"], ["method.clipped=prediction"]], ids=str
)
def test_one_head_moves_a_step_by_at_most_what_its_noise_is_priced_for(formulation, changes):
    """Whatever a record makes of its member's weights, and whichever classes it then knows: |shift of the mean| <= 2 radius / voices sigma / xi."""
    settings = settings_with(f"method.formulation={formulation}", "generation.guidance=2", *changes)
    parts, own, radius = parts_of(settings), dp_ensemble.window(settings), 0.7
    basis, voices = dp_ensemble.directions_of(settings, parts), dp_ensemble.voices(settings, FACTS, 4)
    x, y = 0.3 * torch.randn(12, *SHAPE, generator=generator()), torch.arange(12) % 10
    first, worst = parts.heads.up[0].clone(), 0.0
    wild = [first, 0 * first, 100 * first, -100 * first, 1e30 * first, math.nan * first, math.inf * first.sign()]
    for index in (2, 8, 17):
        t, level = torch.full_like(y, own.grid.times[index]), float(own.grid.level[index])
        noise, features = dp_ensemble.public_prediction(parts, x, t)
        bound = 2 * radius / voices * float(own.grid.sigma[index] / own.grid.scales["AB".index(formulation)][index])
        means = []
        for weights in wild:
            for known in (0.0, 1.0):
                parts.heads.up.data[0], parts.heads.known[0] = weights, known
                requested = settings, parts, x, t, y, level, noise, formulation, radius, basis, features
                image = dp_ensemble.averaged(*requested)
                assert image.isfinite().all()
                means.append(float(own.grid.of_image[index]) * image)
        shifts = [float((a - b).flatten(1).norm(dim=1).max()) / bound for a in means for b in means]
        worst = max(worst, *shifts)
        assert max(shifts) <= 1 + 1e-4
    assert worst > 0.7, "the bound is nearly met, so that half the noise would not do"


def test_all_members_are_asked_once_a_step_by_one_evaluation_of_the_public_network():
    settings = settings_with("generation.guidance=2", "method.skip_last=0.25")
    parts = parts_of(settings)
    public = Counted(parts.public)
    counted = Parts(**{**vars(parts), "public": public})
    drawn = dp_ensemble.draw_privately(settings, counted, (), torch.arange(7), generator())
    times = list(reversed(dp_ensemble.window(settings).grid.times))
    assert public.times == times and len(times) == planned("method.skip_last=0.25").evaluations == 20
    assert torch.equal(drawn, dp_ensemble.draw_privately(settings, parts, (), torch.arange(7), generator()))


def test_heads_draw_what_a_slow_loop_over_members_draws():
    """Each head as a denoiser of its own, asked one after another as whole networks are."""
    settings = settings_with("generation.guidance=2")
    parts = parts_of(settings)

    class Member(torch.nn.Module):
        def __init__(self, place):
            super().__init__()
            self.place = place

        def forward(self, x, t, y):
            noise, features = adapters.Trunk(parts.public)(x, t)
            own = adapters.joined([one_of(parts.heads, self.place)])
            return noise + parts.schedule.signal(t) * own(features[None], y[None])[0]

    loop = Parts(**{**vars(parts), "heads": None, "members": tuple(Member(place) for place in range(4))})
    y = torch.arange(6)
    together, slowly = (dp_ensemble.draw_privately(settings, one, (), y, generator()) for one in (parts, loop))
    torch.testing.assert_close(together, slowly, rtol=1e-4, atol=1e-4)
    mute = parts.paid[0].model_copy(update={"noise_multiplier": 1e9})
    silent = Parts(**{**vars(parts), "paid": (mute,)})
    assert (dp_ensemble.draw_privately(settings, silent, (), y, generator()) - together).abs().max() > 0.1


def one_of(heads, place):
    """A stack of one member."""
    alone = adapters.HeadStack(1, heads.down.shape[1], heads.shape, heads.rows.shape[1], heads.down.shape[2])
    for name, value in heads.named_parameters():
        alone.get_parameter(name).data = value[place : place + 1].clone()
    return alone


# The projection


def test_the_directions_are_the_principal_ones_of_the_public_images():
    settings = settings_with("method.directions=5")
    parts = parts_of(settings)
    basis = dp_ensemble.directions_of(settings, parts)
    flat = parts.images.flatten(1).double().numpy()
    _, _, rows = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
    torch.testing.assert_close(basis.T @ basis, torch.eye(5), atol=1e-5, rtol=0)
    torch.testing.assert_close((basis @ basis.T).double(), torch.from_numpy(rows[:5].T @ rows[:5]), atol=1e-4, rtol=0)
    assert dp_ensemble.directions_of(settings_with(), parts) is None


def test_a_projected_deviation_stays_among_the_directions_and_all_of_them_change_nothing():
    settings = settings_with("method.formulation=B", "generation.guidance=0")
    parts, x, y = parts_of(settings), 0.1 * torch.randn(5, *SHAPE, generator=generator()), torch.arange(5)
    t, level = torch.full_like(y, 40), 0.4
    parts = Parts(**{**vars(parts), "schedule": make_schedule(settings.schedule, 50.0)})  # where nothing is clamped
    noise, features = dp_ensemble.public_prediction(parts, x, t)

    def image(count, radius):
        own = settings_with(f"method.directions={count}")
        basis = dp_ensemble.directions_of(own, parts)
        requested = settings, parts, x, t, y, level, noise, "B", radius, basis, features
        return dp_ensemble.averaged(*requested), basis

    centre = dp_ensemble.implied(x, noise, level, 50.0)
    some, basis = image(6, 0.3)
    moved = (some - centre).flatten(1)
    torch.testing.assert_close(moved @ basis @ basis.T, moved, atol=1e-5, rtol=1e-3)
    assert moved.norm(dim=1).max() <= 0.3 + 1e-5
    torch.testing.assert_close(image(64, 0.3)[0], image(0, 0.3)[0], atol=1e-5, rtol=1e-4)


def test_neither_projection_nor_heads_change_the_price():
    plain = planned("method.adapters=0")
    for changes in ([], ["method.directions=7"]):
        plan = planned(*changes)
        assert plan.certificate == plain.certificate and plan.spends == plain.spends
    assert planned("method.directions=7").public_images and not planned().public_images
    assert planned().members.adapters == 6 and plain.members.adapters == 0


# Members that abstain


@pytest.mark.parametrize("records", [1437, 12])
def test_a_member_without_the_class_says_nothing_and_the_others_count_for_it(records):
    settings, facts = (
        settings_with("method.abstain=true", "method.formulation=B"),
        FACTS.model_copy(update={"records": records}),
    )
    parts = replace(parts_of(settings), facts=facts)
    x = 0.1 * torch.randn(3, *SHAPE, generator=generator())
    y, level, voices = torch.tensor([0, 1, 2]), 0.4, dp_ensemble.voices(settings, facts, 4)
    assert (voices < 1.1) == (records == 12), "with few records the number of members is another divisor"
    t = torch.full_like(y, 40)
    parts.heads.known[:, 1] = 0
    parts.heads.known[1:, 2] = 0
    noise, features = dp_ensemble.public_prediction(parts, x, t)
    image = dp_ensemble.averaged(settings, parts, x, t, y, level, noise, "B", 100.0, None, features)
    centre = dp_ensemble.implied(x, noise, level, 1.0)
    torch.testing.assert_close(image[1], centre[1])
    only = replace(parts, heads=adapters.joined([one_of(parts.heads, 0)]))
    (stated,) = adapters.deviations(only.heads, features, y, settings.generation.guidance)
    alone = dp_ensemble.implied(x, noise + parts.schedule.signal(t) * stated[0], level, 1.0)
    torch.testing.assert_close(image[2], centre[2] + (alone - centre)[2] / voices, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("members", [20, 200, 1000])
def test_the_number_of_voices_is_that_of_members_with_a_record_of_a_class(members):
    """Records dealt to shards and classes at random, many times."""
    settings = settings_with("method.abstain=true", f"method.members={members}")
    draws = np.random.default_rng(0)
    heard = []
    for _ in range(30):
        cells = draws.integers(members * 10, size=1437)
        heard.append(len(np.unique(cells)) / 10)
    assert dp_ensemble.voices(settings, FACTS) == pytest.approx(np.mean(heard), rel=0.02)
    assert dp_ensemble.voices(settings_with(f"method.members={members}"), FACTS) == members


def test_members_that_abstain_pay_by_their_expected_number():
    some, all_ = planned("method.abstain=true", "method.members=500"), planned("method.members=500")
    assert some.certificate == all_.certificate, "the norm follows from the budget in both"
    radius = [float(re.search(r"clipped to norm ([\d.]+)", plan.spends[0].what)[1]) for plan in (some, all_)]
    share = dp_ensemble.voices(settings_with("method.abstain=true", "method.members=500"), FACTS) / 500
    assert radius[0] == pytest.approx(share * radius[1], rel=1e-3) and 0.2 < share < 0.3
    text = planned("method.abstain=true", "method.radius=0.05", "generation.images=20").spends[0].what
    members = int(re.search(r"1,000 take (\d+) members", text)[1])
    fits = ["method.abstain=true", "method.radius=0.05", "generation.images=1000"]
    assert planned(*fits, f"method.members={members}").certificate.epsilon <= 10
    with pytest.raises(BadInput):
        planned(*fits, f"method.members={members - 1}")
    with pytest.raises(BadInput, match=r"pays for no such image: take method\.radius="):
        planned("method.abstain=true", "method.radius=9", "generation.images=1000")


# Shards


HEADS = ["method.adapters=5", "method.members=3", "method.directions=6", "method.abstain=true"]


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


@dataclass(frozen=True)
class Dealt:
    """What the training of heads was given, the digits, the shard of each, and the look's entries."""

    own: list[tuple[torch.Tensor, torch.Tensor]]
    digits: ImageSet
    where: np.ndarray
    entries: dict[str, str]


@pytest.fixture
def dealt_with(world, access_to, ledger):
    """Train on shards with a codec or none, by what only keeps the records that it gets."""

    def look(codec=PIXELS) -> Dealt:
        tiny, own = world("dp-ensemble", *HEADS), []

        def train(shards):
            own.extend(shards)
            return torch.nn.Linear(1, 1)

        members = tiny.plan.members
        requested = {"shards": members.count, "key": members.key, "device": CPU, "codec": codec}
        _, entries = shards_trained(access_to(ledger)(STAGE_TRAINING, tiny), train, **requested)
        digits = sources.load("digits", sources.Reading(size=8, share=tiny.settings.data.share))
        return Dealt(own, digits, dealt(digits, members.count, members.key), entries)

    return look


def test_heads_are_trained_in_one_look_each_on_the_shard_that_the_hash_deals(dealt_with, ledger):
    given = dealt_with()
    assert [len(x) for x, _ in given.own] == np.bincount(given.where, minlength=3).tolist()
    for place, (x, y) in enumerate(given.own):
        torch.testing.assert_close(x, to_unit(given.digits.pixels[given.where == place]))
        assert y.tolist() == given.digits.labels[given.where == place].tolist()
    assert set(given.entries.values()) == {"INTERNAL"} and not ledger.spends("digits"), (
        "it costs nothing, and its result stays"
    )


class RoundsByBatch:
    """A codec that rounds as products do: in a batch of another length, in another way."""

    limit = 1.0

    def encode(self, x):
        return x * (1 + len(x) * 2.0**-20)

    def largest_norm(self, image):
        return 1e9


def test_no_record_of_another_shard_decides_how_the_records_of_one_are_rounded(dealt_with):
    """A codec's products round by the length of their batch, and training enlarges that, so that one record would change several members."""
    given = dealt_with(RoundsByBatch())
    assert len(given.own) == 3
    for place, (x, _) in enumerate(given.own):
        assert torch.equal(x, RoundsByBatch().encode(to_unit(given.digits.pixels[given.where == place])))


def test_a_run_with_heads_pays_what_its_plan_says(world, access_to, ledger):
    tiny = world("dp-ensemble", *HEADS)
    parts, entries = tiny.pay(access_to(ledger))
    assert parts.heads.count == 3 and not parts.members and parts.heads.known.sum(1).min() > 0
    assert set(entries.values()) == {"DP"}
    total = ledger.total("digits", tiny.plan.privacy.delta, tiny.plan.privacy.relation)
    assert total.epsilon == pytest.approx(tiny.plan.certificate.epsilon, rel=1e-9)


# Distillation


def test_distillation_is_planned_beside_the_prototypes_and_covers_any_number():
    plan = planned("method.prototypes=3", "method.distillation.steps=20", "generation.images=500")
    without = planned("method.prototypes=3", "generation.images=500")
    assert plan.distillation.steps == 20 and without.distillation is None
    assert plan.spends == without.spends and plan.certificate == without.certificate
    assert plan.certificate.images == ANY_NUMBER and plan.prototypes == 30
    (spend,) = (spend for spend in plan.spends if spend.stage == STAGE_DRAWING)
    assert spend.event.count == 30


def test_what_the_public_network_became_draws_alone():
    settings = settings_with("method.prototypes=3", "method.distillation.steps=20", "generation.guidance=1")
    parts = parts_of(settings)
    tuned = Counted(untuned(parts))
    y = torch.arange(8) % 10
    drawn = dp_ensemble.draw(settings, Parts(**{**vars(parts), "heads": None, "tuned": tuned}), y, generator())
    assert drawn.shape == (8, *SHAPE) and tuned.times[0] == 50 and len(tuned.times) == 20


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ("method.directions=65", r"method\.directions=65 is more than the 64 numbers of an image"),
        ("method.directions=5 method.clipped=prediction", r"method\.directions=5 with method\.clipped=prediction"),
        ("method.abstain=true method.adapters=0", r"method\.abstain=true is for members that are heads"),
        ("method.distillation.steps=5", r"method\.distillation\.steps=5 has no paid images .* method\.prototypes"),
        ("method.adapters=-1", r"'method\.adapters' has value -1"),
        ("method.directions=-1", r"'method\.directions' has value -1"),
    ],
)
def test_bad_input_is_told_before_any_work_in_one_line(change, culprit):
    with refused(culprit):
        planned(*change.split())
