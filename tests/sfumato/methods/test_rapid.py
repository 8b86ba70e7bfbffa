"""RAPID's formulas from scratch: Eq. 5, Proposition 1, the two walks, and what retrieval is asked and answers."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn
from torch.nn import functional as F

from sfumato.diffusion.samplers import NO_CLASS, ddim
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import BadInput
from sfumato.methods import rapid
from sfumato.methods.parts import Parts, add_votes, private_rows
from sfumato.methods.plan import Facts
from sfumato.networks.layers import Condition, Conditioned
from sfumato.retrieval.knowledge_base import KnowledgeBase
from sfumato.retrieval.settings import QuerySettings
from sfumato.settings import resolve
from tests.vectors import facts

T, K, V = 30, 15, 4
SHAPE = (1, 3, 3)
CLASSES, PUBLIC = 4, 6
FACTS = Facts(records=9, classes=tuple("0123456789"), public_classes=PUBLIC, shape=(1, 8, 8))
SETTINGS = resolve(
    "rapid",
    changes=[
        f"schedule.timesteps={T}", "schedule.beta_start=0.01", "schedule.beta_end=0.2", "generation.steps=10",
        f"method.k={K / T}", f"method.v={V / T}", "method.votes=false", "method.nearest=1", "fine_tuning.draws=3",
    ],
)  # fmt: skip


def changed(*changes):
    """SETTINGS with further `section.field=value`."""
    sections = {}
    for change in changes:
        path, value = change.split("=")
        section, field = path.split(".")
        sections.setdefault(section, {})[field] = json.loads(value)
    parts = {name: getattr(SETTINGS, name).model_copy(update=update) for name, update in sections.items()}
    return SETTINGS.model_copy(update=parts)


def level(t):
    """alpha_bar from scratch."""
    return math.prod(1 - (0.01 + 0.19 * i / (T - 1)) for i in range(t))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class Denoiser(Conditioned):
    """A stand-in that predicts a little noise and notes everything that it is asked."""

    def __init__(self, share=0.1):
        super().__init__()
        self.share, self.calls = share, []
        self.condition = Condition(PUBLIC, 8)

    def forward(self, x, t, y):
        self.calls.append((x.clone(), t.clone(), y.clone()))
        return self.share * x


class Encoder(nn.Module):
    """The pixels as unit vectors; notes what it is shown."""

    def __init__(self):
        super().__init__()
        self.shown = []

    def forward(self, x):
        self.shown.append(x.clone())
        return F.normalize(x.flatten(1), dim=1)


def make_parts(by_class=False, **others):
    count = 60
    images = torch.rand(count, *SHAPE, generator=generator(1)) * 2 - 1
    noise = torch.randn(count, *SHAPE, generator=generator(2))
    keys = F.normalize(torch.randn(count, 9, generator=generator(3)), dim=1)
    base = KnowledgeBase(keys, images, noise, torch.arange(count) % PUBLIC, by_class)
    fields = {"public": Denoiser(), "tuned": Denoiser(0.2), "encoder": Encoder(), "base": base}
    return Parts(schedule=make_schedule(SETTINGS.schedule), shape=SHAPE, facts=FACTS, **(fields | others))


def records(count=8):
    return torch.rand(count, *SHAPE, generator=generator(5)) * 2 - 1, torch.arange(count) % CLASSES


def latents(base, rows, m=1):
    """x_v of rows `[b, m]` from scratch: the mean image with the noise of the nearest."""
    return math.sqrt(level(V)) * base.images[rows[:, :m]].mean(1) + math.sqrt(1 - level(V)) * base.noise[rows[:, 0]]


def nearest(parts, shown, m=1, classes=None):
    """Rows of the m nearest keys by brute force."""
    cosine = F.normalize(shown.flatten(1), dim=1) @ parts.base.keys.T
    if classes is not None:
        cosine = cosine.masked_fill(parts.base.labels[None] != classes[:, None], -9)
    return cosine.argsort(1, descending=True)[:, :m]


# Eq. 5


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("votes", [False, True])
def test_a_record_becomes_points_on_the_line_from_its_retrieved_latent(m, votes):
    settings = changed(f"method.nearest={m}", f"method.votes={json.dumps(votes)}")
    winners = torch.tensor([5, 0, 5, 2]) if votes else None
    parts, (x, y) = make_parts(by_class=votes, winners=winners), records()
    examples = rapid.corrupt(settings, parts)(x, y, generator())
    (shown,) = parts.encoder.shown
    copies, labels = x.repeat_interleave(3, 0), y.repeat_interleave(3)
    latent = latents(parts.base, nearest(parts, shown, m, winners[labels] if votes else None), m)
    ehat = (latent - math.sqrt(level(V)) * copies) / math.sqrt(1 - level(V))
    torch.testing.assert_close(examples.target.flatten(0, 1), ehat, rtol=1e-4, atol=1e-4)
    for x_u, u, clean, noise in zip(examples.x_t.flatten(0, 1), examples.t.flatten(), copies, ehat, strict=True):
        expected = math.sqrt(level(int(u))) * clean + math.sqrt(1 - level(int(u))) * noise
        torch.testing.assert_close(x_u, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(examples.y.flatten(), labels)


def test_the_query_is_the_record_at_time_k_denoised_once_without_a_class():
    parts, (x, y) = make_parts(), records(400)
    rapid.corrupt(SETTINGS, parts)(x, y, generator())
    ((x_k, t, classes),) = parts.public.calls
    assert set(t.tolist()) == {K} and set(classes.tolist()) == {NO_CLASS}
    noise = (x_k - math.sqrt(level(K)) * x.repeat_interleave(3, 0)) / math.sqrt(1 - level(K))
    assert float(noise.mean()) == pytest.approx(0, abs=0.05) and float(noise.var()) == pytest.approx(1, rel=0.05)
    copies = noise.unflatten(0, (-1, 3))
    assert not torch.allclose(copies[:, 0], copies[:, 1]), "each copy is noised and looked up by itself"
    clean = ((x_k - math.sqrt(1 - level(K)) * 0.1 * x_k) / math.sqrt(level(K))).clamp(-1, 1)
    torch.testing.assert_close(parts.encoder.shown[0], clean, rtol=1e-4, atol=1e-4)
    assert parts.tuned.calls == [], "the model in training takes no part in it"


def test_at_u_equal_v_the_input_is_the_retrieved_latent_itself():
    parts, (x, y) = make_parts(), records(200)
    examples = rapid.corrupt(SETTINGS, parts)(x, y, generator())
    at_v = examples.t == V
    latent = latents(parts.base, nearest(parts, parts.encoder.shown[0])).unflatten(0, (-1, 3))
    assert at_v.sum() > 50
    torch.testing.assert_close(examples.x_t[at_v], latent[at_v], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(examples.x_t[~at_v], latent[~at_v], atol=1e-2)


def test_u_is_uniform_from_one_to_v():
    parts, (x, y) = make_parts(), records(3000)
    t = rapid.corrupt(SETTINGS, parts)(x, y, generator()).t.flatten()
    shares = torch.bincount(t, minlength=V + 1) / len(t)
    assert len(shares) == V + 1 and shares.tolist() == pytest.approx([0] + [1 / V] * V, abs=5 * 0.5 / 9000**0.5)


def test_perfect_predictions_lead_from_the_latent_to_the_record():
    """What Eq. 5 is for: a denoiser that has learnt it walks from the retrieved latent to the private image."""
    parts, (x, y) = make_parts(), records()
    examples = rapid.corrupt(changed("fine_tuning.draws=1"), parts)(x, y, generator())
    latent = latents(parts.base, nearest(parts, parts.encoder.shown[0]))

    def learnt(x_t, t, y):
        return examples.target[:, 0]

    result = ddim(parts.schedule, learnt, latent, y, [V, 3, 1, 0], generator=generator())
    torch.testing.assert_close(result, x, rtol=1e-3, atol=1e-3)


def test_the_control_for_eq_5_learns_plain_noise_at_the_times_up_to_v_and_asks_no_public_network():
    parts, (x, y) = make_parts(), records(count=400)
    examples = rapid.corrupt(changed('method.target="plain"'), parts)(x, y, generator())
    copies, t = x.repeat_interleave(3, 0), examples.t.flatten()
    assert set(t.tolist()) == set(range(1, V + 1)) and parts.encoder.shown == parts.public.calls == []
    alpha_bar = torch.tensor([level(int(one)) for one in t]).view(-1, 1, 1, 1)
    noise = (examples.x_t.flatten(0, 1) - alpha_bar.sqrt() * copies) / (1 - alpha_bar).sqrt()
    torch.testing.assert_close(examples.target.flatten(0, 1), noise, rtol=1e-3, atol=1e-3)
    assert abs(float(noise.mean())) < 0.05 and float(noise.std()) == pytest.approx(1, abs=0.05)


def test_the_loss_pulls_no_gradient_through_the_public_network():
    parts, (x, y) = make_parts(), records()
    parts.public.share = nn.Parameter(torch.tensor(0.1))
    examples = rapid.corrupt(SETTINGS, parts)(x, y, generator())
    assert not examples.target.requires_grad and not examples.x_t.requires_grad


# The votes


def test_a_record_votes_for_the_class_of_the_nearest_public_image():
    parts, (x, labels) = make_parts(), records(50)
    distance = (x[:, None] - parts.base.images[None]).flatten(2).norm(dim=2)
    assert torch.equal(rapid.ballot(parts)(x, labels), parts.base.labels[distance.argmin(1)])
    one_by_one = torch.cat([rapid.ballot(parts)(image[None], labels[:1]) for image in x])
    assert torch.equal(rapid.ballot(parts)(x, labels), one_by_one), "each by itself"


def test_winners_stand_for_their_class_and_start_its_row():
    parts = make_parts()
    votes = torch.tensor([[0.0, 9.5, 1, 1, 1, 1], [3, 2, 1, 0, -1, 8], [0, 0, 0.1, 0, 0, 0], [7, 0, 0, 0, 0, 6.9]])
    facts = Facts(records=9, classes=tuple("abcd"), public_classes=PUBLIC, shape=SHAPE)
    rows = parts.public.condition.rows.weight
    assert parts.public_class(torch.tensor([2, 0])).tolist() == [NO_CLASS, NO_CLASS]
    torch.testing.assert_close(private_rows(replace(parts, facts=facts)), rows.mean(0).expand(4, -1))
    reported = add_votes(parts, votes)
    assert reported.public_class(torch.tensor([0, 1, 2, 3, 1])).tolist() == [1, 5, 2, 0, 5]
    assert torch.equal(private_rows(replace(reported, facts=facts)), rows[[1, 5, 2, 0]])


def test_on_request_no_two_classes_share_a_winner():
    votes = 40 * torch.rand(4, 6, generator=torch.Generator().manual_seed(2))
    votes[:, 3] += 40  # everyone's first choice
    assert add_votes(make_parts(), votes).winners.tolist() == [3] * 4
    reported = add_votes(make_parts(), votes, distinct=True).winners.tolist()
    choices = itertools.permutations(range(6), 4)
    assert reported == list(max(choices, key=lambda choice: sum(votes[i, j] for i, j in enumerate(choice))))


def test_distinct_winners_need_enough_public_classes():
    facts = Facts(records=90, classes=tuple("abcd"), public_classes=3, shape=SHAPE)
    with pytest.raises(BadInput, match=r"method.distinct=true needs 4 public classes.* 3: use more"):
        rapid.plan(changed("method.votes=true", "method.distinct=true", "privacy.delta=1e-3"), facts)
    assert rapid.plan(changed("method.votes=true", "method.distinct=false", "privacy.delta=1e-3"), facts).votes


# Proposition 1


@pytest.mark.parametrize(
    ("noise", "steps", "delta"), [(1.0, 1, 1e-5), (0.6, 7, 1e-3), (20.0, 5000, 1e-6), (300.0, 10, 1e-5)]
)
def test_the_claim_is_the_smallest_over_all_orders(noise, steps, delta):
    def converted(log_off):
        alpha = 1 + math.exp(log_off)
        return 2 * alpha * steps / noise**2 + math.log(1 / delta) / (alpha - 1)

    smallest = minimize_scalar(converted, bounds=(-15, 15), method="bounded", options={"xatol": 1e-10}).fun
    assert rapid.claim(noise, steps, delta).epsilon == pytest.approx(smallest, rel=1e-7)


def test_the_claim_meets_the_checked_number():
    inputs, expected, near = facts("002-P1")
    result = rapid.claim(inputs["sigma"], inputs["T"], inputs["delta"])
    assert result.epsilon == near(expected["eps"])
    assert "Proposition 1" in result.source


@pytest.mark.parametrize("name", ["002-P2", "002-P3"])
def test_proposition_1_lies_far_above_the_certificate(name):
    inputs, expected, _ = facts(name)
    run = expected["sigma"], inputs["steps"], inputs["delta"]
    assert rapid.claim(*run).epsilon > 40_000 * inputs["target_eps"]
    assert "110,000" in rapid.PROMISE
    if name == "002-P2":
        assert rapid.claim(*run).epsilon == pytest.approx(110_000, rel=5e-3)


def test_claims_at_the_ends():
    assert rapid.claim(1.0, 0, 1e-5).epsilon == rapid.claim(math.inf, 10, 1e-5).epsilon == 0.0
    assert rapid.claim(1e-200, 10, 1e-5).epsilon == math.inf
    assert rapid.claim(1.0, 1, 1e-320).epsilon == pytest.approx(2 + 2 * math.sqrt(2 * 320 * math.log(10)), rel=1e-3)


@pytest.mark.parametrize(
    ("run", "culprit"),
    [
        ((0.0, 10, 1e-5), "noise_multiplier = 0.0"),
        ((math.nan, 10, 1e-5), "noise_multiplier = nan"),
        ((1.0, 1.5, 1e-5), "steps = 1.5"),
        ((1.0, -1, 1e-5), "steps = -1"),
        ((1.0, 10, 0.0), "delta = 0.0"),
    ],
)
def test_a_claim_on_bad_input_is_refused_in_one_line(run, culprit):
    with pytest.raises(BadInput, match=culprit) as refusal:
        rapid.claim(*run)
    assert "\n" not in str(refusal.value)


# The walks


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 100])
@pytest.mark.parametrize(
    ("k", "v", "timesteps"), [(0.8, 0.2, 1000), (0.5, 0.4, 1000), (1.0, 0.1, 100), (0.9, 0.01, 40)]
)
def test_the_walks_run_from_T_to_k_and_from_v_to_0(k, v, timesteps, steps):
    settings = changed(f"schedule.timesteps={timesteps}", f"method.k={k}", f"method.v={v}", f"generation.steps={steps}")
    query, resume = rapid.time_of(settings, k), rapid.resume_time(settings)
    early, late = rapid.walks(settings, query)
    assert (query, resume) == (round(k * timesteps), max(1, round(v * timesteps))) and resume < query
    assert (early[0], early[-1]) == (timesteps, query), "noise is walked to time k, however few the steps"
    assert (late[0], late[-1]) == (resume, 0)
    assert all(now > after for walk in (early, late) for now, after in itertools.pairwise(walk))


def test_retrieval_skips_the_share_of_the_way_between_k_and_v():
    """The paper's k = 0.8 T and v = 0.2 T leave 40 of 100 steps (section 3.4)."""
    paper = changed("schedule.timesteps=1000", "generation.steps=100", "method.k=0.8", "method.v=0.2")
    early, late = rapid.walks(paper, rapid.time_of(paper, 0.8))
    assert (len(early) - 1, len(late) - 1) == (20, 20)


@pytest.mark.parametrize(("early_steps", "late_steps"), [(0, 0), (1, 0), (0, 1), (2, 3), (7, 4), (500, 500)])
def test_each_walk_may_be_given_its_own_number_of_steps(early_steps, late_steps):
    settings = changed(f"generation.early_steps={early_steps}", f"generation.late_steps={late_steps}")
    early, late = rapid.walks(settings, K)
    usual_early, usual_late = rapid.walks(SETTINGS, K)
    assert len(early) - 1 == (min(early_steps, T - K) or len(usual_early) - 1), "0: its share; never more than times"
    assert len(late) - 1 == (min(late_steps, V) or len(usual_late) - 1)
    assert (early[0], early[-1], late[0], late[-1]) == (T, K, V, 0)


@pytest.mark.parametrize(
    "changes", [["generation.solver=dpm++"], ["generation.early_steps=2", "generation.late_steps=5"]], ids=str
)
def test_other_walks_ask_for_no_other_training(changes):
    """What is paid for is kept under the settings of its training; drawing is none of them (see flows/synthesize.py)."""
    paid = "schedule", "network", "method", "fine_tuning"
    assert resolve("rapid", changes=changes).only(*paid) == resolve("rapid").only(*paid)
    assert resolve("rapid", changes=changes).generation != resolve("rapid").generation


# Drawing


@pytest.mark.parametrize("votes", [False, True])
@pytest.mark.parametrize("guidance", [0.0, 0.5])
@pytest.mark.parametrize(("solver", "few"), [("ddim", 0), ("ddim", 2), ("dpm++", 0), ("dpm++", 1), ("dpm++", 3)])
def test_the_public_model_walks_above_k_and_the_tuned_one_below_v(votes, guidance, solver, few):
    settings = changed(
        *(f"method.votes={json.dumps(votes)}", f"generation.guidance={guidance}"),
        *(f'generation.solver="{solver}"', f"generation.early_steps={few}", f"generation.late_steps={few}"),
    )
    winners = torch.tensor([5, 0, 5, 2]) if votes else None
    parts, y = make_parts(by_class=votes, winners=winners), torch.arange(12) % CLASSES
    rapid.draw(settings, parts, y, generator())
    early, late = rapid.walks(settings, K)
    *walked, (_, guessed_at, guessed_for) = parts.public.calls
    assert [set(t.tolist()) for _, t, _ in walked] == [{t} for t in early[:-1]]
    expected = winners[y].tolist() if votes else [NO_CLASS] * 12
    assert all(classes.tolist() == expected for _, _, classes in walked), "asked for the winners' classes"
    assert set(guessed_at.tolist()) == {K} and set(guessed_for.tolist()) == {NO_CLASS}, "the key is made as in training"
    assert [set(t.tolist()) for _, t, _ in parts.tuned.calls] == [{t} for t in late[:-1]]
    requested = [y.tolist() + [NO_CLASS] * 12 * (guidance > 0)] * len(late[:-1])
    assert [classes.tolist() for _, _, classes in parts.tuned.calls] == requested, (
        "private classes, the null row for guidance"
    )
    made = (sum(len(x) for network in (parts.public, parts.tuned) for x, _, _ in network.calls)) / 12
    facts = Facts(records=100, classes=tuple("abcd"), public_classes=PUBLIC, shape=SHAPE)
    private = settings.privacy.model_copy(update={"delta": 1e-3})
    assert made == rapid.plan(settings.model_copy(update={"privacy": private}), facts).evaluations


@pytest.mark.parametrize("votes", [False, True])
def test_the_tuned_walk_resumes_at_the_retrieved_latent(votes):
    settings = changed(f"method.votes={json.dumps(votes)}", "generation.guidance=0", "method.nearest=2")
    winners = torch.tensor([5, 0, 5, 2]) if votes else None
    parts, y = make_parts(by_class=votes, winners=winners), torch.arange(12) % CLASSES
    rapid.draw(settings, parts, y, generator())
    rows = nearest(parts, parts.encoder.shown[0], 2, winners[y] if votes else None)
    torch.testing.assert_close(parts.tuned.calls[0][0], latents(parts.base, rows, 2), rtol=1e-5, atol=1e-5)


def test_a_query_at_T_takes_no_public_step():
    parts = make_parts()
    rapid.draw(changed("method.k=1.0"), parts, torch.arange(4), generator())
    assert [set(t.tolist()) for _, t, _ in parts.public.calls] == [{T}], "one guess for the key, no step"


# Trajectories at random


@pytest.mark.parametrize("votes", [False, True])
def test_without_keys_drawing_begins_with_a_trajectory_at_random_and_asks_no_public_network(votes):
    settings = changed(f"method.votes={json.dumps(votes)}", "generation.guidance=0", "method.nearest=2")
    winners = torch.tensor([5, 0, 5, 2]) if votes else None
    parts, y = make_parts(by_class=votes, winners=winners, encoder=None), torch.arange(12) % CLASSES
    parts = replace(parts, base=parts.base.without_keys())
    rapid.draw(settings, parts, y, generator(7))
    rows = parts.base.taken(2, parts.public_class(y), generator(7))
    assert not votes or torch.equal(parts.base.labels[rows], winners[y][:, None].expand(-1, 2))
    torch.testing.assert_close(parts.tuned.calls[0][0], latents(parts.base, rows, 2), rtol=1e-5, atol=1e-5)
    assert parts.public.calls == [], "no walk from T to k, and no query"
    assert [set(t.tolist()) for _, t, _ in parts.tuned.calls] == [{t} for t in rapid.walks(settings, K)[1][:-1]]


def test_without_keys_records_learn_from_trajectories_at_random():
    parts, (x, y) = make_parts(encoder=None), records()
    parts = replace(parts, base=parts.base.without_keys())
    examples = rapid.corrupt(SETTINGS, parts)(x, y, generator())
    copies = x.repeat_interleave(3, 0)
    rows = parts.base.taken(1, torch.full((24,), NO_CLASS), generator())
    ehat = (latents(parts.base, rows) - math.sqrt(level(V)) * copies) / math.sqrt(1 - level(V))
    torch.testing.assert_close(examples.target.flatten(0, 1), ehat, rtol=1e-4, atol=1e-4)
    assert parts.public.calls == []


def test_the_query_is_made_at_the_time_of_the_bases_keys():
    parts, (x, y) = make_parts(), records()
    parts = replace(parts, base=replace(parts.base, time=22))
    rapid.corrupt(SETTINGS, parts)(x, y, generator())
    assert set(parts.public.calls[0][1].tolist()) == {22}
    parts.public.calls.clear()
    rapid.draw(SETTINGS, parts, y, generator())
    assert set(parts.public.calls[-1][1].tolist()) == {22}


def test_a_conditional_query_asks_for_the_winners_class():
    settings = changed("method.votes=true")
    settings = settings.model_copy(
        update={"method": settings.method.model_copy(update={"query": QuerySettings(conditional=True)})}
    )
    winners = torch.tensor([5, 0, 5, 2])
    parts, (x, y) = make_parts(by_class=True, winners=winners), records()
    rapid.corrupt(settings, parts)(x, y, generator())
    assert torch.equal(parts.public.calls[0][2], winners[y].repeat_interleave(3))
    rapid.draw(settings, parts, y, generator())
    assert torch.equal(parts.public.calls[-1][2], winners[y])


# The plan


def test_the_plan_says_what_retrieval_and_votes_need():
    facts = Facts(records=1000, classes=tuple("abcd"), public_classes=PUBLIC, shape=SHAPE)
    privacy = SETTINGS.privacy.model_copy(update={"delta": 1e-4})

    def plan(votes):
        settings = changed(f"method.votes={json.dumps(votes)}", "method.reference=0.3", "method.vote_noise=7.0")
        return rapid.plan(settings.model_copy(update={"privacy": privacy}), facts)

    plain, voting = plan(False), plan(True)
    assert plain.votes is None and [spend.stage for spend in plain.spends] == ["fine_tuning"]
    assert [spend.stage for spend in voting.spends] == ["votes", "fine_tuning"]
    assert voting.event("votes").noise_multiplier == voting.votes.noise_multiplier == 7.0
    assert (plain.retrieval.by_class, voting.retrieval.by_class) == (False, True)
    assert (voting.retrieval.time, voting.votes.time, voting.retrieval.reference) == (K, K, 0.3)
    assert voting.noise_multiplier > plain.noise_multiplier, "votes are paid out of the same epsilon"
    tuning = voting.event("fine_tuning")
    assert (tuning.steps, tuning.sample_rate) == (SETTINGS.fine_tuning.steps, SETTINGS.fine_tuning.sample_rate)
    assert voting.claim == rapid.claim(voting.noise_multiplier, tuning.steps, 1e-4)


PAPERS = ["privacy.delta=1e-4", "method.k=0.8", "method.v=0.2", "method.votes=false", "method.nearest=1"]
WHOLE = Facts(records=1000, classes=tuple("abcd"), public_classes=PUBLIC, shape=SHAPE)


def planned(*changes, facts=WHOLE):
    """The plan of settings with changes."""
    return rapid.plan(resolve("rapid", changes=[*PAPERS, *changes]), facts)


def test_a_plan_says_that_trajectories_are_taken_at_random_and_skips_the_walk():
    nearest, at_random = planned(), planned("method.neighbour=random")
    assert at_random.retrieval.time == 0 and nearest.retrieval.time == 800
    assert at_random.evaluations < nearest.evaluations
    assert (
        "taken at random" in str(at_random) and "without the walk" in str(at_random) and "retrieval" not in str(nearest)
    )
    assert at_random.spends == nearest.spends and at_random.certificate == nearest.certificate, "the price is the same"


def test_a_plan_names_the_times_to_measure_and_the_most_that_drawing_takes():
    plan = planned("method.times=[0.5,0.8,0.5,0.3]")
    assert plan.retrieval.times == (800, 500, 300) and plan.retrieval.time == 800
    assert plan.evaluations == planned("method.k=0.3").evaluations
    assert "800, 500, 300" in str(plan) and f"at most {plan.evaluations} network" in str(plan)
    assert plan.spends == planned().spends, "no price depends on what will be measured"


@pytest.mark.parametrize(
    ("changes", "public", "culprit"),
    [
        (["method.times=[0.8,0.2]"], 6, r"method.v=0.2 is not below method.times=0.2"),
        (["method.times=[0.8]"], 1, r"method.times goes by public classes.*has one: use --set method.k=0.8"),
        (["method.extractor.contrast=classes"], 1, r"method.extractor.contrast goes by public classes"),
        (["method.query.clean_keys=true", "method.query.key_draws=4"], 6, r"method.query.key_draws=4 averages noised"),
        (["method.query.conditional=true"], 6, r"which votes alone say: use --set method.votes=true"),
        (["method.votes=true", "method.query.conditional=true", "method.times=[0.8]"], 6, r"measures nothing"),
    ],
)
def test_a_plan_refuses_what_does_not_fit_in_one_line(changes, public, culprit):
    with pytest.raises(BadInput, match=culprit) as refusal:
        planned(*changes, facts=WHOLE.model_copy(update={"public_classes": public}))
    assert "\n" not in str(refusal.value)
