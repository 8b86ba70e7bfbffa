"""Many members of the DP ensemble: what it saves to train and ask them together, and what they give on the digits.

    OMP_NUM_THREADS=1 python benchmarks/members.py [--no-scores | --no-times]

The first table times heads behind one public network against the same heads trained and asked one by one, in turns, on one thread; the loop
is timed on a few members and scaled. The second runs the method through the flow on the embedded digits, in a home of its own
(`sfumato-home/benchmarks`), by the preset `digits-members` and the changes named; scores look at private images and are INTERNAL.
"""

import argparse
import os
import statistics
import time

from tasks.runtime.environment import CHECKOUT, configure

PRESET = "digits-members"
SIZES = (60, 200, 1000)
"""Numbers of members that are timed."""
LOOPED = 10
"""Members of the loop that are timed."""
IMAGES, RECORDS, STEPS, ROUNDS, WIDTH = 100, 7, 10, 3, 64
"""Images asked for, records of a member, steps of its training, rounds of each timing, hidden numbers of a head."""
WHOLE = ["method.adapters=0", "method.abstain=false", "generation.steps=250"]
WHOLE += ["method.training.steps=400", "method.training.batch=64", "method.training.learning_rate=0.003"]
"""Members as whole denoisers, by their defaults."""
PAID = ["generation.images=1000", "method.members=200"]
RUNS: dict[str, list[str]] = {
    "20 members": ["method.members=20"],
    "60 members": ["method.members=60"],
    "200 members": [],
    "500 members": ["method.members=500"],
    "20 whole denoisers": [*WHOLE, "method.members=20"],
    "10 prototypes of each class, redrawn": [*PAID, "method.prototypes=10"],
    "10 of each class, learnt from": [*PAID, "method.prototypes=10", "method.distillation.steps=400"],
    "50 of each class, learnt from": [*PAID, "method.prototypes=50", "method.distillation.steps=400"],
    "200 members, all of them speak": ["method.abstain=false"],
    "200 members, 500 images": ["generation.images=500"],
    "the same, 8 directions": ["generation.images=500", "method.directions=8"],
    "the same, 24 directions": ["generation.images=500", "method.directions=24"],
    "200 members at epsilon 1": ["privacy.epsilon=1"],
    "the same, 8 directions of them": ["privacy.epsilon=1", "method.directions=8"],
    "the same, 24 directions of them": ["privacy.epsilon=1", "method.directions=24"],
}
"""Name -> changes to the preset; 100 images of 200 members at epsilon 10 unless said."""


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-scores", action="store_true", help="only the times")
    parser.add_argument("--no-times", action="store_true", help="only the scores")
    arguments = parser.parse_args()
    if not arguments.no_times:
        time_members()
    if not arguments.no_scores:
        score()


def time_members() -> None:
    """Processor time of `STEPS` steps of training, and of one sampling step, of all members together and one by one."""
    import torch

    from sfumato import adapters
    from sfumato.config import Network, Pretraining, Schedule
    from sfumato.diffusion.schedule import make_schedule
    from sfumato.networks.build import build

    torch.set_num_threads(1)
    schedule, shape = make_schedule(Schedule()), (1, 8, 8)
    trunk = adapters.Trunk(build(Network(kind="mlp", width=192), shape, 52).eval().requires_grad_(False))
    settings = Pretraining(steps=STEPS, batch=WIDTH, learning_rate=0.1)
    records, labels = torch.rand(RECORDS, *shape) * 2 - 1, torch.arange(RECORDS)
    x, y = torch.randn(IMAGES, *shape), torch.arange(IMAGES) % 10

    def train(count: int) -> adapters.HeadStack:
        shards = [(records, labels)] * count
        return adapters.heads_trained(trunk, schedule, shards, settings, classes=10, width=WIDTH, seed=0)

    def ask(heads: adapters.HeadStack) -> None:
        _, features = trunk(x, y + 1)
        for deviation in adapters.deviations(heads, features, y, 2.0):
            deviation.sum(0)

    def seconds(work) -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    columns = ("members", f"{STEPS} steps, one by one, s", "together, s", "ratio")
    print(
        "| "
        + " | ".join([*columns, f"{IMAGES} images asked, one by one, ms", "together, ms", "ratio of asking"])
        + " |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    one = train(1)
    for count in SIZES:
        heads = train(count)
        ways = {
            "train loop": lambda: [train(1) for _ in range(LOOPED)],
            "train": lambda count=count: train(count),
            "ask loop": lambda: [ask(one) for _ in range(LOOPED)],
            "ask": lambda heads=heads: ask(heads),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        with torch.inference_mode(False):
            for _ in range(ROUNDS):
                for name, way in ways.items():
                    taken[name].append(seconds(way))
        middle = {name: statistics.median(times) for name, times in taken.items()}
        loop, asked_loop = (middle[name] * count / LOOPED for name in ("train loop", "ask loop"))
        print(
            f"| {count:,} | {loop:.2f} | {middle['train']:.2f} | {loop / middle['train']:.1f} "
            f"| {1000 * asked_loop:.0f} | {1000 * middle['ask']:.0f} | {asked_loop / middle['ask']:.1f} |",
            flush=True,
        )


def score() -> None:
    """Run each way on the digits, and print what it gives."""
    os.environ.setdefault("SFUMATO_HOME", str(CHECKOUT / "sfumato-home" / "benchmarks"))
    configure()
    from flows.reproduce import made_in
    from flows.synthesize import synthesize

    print("| members | changes | certificate | covers | readable | LR | CNN | Frechet distance | coverage | minutes |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, changes in RUNS.items():
        record = synthesize(method="dp-ensemble", preset=PRESET, changes=["evaluation.images=1000", *changes])
        scores, certificate = record.metrics["synthetic"], record.certificate
        own = [f"{scores[key]:.3f}" for key in ("readable", "logistic", "cnn")]
        own += ["-" if scores["frechet"] is None else f"{scores['frechet']:.1f}", f"{scores['coverage']:.3f}"]
        row = [name, " ".join(changes) or "preset", f"{certificate.epsilon:.3f}", str(certificate.images), *own]
        print("| " + " | ".join([*row, f"{made_in(record) / 60:.1f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
