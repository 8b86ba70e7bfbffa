"""What each process of a training does that torchrun starts for a test; the first one writes what it saw. And one of them alone.

`python -m torch.distributed.run --standalone --nproc-per-node 2 -m tests.team FOLDER`
"""

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits

from sfumato.config import FineTuning, Network
from sfumato.diffusion.objective import Examples
from sfumato.errors import Stopped
from sfumato.networks.build import build
from sfumato.privacy.engine import distributed, dp_sgd
from sfumato.privacy.engine.distributed import Team, help_training, join, leave
from sfumato.privacy.noise import KEY_BYTES, Source
from sfumato.resuming import TrainingState
from tasks.runtime.environment import where
from tests.seeded import seeded_source

RECORDS, STEPS = 41, 4
TUNING = FineTuning(steps=STEPS, sample_rate=0.5, draws=1, clip=0.1, trainable=("rows", "film"), warm_up=0)
MASKS = torch.rand(STEPS, RECORDS, generator=torch.Generator().manual_seed(7)) < TUNING.sample_rate
MASKS[2, 0::2] = False  # the first process has nobody in this step
DRAWN = TUNING.model_copy(update={"steps": 400, "sample_rate": 0.3, "trainable": ("rows",)})
"""For what is drawn rather than injected."""
NOISE, EXPECTED = 1.5, 20.0


def network():
    """The same small network in every process."""
    torch.manual_seed(3)
    return build(Network(kind="mlp", width=16, blocks=1, condition=8), (1, 8, 8), 10)


def records(count=RECORDS):
    """Real digits; the first pixel is the record's number."""
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images[:count] / 8 - 1).float().view(-1, 1, 8, 8)
    x[:, 0, 0, 0] = torch.arange(count) / count
    return x, torch.from_numpy(labels[:count]).long()


def fixed(x, y, generator):
    """Examples that follow from the record alone."""
    noise = torch.cos(100 * x)
    return Examples((0.8 * x + 0.6 * noise)[:, None], (1 + 3 * y)[:, None], y[:, None], noise[:, None])


@dataclass
class StopAt:
    """A checkpoint that stops at a step with its state."""

    step: int
    state: dict | None = None

    def go_on(self, step, take):
        """As `Checkpoint` has it."""
        if step == self.step:
            self.state = take()
            raise Stopped("enough")
        return self.step

    def stopping(self):
        """As `Checkpoint` has it."""
        return False


class Led:
    """The second of two processes where the first one is not there: it is to take part in so many steps."""

    part = slice(1, None, 2)

    def __init__(self, steps):
        self.left = steps

    def begin(self, model):
        """As `Team` has it."""

    def follow(self, trainable):
        """As `Team` has it."""
        self.left -= 1
        return self.left >= 0

    def total(self, own):
        """As `Team` has it."""
        return own


class Seen:
    """Gradients that the optimiser is given, step by step."""

    def __init__(self):
        self.gradients = []
        optimiser = torch.optim.Adam
        seen = self.gradients

        class Watched(optimiser):
            def step(self, *args, **kwargs):
                seen.append(torch.cat([p.grad.flatten() for g in self.param_groups for p in g["params"]]))
                return super().step(*args, **kwargs)

        torch.optim.Adam = Watched
        self.restore = lambda: setattr(torch.optim, "Adam", optimiser)


def inject(part):
    """Let the masks say who of a part takes part, and the noise after it be the same in each step; returns a function that starts again."""
    at = iter(())

    def start(step=0):
        nonlocal at
        at = iter(range(step, STEPS))

    def sample(count, rate, source):
        Source.__init__(source, bytes(KEY_BYTES))
        return MASKS[next(at)][part].nonzero()[:, 0]

    dp_sgd.poisson_sample = distributed.poisson_sample = sample
    start()
    return start


def train(team, x, y, settings=TUNING, corrupt=fixed, noise=NOISE, make=network, **more):
    """One process's share of a training; the trained model at the first, None elsewhere."""
    part = team.part if team else slice(None)
    own, source = (x[part], y[part]), seeded_source(team.rank if team else 0)
    drawn = {"source": source, "pairs": source.generator()}
    if team and team.rank:
        return help_training(make(), *own, corrupt, settings, **drawn, physical_batch=8, team=team)
    how = {"noise_multiplier": noise, "expected_batch": EXPECTED, "physical_batch": 8}
    try:
        return dp_sgd.train_privately(make(), *own, corrupt, settings, **drawn, others=team, **how, **more)
    finally:
        if team:
            team.dismiss()


def injected(team):
    """Weights and gradients with masks and noise given, and the same with a stop in between."""
    start, seen = inject(team.part if team else slice(None)), Seen()
    whole = train(team, *records())
    gradients = torch.stack(seen.gradients) if seen.gradients else None
    start()
    stop = StopAt(2)
    with contextlib.suppress(Stopped):
        train(team, *records(), **({"checkpoint": stop} if not team or not team.rank else {}))
    start(2)
    if team and team.rank:
        train(team, *records())
        return {}
    again = train(team, *records(), start=TrainingState(2, stop.state))
    seen.restore()
    vector = torch.nn.utils.parameters_to_vector
    return {
        "gradients": gradients,
        "whole": vector(whole.parameters()).detach(),
        "again": vector(again.parameters()).detach(),
    }


def drawn(team, sample):
    """Who took part in each step, and what noise without records looks like, nothing being injected."""
    dp_sgd.poisson_sample = distributed.poisson_sample = sample
    x, y = records(30)
    took = torch.zeros(DRAWN.steps, len(x))
    steps = iter(range(DRAWN.steps))

    def spy(x, y, generator):
        took[next(steps), (x[:, 0, 0, 0] * 30).round().long()] = 1
        return Examples(x[:, None], torch.ones_like(y)[:, None], y[:, None], x[:, None])

    train(team, x, y, DRAWN, spy)
    torch.distributed.reduce(took, 0)
    seen = Seen()
    train(team, x[:0], y[:0], DRAWN.model_copy(update={"steps": 40}), noise=2.0)
    noise = torch.stack(seen.gradients) if seen.gradients else torch.zeros(0)
    return {"took": took, "noise": noise}


def main(folder: Path) -> None:
    """All of it."""
    sample = dp_sgd.poisson_sample
    place = where()
    team: Team = join(place.rank, place.processes)
    message = team.tell("from the first" if team.rank == 0 else "")
    assert message == "from the first" and team.tell() == ""
    results = injected(team) | drawn(team, sample)
    if team.rank == 0:
        save_file({name: value.contiguous() for name, value in results.items()}, folder / "found.safetensors")
    leave()
    threads = [(task / "comm").read_text() for task in Path("/proc/self/task").glob("*")]
    assert not any("gloo" in name for name in threads)  # one that outlives the interpreter can abort the process


if __name__ == "__main__":
    main(Path(sys.argv[1]))
