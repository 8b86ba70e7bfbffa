"""One command in several processes: what the others are told, where they go through the door, and how it ends."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from artifacts import serialization
from artifacts.references import PublicModel
from sfumato.errors import BadInput, Refused, Stopped
from sfumato.methods.plan import STAGE_TUNING
from sfumato.networks.build import build
from sfumato.preflight import plan_for, preflight, private_set
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting.events import SubsampledGaussian
from sfumato.settings import resolve
from tasks import private
from tasks.inputs import Inputs, PublicParts
from tasks.private import fine_tune, fine_tune_beside
from tasks.runtime import distributed, environment
from tasks.terms import Order, Terms
from tests.tasks.runtime.test_artifact import CONTEXT, place, reported  # noqa: F401 (fixtures)

QUICK = [
    "data.share=0.065",
    "network.width=8",
    "network.blocks=1",
    "fine_tuning.steps=2",
    "fine_tuning.sample_rate=0.5",
]


class Company:
    """A team of two of which this process plays both, one after the other."""

    def __init__(self, rank, jobs=()):
        self.rank, self.size, self.part = rank, 2, slice(rank, None, 2)
        self.did, self.jobs, self.sums = [], list(jobs), []

    def begin(self, model):
        self.did.append("begin")

    def lead(self, trainable):
        self.did.append("lead")

    def follow(self, trainable):
        self.did.append("follow")
        return self.did.count("follow") == 1

    def total(self, own):
        self.sums.append(sum(float(value.abs().sum()) for value in own.values()))
        return own

    def dismiss(self):
        self.did.append("dismiss")

    def farewell(self):
        self.did.append("farewell")

    def tell(self, text=""):
        return self.jobs.pop(0)


@pytest.fixture
def torchrun(monkeypatch):
    """The environment of one of two processes, and a company for it."""

    def start(rank, company):
        for name, value in {"TORCHELASTIC_RUN_ID": "none", "RANK": str(rank), "WORLD_SIZE": "2"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(distributed, "team", lambda: company)
        monkeypatch.setattr(private, "team", lambda: company)
        return company

    return start


def tune(place, **changes):  # noqa: F811
    """The stage on a public model that has learnt nothing."""
    settings, facts, _ = preflight(resolve("dp-sgd", changes=QUICK))
    plan, store = plan_for(settings, facts), place.store()
    with store.writing() as folder:
        model = build(settings.network, facts.shape, facts.public_classes)
        for value in model.state_dict().values():  # layers that begin at zero would give gradients of zero
            value.add_(0.1)
        serialization.save_denoiser(folder, model, settings.network, facts.shape, facts.public_classes)
        public = PublicParts(model=store.keep(PublicModel, folder))
    terms = Terms(relation="add_remove", delta=1e-3)
    order = Order(private=private_set(settings), terms=terms, machine=settings.machine).model_copy(update=changes)
    recipe = settings.only("schedule", "network", "method", "fine_tuning")
    inputs = Inputs(settings=recipe, facts=facts, public=public)
    return fine_tune.fn(CONTEXT, order, plan.event_of(SubsampledGaussian, STAGE_TUNING), inputs)


@pytest.mark.parametrize("comparison", [False, True])
def test_the_other_process_joins_under_the_reservation_and_draws_for_its_own_part(
    place,  # noqa: F811
    reported,  # noqa: F811
    torchrun,
    monkeypatch,
    comparison,
):
    first, second, drawn = Company(0), Company(1), []
    real = mechanisms.help_training

    def help_training(model, x, y, *rest, **how):
        drawn.append(len(x))
        return real(model, x, y, *rest, **how)

    def tell(text=""):
        torchrun(1, second)
        fine_tune_beside(text)
        torchrun(0, first)

    monkeypatch.setattr(mechanisms, "help_training", help_training)
    first.tell = tell
    torchrun(0, first)
    ref = tune(place, terms=Terms(relation="add_remove", delta=1e-3, comparison=comparison))
    assert drawn == [50] and second.did == ["begin", "follow", "follow"] and second.sums[0] > 0
    assert first.did == ["begin", "lead", "lead", "dismiss"] and len(first.sums) == 2
    with place.ledger() as ledger:
        kinds = [entry.kind for entry in ledger.entries() if entry.kind != "progress"]
        assert kinds == (["look", "look"] if comparison else ["reserve", "open", "commit"])
        assert ledger.verify() == [] and ref.label == ("INTERNAL" if comparison else "DP")
        if not comparison:
            with pytest.raises(Refused, match="is not open: nobody may join"):
                ledger.standing_open(next(e for e in ledger.entries() if e.kind == "reserve").hash, "digest")


def test_alone_nobody_is_told_anything(place, reported):  # noqa: F811
    assert tune(place).label == "DP" and distributed.helpers_of(None)("reservation") is None


def test_what_the_others_cannot_see_is_refused(place, reported, torchrun):  # noqa: F811
    torchrun(0, Company(0))
    machine = resolve("dp-sgd").machine.model_copy(update={"watch": True})
    with pytest.raises(BadInput, match="machine.watch does not go with torchrun, which started 2 processes"):
        tune(place, machine=machine)
    with place.ledger() as ledger:
        assert ledger.entries() == []


def test_the_first_says_farewell_however_the_command_ends(place, torchrun, monkeypatch):  # noqa: F811
    def command():
        raise BadInput("no")

    monkeypatch.setattr(distributed, "leave", lambda: None)
    company = torchrun(0, Company(0))
    with pytest.raises(BadInput):
        distributed.with_helpers(command, lambda job: None)
    assert company.did == ["farewell"]


def test_another_one_helps_until_there_is_nothing_more_and_leaves_stopping_to_the_first(place, torchrun, monkeypatch):  # noqa: F811
    monkeypatch.setattr(distributed, "leave", lambda: None)
    set_to = {}
    monkeypatch.setattr(distributed.signal, "signal", set_to.__setitem__)
    torchrun(1, Company(1, ["one job", "another", ""]))
    heard = []
    distributed.with_helpers(lambda: pytest.fail("the command is the first one's"), heard.append)
    assert heard == ["one job", "another"]
    assert set_to == {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}


AT_WORK = """
import os, signal, sys
from flows.cli import main as cli
cli.app = lambda **_: os.kill(os.getpid(), signal.SIGKILL)
cli.main()
"""
AT_THE_MEETING = """
import os, signal, sys
from flows.cli import main as cli
from torch import distributed
def killed(*_, **__):
    store = distributed.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, is_master=True)  # returns when both are there
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ["RANK"] == "0":
    distributed.init_process_group = killed
cli.main()
"""


MIXING = """
import torch
from flows.cli import main as cli
from sfumato.config import FineTuning
from tasks.runtime.distributed import team
from tests.sfumato.privacy.engine.test_spot_check import BRIGHT, MIXERS
from tests.sfumato.privacy.engine.test_validation import Mixes
from tests.team import fixed, train

def training(*_, **__):
    company = team()
    if company.rank == 0:
        company.tell("help")
    x = torch.rand(40, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    x[1::2, 0, 0, 0] = 4 * BRIGHT  # the helper's records, which alone are mixed
    settings = FineTuning(steps=50, sample_rate=0.5, draws=1, trainable=("rest",), warm_up=0, checked=0.1)
    train(company, x, torch.ones(40, dtype=torch.long), settings, make=lambda: Mixes(MIXERS["the mean"]))

cli.app = cli._help_with = training
cli.main()
"""


def two_processes(program, home):
    """Both at work on this program as if torchrun had started them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    variables = {**os.environ, **meeting, "SFUMATO_HOME": str(home)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**variables, "RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
            cwd=environment.CHECKOUT,
        )
        for rank in "01"
    ]


def ours(stated):
    """The lines of the command itself; torch warns in its own words before."""
    return [line for line in stated.splitlines() if line.startswith("sfumato: ")]


@pytest.mark.slow
@pytest.mark.parametrize("first_process", [AT_WORK, AT_THE_MEETING], ids=["at work", "at the meeting"])
def test_when_the_first_is_killed_another_one_says_so_in_one_line(first_process, tmp_path):
    first, other = two_processes(first_process, tmp_path)
    _, stated = other.communicate(timeout=300)
    first.communicate(timeout=300)
    assert first.returncode == -signal.SIGKILL and other.returncode == Stopped.exit_code
    (line,) = ours(stated)
    assert line.startswith("sfumato: another process that torchrun started has ended"), stated
    assert "Traceback" not in stated and stated.rstrip().endswith(line)


@pytest.mark.slow
def test_when_the_spot_check_of_a_helper_finds_mixed_records_the_whole_training_stops(tmp_path):
    first, other = two_processes(MIXING, tmp_path)
    result, stopped = other.communicate(timeout=300)[1], first.communicate(timeout=300)[1]
    assert (other.returncode, first.returncode) == (BadInput.exit_code, Stopped.exit_code), result + stopped
    assert len(ours(result)) == len(ours(stopped)) == 1, result + stopped
    assert ours(result)[0].startswith("sfumato: the network Mixes mixes private records")
    assert ours(stopped)[0].startswith("sfumato: another process that torchrun started has ended")
    assert "Traceback" not in result + stopped
