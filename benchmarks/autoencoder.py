"""Autoencoders side by side: what a step costs, what comes back of an image, and what a public classifier still reads of it.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/autoencoder.py --folder DATA                   # letters and Omniglot, 28x28
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/autoencoder.py --folder DATA --data colour     # Tiny ImageNet, 32x32
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/autoencoder.py --folder DATA --linear          # with and without the linear maps

Both kinds learn from the same public images, and are measured on those that every public stage holds out. `--mnist` also
measures them on MNIST's test images, read by a CNN that learnt MNIST's training images: a last check, nothing to tune on.
The cost of a step is the processor time of steps of 128 images that take turns in one process; `--steps 0` leaves the rest out.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato import config, sources
from sfumato.backbone import train_backbone
from sfumato.config import Latent
from sfumato.evaluation.classifier import classifier_of, predict
from sfumato.held_out import held_out
from sfumato.images import ImageSet, shape_of, to_unit
from sfumato.latents import Codec, pixel_spread, read_after, reconstruction_error, train_autoencoder
from sfumato.networks.autoencoder import ANCHORS, Shape, build_autoencoder, latent_shape
from sfumato.rehearsal import reading

OLD = {
    "letters": Latent(kind="kl", width=12, multipliers=(1, 2, 4), channels=2, steps=1200),
    "colour": Latent(kind="kl", width=16, multipliers=(1, 2, 4), channels=4, steps=1200),
}
"""The autoencoder of residual blocks at full size, with the settings that MNIST had."""
BESIDE: dict[str, tuple[str, int, int, int, tuple[int, ...]]] = {
    "shapes in colour": ("shapes", 28, 3, 6, (900, 2500)),
    "shapes in grey": ("shapes", 28, 1, 6, (900, 2500)),
    "letters": ("glyphs", 28, 1, 2, (900, 2500)),
    "photographs": ("{folder}/tiny-imagenet-32", 32, 3, 6, (900, 2500)),
    "shapes in colour, larger": ("shapes", 64, 3, 4, (1650,)),
}
"""For `--linear`: source, side, colours, channels of a latent for 4x4 pixels, and steps."""
TAUGHT, MEASURED = 20_000, 1000
"""For `--linear`: images that an autoencoder learns from, and held-out ones that it is measured on, at most."""
TIMED = 128
"""Images of a timed step."""


@dataclass(frozen=True)
class Trained:
    """A trained autoencoder and what it took."""

    codec: Codec
    seconds: float
    parameters: int


def main() -> None:
    """Time both kinds, train both, measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="", help="data folder, with omniglot, mnist and tiny-imagenet-32 below it")
    parser.add_argument("--data", choices=list(OLD), default="letters", help="public images (default: letters)")
    parser.add_argument("--size", type=int, default=0, help="side of the images (default: 28 and 32)")
    parser.add_argument("--only", choices=["kl", "patch"], help="train one kind alone")
    parser.add_argument("--steps", type=int, nargs="+", default=[], help="steps of kl, of patch (default: theirs)")
    parser.add_argument("--set", nargs="*", default=[], help="other settings of the new one, as width=48")
    parser.add_argument("--backbone-steps", type=int, default=2200, help="steps of the public classifier (0: none)")
    parser.add_argument("--glyphs", type=int, default=1500, help="letters of each character (default: 1500)")
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each kind (default: 5)")
    parser.add_argument("--mnist", action="store_true", help="also measure on MNIST's test images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--linear", action="store_true", help="the linear maps alone: what images lose with and without"
    )
    given = parser.parse_args()
    if given.linear:
        print_linear(given)
        return
    public = public_images(given)
    image: Shape = shape_of(to_unit(public.pixels[:1]))
    kinds = {"kl": OLD[given.data], "patch": changed(ANCHORS[max(image[1:]), image[0]], given.set)}
    for name, steps in zip(kinds, given.steps, strict=False):
        kinds[name] = kinds[name].model_copy(update={"steps": steps})
    print(
        f"{len(public):,} public images of {image[1]}x{image[2]}, {image[0]} channel(s); {torch.get_num_threads()} thread(s)\n"
    )
    print_costs(kinds, image, given.rounds)
    if given.steps and not any(given.steps):
        return
    withheld = held_out(public, given.seed).withheld
    x = to_unit(withheld.pixels)
    eyes = None
    if given.backbone_steps:
        settings = config.BackboneSettings(
            steps=given.backbone_steps, mirror=image[0] > 1, edge="reflection" if image[0] > 1 else "border"
        )
        eyes = train_backbone(settings, public, seed=given.seed).backbone
    reader = classifier_of(held_out(public, given.seed).learnt, seed=given.seed, device=torch.device("cpu"))
    wanted, seen = torch.from_numpy(withheld.labels), predict(reader, x).argmax(1)
    digits = mnist_reader(given.folder, image) if given.mnist else None
    print(f"\nheld out: {len(x):,} images, {pixel_spread(x):.3f} from their mean\n")
    head = [
        "kind",
        "parameters",
        "steps x batch",
        "CPU s",
        "error held out",
        "backbone reads before",
        "after",
        "of what a small CNN reads survives",
    ]
    head += ["error on MNIST", "read before", "after"] if digits else []
    print("| " + " | ".join(head) + " |\n| " + " | ".join(["---"] * len(head)) + " |")
    for name, settings in kinds.items():
        if given.only not in (None, name) or not settings.steps:
            continue
        result = trained(settings, public, given.seed)
        row = [f"{name} to {'x'.join(map(str, latent_shape(settings, image)))}", f"{result.parameters:,}"]
        row += [f"{settings.steps} x {settings.batch}", f"{result.seconds:.0f}"]
        row.append(f"{reconstruction_error(result.codec, x):.3f}")
        row += [f"{share:.4f}" for share in read_after(result.codec, eyes, x, withheld.labels)] if eyes else ["", ""]
        again = predict(reader, result.codec.decode(result.codec.encode(x))).argmax(1)
        row.append(f"{reading(wanted, seen, again).survives:.3f}")
        row += digits(result.codec) if digits else []
        print("| " + " | ".join(row) + " |", flush=True)


def print_linear(given: argparse.Namespace) -> None:
    """Errors of images, and of their colours alone, by autoencoders of as many steps without and with linear maps beside the convolutions."""
    print("| public images | pixels | steps | error without | with | of colours without | with |\n|" + " --- |" * 7)
    for name, (source, size, colours, channels, lengths) in BESIDE.items():
        reading = sources.Reading(part="train" if "/" in source else "all", size=size, channels=colours)
        public = sources.load(source.format(folder=given.folder), reading)
        some = torch.randperm(len(public), generator=torch.Generator().manual_seed(given.seed))[:TAUGHT].numpy()
        x = to_unit(public.pixels[some])
        for steps in lengths:
            how, errors = ANCHORS[28, 1].model_copy(update={"channels": channels, "steps": steps}), []
            for linear in (False, True):
                result = train_autoencoder(how.model_copy(update={"linear": linear}), x, seed=given.seed)
                shown = result.held_out[:MEASURED]
                off = result.codec.decode(result.codec.encode(shown)) - shown
                of_colours = off - off.mean(1, keepdim=True)
                errors.append([float(part.square().mean().sqrt()) for part in (off, of_colours)])
            cells = [
                f"{error:.3f}" if error else "" for error in (errors[n][part] for part in range(2) for n in range(2))
            ]
            print(f"| {name} | {size}x{size} | {steps:,} | {' | '.join(cells)} |", flush=True)


def public_images(given: argparse.Namespace) -> ImageSet:
    """What both kinds learn from."""
    if given.data == "colour":
        return sources.load(f"{given.folder}/tiny-imagenet-32", sources.Reading(part="train", size=given.size or 32))
    size = given.size or 28
    return sources.load(
        "omniglot+glyphs", sources.Reading(part="all", size=size, folder=given.folder, glyphs_per_class=given.glyphs)
    )


def changed(settings: Latent, changes: list[str]) -> Latent:
    """Other settings for trial."""
    pairs = [change.split("=", 1) for change in changes]
    return Latent.model_validate(settings.model_dump() | {name: value for name, value in pairs})


def print_costs(kinds: dict[str, Latent], image: Shape, rounds: int) -> None:
    """Median processor time of a step of `TIMED` images, kind by kind in turns, and how many times less than the first's."""
    networks = {name: build_autoencoder(settings, image) for name, settings in kinds.items()}
    x = torch.zeros(TIMED, *image)
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(rounds + 1):
        for name, network in networks.items():
            started = time.process_time()
            network(x, torch.zeros(TIMED, *latent_shape(kinds[name], image)))[0].square().mean().backward()
            if turn:  # the first round warms up
                taken[name].append(time.process_time() - started)
    first = statistics.median(taken["kl"])
    for name, times in taken.items():
        each = statistics.median(times)
        print(f"{name}: {each:.3f} CPU s a step of {TIMED} images, {first / each:.1f} times less than kl")


def trained(settings: Latent, public: ImageSet, seed: int) -> Trained:
    """Train one and take the time."""
    started = time.process_time()
    codec = train_autoencoder(settings, to_unit(public.pixels), seed=seed).codec
    seconds = time.process_time() - started
    return Trained(codec, seconds, sum(weights.numel() for weights in codec.network.parameters()))


def mnist_reader(folder: str, image: Shape) -> Callable[[Codec], list[str]]:
    """What to measure of a codec on MNIST's test images."""
    learnt, test = (
        sources.load("mnist", sources.Reading(part=part, size=image[1], folder=folder)) for part in ("train", "test")
    )
    reader = classifier_of(learnt, seed=0, device=torch.device("cpu"))
    x, y = to_unit(test.pixels), torch.from_numpy(test.labels)

    def right(shown: Tensor) -> float:
        return float((predict(reader, shown).argmax(1).cpu() == y).float().mean())

    def measured(codec: Codec) -> list[str]:
        after = right(codec.decode(codec.encode(x)))
        return [f"{reconstruction_error(codec, x):.3f}", f"{right(x):.4f}", f"{after:.4f}"]

    return measured


if __name__ == "__main__":
    main()
