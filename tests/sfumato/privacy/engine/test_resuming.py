"""Training that was broken off goes on exactly where it was, and pays for each of its steps, and for what was lost again."""

import itertools
from dataclasses import dataclass, field

import pytest
import torch

from sfumato.config import FineTuning, Network, Schedule
from sfumato.diffusion.objective import denoising_examples
from sfumato.diffusion.schedule import make_schedule
from sfumato.errors import Refused, Stopped
from sfumato.networks.build import build
from sfumato.privacy.accounting.events import SubsampledGaussian
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.engine.dp_sgd import state_of, train_privately
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.privacy.mechanisms import MOST_LOST, fine_tuned
from sfumato.resuming import TrainingState
from tests.seeded import seeded_source
from tests.spends import DELTA, KEYS, ONE, spend
from tests.team import StopAt

STEPS = 40
EVENT = SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.5, steps=STEPS)
LOST = int(MOST_LOST * STEPS)
SCHEDULE = make_schedule(Schedule(timesteps=20))
SETTINGS = FineTuning(steps=STEPS, sample_rate=0.5, draws=1, trainable=("rows", "film"), clip=1.0, warm_up=5)


class Crash(BaseException):
    """The process is gone."""


def network():
    torch.manual_seed(0)
    return build(Network(kind="mlp", width=8, blocks=1, condition=8), (1, 8, 8), 10)


def corrupt(x, y, generator):
    return denoising_examples(SCHEDULE, x, y, draws=1, low=1, high=20, generator=generator)


# The state


def drawn():
    source = seeded_source(5)
    return {"source": source, "pairs": source.generator()}


def train(chance, settings=SETTINGS, **more):
    torch.manual_seed(1)
    x, y = torch.randn(30, 1, 8, 8), torch.randint(0, 10, (30,))
    terms = {"noise_multiplier": 0.5, "expected_batch": 15.0, "physical_batch": 64}
    return train_privately(network(), x, y, corrupt, settings, **chance, **terms, **more)


@pytest.mark.parametrize("step", [1, 7, 39])
def test_it_goes_on_exactly_where_it_was(step):
    whole = train(drawn())
    chance, stop = drawn(), StopAt(step)
    with pytest.raises(Stopped):
        train(chance, checkpoint=stop)
    parts = train(chance, start=TrainingState(step, stop.state))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, parts.state_dict()[name]), name


def test_further_averages_go_on_too_and_the_model_is_the_one_without_them():
    settings, whole, parts = SETTINGS.model_copy(update={"averages": (0.5, 0.0)}), {}, {}
    model = train(drawn(), settings, keep=whole.__setitem__)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), train(drawn()).parameters(), strict=True))
    chance, stop = drawn(), StopAt(7)
    with pytest.raises(Stopped):
        train(chance, settings, checkpoint=stop)
    train(chance, settings, start=TrainingState(7, stop.state), keep=parts.__setitem__)
    for decay in settings.averages:
        pairs = zip(whole[decay].parameters(), parts[decay].parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), decay


def test_a_state_is_a_copy_and_holds_what_is_trained_alone():
    stop = StopAt(2)
    with pytest.raises(Stopped):
        train(drawn(), checkpoint=stop)
    trained = {name.split("/", 1)[1] for name in stop.state if "/" in name}
    assert trained and not any("out" in name for name in trained)
    assert {name.split("/")[0] for name in stop.state} == {
        "averaged", "weight", "average", "adam-step", "adam-exp_avg", "adam-exp_avg_sq",
    }  # fmt: skip
    assert state_of.__doc__ and all(not value.requires_grad for value in stop.state.values())


# What it costs


@dataclass
class Memory:
    """A keeper in memory that asks to stop at a step."""

    stop_at: int = 10**9
    states: list = field(default_factory=list)
    steps: int = 0

    def load(self):
        return self.states[-1] if self.states else None

    def save(self, state):
        self.states.append(state)

    def stretch(self, step):
        return 100

    def stopping(self):
        return self.steps >= self.stop_at


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"{next(ticks):06d}", KEYS) as opened:
        yield opened


def tune(ledger, keeper, die_at=10**9, **changes):
    """The mechanism on real digits, which dies in the step after `die_at`."""
    steps = itertools.count(keeper.load().step + 1 if keeper.load() else 1)

    def counted(x, y, generator):
        keeper.steps = next(steps)
        if keeper.steps > die_at:
            raise Crash
        return corrupt(x, y, generator)

    fields = {
        "ledger": ledger, "private": PrivateSet(name="digits", source="digits", share=0.0405), "run": "run-1",
        "stage": "tuning", "purpose": "a test", "code_version": "0", "relation": "add_remove", "delta": DELTA,
    }  # fmt: skip
    access = Access(**(fields | changes))
    settings = {"records": 60, "device": torch.device("cpu"), "physical_batch": 64, "keeper": keeper}
    return fine_tuned(access, EVENT, network(), counted, SETTINGS, **settings)


def paid_steps(ledger):
    return [events[0].steps for _, events in ledger.spends("digits")]


def test_a_stop_that_was_asked_for_costs_no_step_twice(ledger):
    keeper = Memory(stop_at=13)
    with pytest.raises(Stopped, match="stopped after step 13 of 40 and saved; 13 steps are paid for"):
        tune(ledger, keeper)
    assert paid_steps(ledger) == [13] and keeper.load().step == 13
    keeper.stop_at = 10**9
    paid = tune(ledger, keeper)
    assert paid_steps(ledger) == [13, 27] and set(paid.entries) == {entry.hash for entry, _ in ledger.spends("digits")}
    assert set(paid.entries.values()) == {"DP"}
    whole = SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.5, steps=STEPS)
    assert ledger.total("digits").epsilon == pytest.approx(ledger._epsilon([whole], DELTA, "add_remove"), rel=1e-3)


@pytest.mark.parametrize("die_at", [0, 1, 14, 15, 39])
def test_after_a_crash_the_steps_since_the_last_state_are_paid_for_again(ledger, die_at):
    keeper = Memory()
    with pytest.raises(Crash):
        tune(ledger, keeper, die_at=die_at)
    assert paid_steps(ledger) == [STEPS], "until someone goes on, all that was reserved stands"
    retained = keeper.load().step if keeper.load() else 0
    assert retained <= die_at + 1 <= retained + LOST + 1
    paid = tune(ledger, keeper)
    if retained:
        first, second = paid_steps(ledger)
        assert second == STEPS - retained and die_at <= first <= retained + LOST and len(paid.entries) == 2
        assert [e.body["settled"] for e in ledger.entries() if e.kind == "commit" and "settled" in e.body] == [True]
    else:
        assert paid_steps(ledger) == [STEPS, STEPS] and len(paid.entries) == 1
    assert ledger.verify() == [] and ledger.replay() == []


def test_a_second_crash_is_settled_too(ledger):
    keeper = Memory()
    for die_at in (10, 20):
        with pytest.raises(Crash):
            tune(ledger, keeper, die_at=die_at)
    paid = tune(ledger, keeper)
    steps = paid_steps(ledger)
    assert len(steps) == 3 and STEPS < sum(steps) <= STEPS + 2 * (LOST + 1) and len(paid.entries) == 3


def test_a_process_that_was_settled_but_lives_is_stopped(ledger):
    ticket = spend(ledger)
    ledger.opened(ticket)
    ledger.progress(ticket, [ONE])
    ledger.settle(ticket.hash)
    for use in (lambda: ledger.progress(ticket, [ONE]), lambda: ledger.commit(ticket, [ONE])):
        with pytest.raises(Refused, match="was committed before"):
            use()
    assert ledger.settle(ticket.hash) is None


def test_progress_goes_no_further_than_was_reserved(ledger):
    ticket = spend(ledger)
    with pytest.raises(Refused, match="was never opened"):
        ledger.progress(ticket, [ONE])
    ledger.opened(ticket)
    with pytest.raises(Refused, match="does not cover what is to be done"):
        ledger.progress(ticket, [ONE, ONE])
    assert [entry.kind for entry in ledger.entries()] == ["reserve", "open"]
    ledger.settle(ticket.hash)
    assert ledger.spends("digits")[0][1] == (ONE,), "without a line on its progress, all that was reserved"


def test_a_comparison_is_kept_too_and_costs_nothing(ledger):
    keeper = Memory(stop_at=5)
    with pytest.raises(Stopped):
        tune(ledger, keeper, comparison=True)
    keeper.stop_at = 10**9
    paid = tune(ledger, keeper, comparison=True)
    assert paid_steps(ledger) == [] and set(paid.entries.values()) == {"INTERNAL"} and len(paid.entries) == 2


def test_a_budget_is_asked_again_for_what_is_left(ledger):
    keeper = Memory(stop_at=10)
    with pytest.raises(Stopped):
        tune(ledger, keeper)
    ledger.set_budget("digits", ledger.total("digits").epsilon + 0.01, DELTA)
    keeper.stop_at = 10**9
    with pytest.raises(Refused, match="left for 'digits'"):
        tune(ledger, keeper)
    assert keeper.load().step == 10, "nothing is lost: a larger budget lets it go on"
