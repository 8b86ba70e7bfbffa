"""Many members of the DP ensemble: what it saves to train and ask them together, and what they give on the digits.

    OMP_NUM_THREADS=1 python benchmarks/members.py [--no-scores | --no-times]

The first table times heads behind one public network against the same heads trained and asked one by one, in turns, on one thread; the loop
is timed on a few members and scaled. The second trains and draws on the embedded digits by the preset
`digits-members` and the changes named, without door and ledger and with plain seeds, after 1,000 public steps; what it prints is INTERNAL. Readable, CNN and
Frechet distance as in a run: by a CNN of real digits, by one of the drawn images on the held-out ones, and in the features of one of letters. Seconds
are of the processor.
"""

import argparse
import statistics
import time

PRESET = "digits-members"
SIZES = (60, 200, 1000)
"""Numbers of members that are timed."""
LOOPED = 10
"""Members of the loop that are timed."""
IMAGES, RECORDS, STEPS, ROUNDS, WIDTH = 100, 7, 10, 3, 64
"""Images asked for, records of a member, steps of its training, rounds of each timing, hidden numbers of a head."""
PUBLIC_STEPS, SEED, DRAWN = 1000, 0, 500
"""Steps of the public denoiser, seed, images that are drawn from paid ones."""
HUNDRED = "generation.images=100"
PAID = ["method.prototypes=10", f"generation.images={DRAWN}"]
RUNS: dict[str, list[str]] = {
    "20 members": [HUNDRED, "method.members=20"],
    "60 members": [HUNDRED, "method.members=60"],
    "60 members, all of them speak": [HUNDRED, "method.members=60", "method.abstain=false"],
    "200 members": [HUNDRED],
    "200 members, all of them speak": [HUNDRED, "method.abstain=false"],
    "100 paid images, 500 drawn from them": PAID,
    "100 paid images, 500 by what learnt from them": [*PAID, "method.distillation.steps=400"],
    "200 members, 500 images": ["generation.images=500"],
    "the same, 8 directions": ["generation.images=500", "method.directions=8"],
    "the same, 24 directions": ["generation.images=500", "method.directions=24"],
    "200 members at epsilon 1": [HUNDRED, "privacy.epsilon=1"],
    "at epsilon 1, 8 directions": [HUNDRED, "privacy.epsilon=1", "method.directions=8"],
    "at epsilon 1, 24 directions": [HUNDRED, "privacy.epsilon=1", "method.directions=24"],
    "500 members": [HUNDRED, "method.members=500"],
}
"""Name -> changes to the preset: 200 members at epsilon 10 unless said."""


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
    """Train members once for each number of them, draw each way, and print what it gives."""
    import torch

    from sfumato import adapters, sources
    from sfumato.diffusion.schedule import make_schedule
    from sfumato.distillation import learnt_from_prototypes
    from sfumato.evaluation.classifier import features, predict, train_classifier
    from sfumato.evaluation.fidelity import frechet_distance
    from sfumato.images import to_unit
    from sfumato.methods import dp_ensemble
    from sfumato.methods.parts import Parts
    from sfumato.networks.build import build
    from sfumato.preflight import plan_for, preflight
    from sfumato.privacy.shards import dealt
    from sfumato.settings import resolve
    from sfumato.training import pretrain

    torch.set_num_threads(1)
    private, test = (sources.load("digits", sources.Reading(part=part, size=8)) for part in ("train", "test"))
    glyphs = sources.load("glyphs", sources.Reading(part="all", size=8, glyphs_per_class=150))
    letters, letter_labels = to_unit(glyphs.pixels), torch.from_numpy(glyphs.labels)
    x, y = to_unit(private.pixels), torch.from_numpy(private.labels)
    unseen, truth = to_unit(test.pixels), torch.from_numpy(test.labels)
    settings, facts, _ = preflight(resolve("dp-ensemble", PRESET))
    schedule = make_schedule(settings.schedule)
    learning = settings.pretraining.model_copy(update={"steps": PUBLIC_STEPS})
    begun = build(settings.network, facts.shape, len(glyphs.classes), seed=SEED, alpha_bar=schedule.alpha_bar)
    public, _ = pretrain(begun, schedule, letters, letter_labels, learning, seed=SEED)
    eyes = train_classifier(letters, letter_labels, len(glyphs.classes), seed=SEED)
    reader = train_classifier(x, y, len(private.classes), seed=SEED)
    seen, known = features(eyes, unseen), {}
    print("| members | changes | certificate | covers | readable | CNN | Frechet distance | training, s | drawing, s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name, changes in RUNS.items():
        settings, facts, _ = preflight(resolve("dp-ensemble", PRESET, changes=changes))
        plan, method = plan_for(settings, facts), settings.method
        if method.members not in known:
            started, place = time.process_time(), torch.from_numpy(dealt(private, method.members, method.key))
            shards = [(x[place == shard], y[place == shard]) for shard in range(method.members)]
            heads = adapters.heads_trained(
                adapters.Trunk(public), schedule, shards, plan.members.training, classes=10, width=WIDTH, seed=SEED
            )
            known[method.members] = heads, time.process_time() - started
        heads, learnt_in = known[method.members]
        event = plan.spends[-1].event
        parts = Parts(schedule, facts.shape, facts, public, heads=heads, paid=(event,), images=letters)
        started, generator = time.process_time(), torch.Generator().manual_seed(SEED)
        labels = torch.arange(event.count) * 10 // event.count
        drawn = dp_ensemble.draw_privately(settings, parts, (x[:0], y[:0]), labels, generator)
        if plan.prototypes:
            parts = Parts(schedule, facts.shape, facts, public, prototypes=drawn.clone())
            if plan.distillation:
                tuned, _ = learnt_from_prototypes(parts, plan.distillation, seed=SEED)
                parts = Parts(schedule, facts.shape, facts, public, tuned=tuned)
            labels = torch.arange(DRAWN) * 10 // DRAWN
            drawn = dp_ensemble.draw(settings, parts, labels, generator)
        took = time.process_time() - started
        images = drawn.clone().clamp(-1, 1)
        cnn = train_classifier(images, labels, 10, seed=SEED)
        readings = ((reader, images, labels), (cnn, unseen, truth))
        shares = [
            float((predict(model, shown).argmax(1) == wanted).double().mean()) for model, shown, wanted in readings
        ]
        row = [name, " ".join(changes), f"{plan.certificate.epsilon:.3f}", str(plan.certificate.images)]
        row += [*(f"{share:.3f}" for share in shares), f"{frechet_distance(features(eyes, images), seen):.1f}"]
        print("| " + " | ".join([*row, f"{learnt_in:.0f}", f"{took:.1f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
