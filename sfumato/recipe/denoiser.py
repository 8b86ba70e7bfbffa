"""What the recipe chooses for the public denoiser: the kind of network, and its width and depth by the kind.

Not covered: sizes of latents beyond those of docs/results/quality.md#denoisers-at-equal-processor-time.
"""

import math
from collections.abc import Iterator

from sfumato.methods import METHODS
from sfumato.networks.autoencoder import Shape, latent_shape
from sfumato.networks.build import resolved
from sfumato.recipe.embedding import GENERATOR_WIDTH
from sfumato.recipe.picks import Pick
from sfumato.recipe.stage_costs import Declared
from sfumato.settings import Settings

WIDTHS = ((64, 192, 2), (128, 384, 3), (256, 512, 4), (512, 640, 4), (math.inf, 768, 4))
"""Numbers in an image or latent up to which an MLP has this width and this many blocks."""
OF_LATENTS = (512, 4)
"""Smallest width of an MLP for latents, and its blocks."""
MLP_UP_TO, UNET_UP_TO = 128, 8
"""Numbers of a latent up to which an MLP does on a CPU, and positions a side up to which a U-Net does; above, a transformer over positions
(docs/results/quality.md#denoisers-at-equal-processor-time)."""
UNET: dict[str, int | float] = {"batch": 32, "learning_rate": 2e-3, "warm_up": 50, "ema_decay": 0.998}
"""Public training of a U-Net on a CPU: many small steps."""
THREE_LEVELS_FROM = 16
"""Side from which a U-Net halves it twice: the smallest maps are then of 4x4 or more."""
UNET_WIDTHS = {8: 64, 256: 32}
"""Channels of a U-Net, by the positions a side up to which they hold."""
DIT, DIT_BATCH = {"cpu": (64, 4), "gpu": (256, 6)}, {"cpu": 64, "gpu": 256}
"""Width and blocks of a transformer that takes each position by itself, and images in a public step."""
DIT_RATE = 1e-3
"""Learning rate of a transformer."""
TOKENS, DIT_OF_SQUARES = 16, (128, 6)
"""Squares of positions that a transformer on a CPU takes one by one, where the latent divides into so many; and its width and blocks then."""


def denoiser(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """The kind of network; each kind has sizes of its own."""
    shape = latent_shape(settings.latent, declared.shape)
    numbers = math.prod(shape)
    if settings.latent.kind == "none":
        yield Pick("network.kind", "mlp", f"{numbers} numbers: an MLP does most with a second of a CPU")
        return
    if METHODS[settings.method.name].embeds:
        yield Pick(
            "network.kind",
            "mlp",
            f"{numbers} numbers in one step: an MLP sees them all, and is asked thousands of times",
        )
        return
    cpu = settings.recipe.device == "cpu"
    kind = "mlp" if numbers <= MLP_UP_TO and cpu else "unet" if max(shape[1:]) <= UNET_UP_TO and cpu else "dit"
    reasons = {
        "mlp": "an MLP does most with a second of a CPU",
        "unet": "convolutions learn for all positions at once what an MLP learns for each",
        "dit": "a transformer learns for all positions at once what an MLP learns for each",
    }
    yield Pick("network.kind", kind, f"{numbers} numbers: {reasons[kind]}")
    yield Pick("network.prediction", "velocity", "well scaled where nearly all is noise")


def denoiser_size(settings: Settings, declared: Declared) -> Iterator[Pick]:
    """Width and depth by the kind."""
    shape = latent_shape(settings.latent, declared.shape)
    network, numbers = resolved(settings.network, shape[1]), math.prod(shape)
    if network.kind == "mlp":
        width, blocks = next((width, blocks) for most, width, blocks in WIDTHS if numbers <= most)
        if settings.latent.kind != "none":
            least, blocks = OF_LATENTS
            width = max(width, GENERATOR_WIDTH if METHODS[settings.method.name].embeds else least)
        yield Pick("network.width", width, f"for {numbers} numbers")
        yield Pick("network.blocks", blocks, f"for {numbers} numbers")
        return
    if network.kind == "dit":
        width, blocks = DIT[settings.recipe.device]
        side = math.isqrt(shape[1] * shape[2] // TOKENS)
        if settings.recipe.device == "cpu" and side > 1 and not (shape[1] % side or shape[2] % side):
            width, blocks = DIT_OF_SQUARES
            yield Pick(
                "network.patch",
                side,
                f"squares of {side}x{side} positions: fewer and wider products learn more in a CPU second",
            )
        yield Pick("network.width", width, f"a transformer that a {settings.recipe.device.upper()} bears")
        yield Pick("network.blocks", blocks, f"a transformer that a {settings.recipe.device.upper()} bears")
        yield Pick("pretraining.batch", DIT_BATCH[settings.recipe.device], "smaller steps, and more of them")
        yield Pick("pretraining.learning_rate", DIT_RATE, "a transformer bears less than an MLP")
        return
    width = next(width for side, width in UNET_WIDTHS.items() if max(shape[1:]) <= side)
    yield Pick("network.width", width, f"a {network.kind} that a CPU bears")
    yield Pick("network.blocks", 1, f"a {network.kind} that a CPU bears")
    if network.kind == "unet" and settings.latent.kind != "none":
        for name, value in UNET.items():
            yield Pick(f"pretraining.{name}", value, "convolutions want many small steps")
    yield Pick("network.multipliers", levels(shape), f"levels for {shape[1]}x{shape[2]}")


def levels(shape: Shape) -> tuple[int, ...]:
    """Multiples of a U-Net's width, level by level, for images or latents of this shape."""
    _, height, width = shape
    if max(height, width) <= UNET_UP_TO or height % 2 or width % 2:
        return (1,)
    return (1, 2) if height % 4 or width % 4 or height < THREE_LEVELS_FROM else (1, 2, 2)


def over_positions(settings: Settings, declared: Declared) -> bool:
    """Whether the network is a U-Net or a transformer, and no MLP."""
    return resolved(settings.network, declared.shape[1]).kind in ("unet", "dit")
