"""What the recipe chooses for mean embeddings: of a generator that learns from them, and where drawn images are moved to them, at which price.

Not covered: pixels, and latents of more than `MOST_NUMBERS` numbers (docs/results/quality.md#moving-what-was-drawn), which stay as drawn.
"""

import math
from collections.abc import Iterator

from sfumato.config import Matching
from sfumato.methods import METHODS
from sfumato.methods.plan import Embedding, embedding_noise, matching, with_numbers
from sfumato.networks.autoencoder import latent_shape
from sfumato.recipe.ensemble import learns_from_paid
from sfumato.recipe.picks import Pick
from sfumato.recipe.stage_costs import Declared
from sfumato.settings import Settings

LATENT_GENERATOR = (
    Pick("method.frequencies", 3000, "latents of more numbers want more of them"),
    Pick("method.length_scales", (0.25, 0.5), "narrower kernels tell strokes apart"),
    Pick("method.training.batch", 1000, "a hundred of each of ten classes"),
    Pick("method.training.learning_rate", 1e-3, "slow and steady in latents"),
    Pick("method.training.ema_decay", 0.999, "over the last thousand steps"),
)
"""Settings of mean embeddings for latents, and why: from one stand-in of 28x28 digits."""
IMAGE_BESIDE = Pick("method.image", 0.2, "the classifier's layers do not see brightness, colour and contrast")
SLOWLY_IN_COLOUR = Pick("method.training.learning_rate", 1e-3, "larger steps leave glaring patterns in colour")
"""The same for perceptual features, from one stand-in in colour (docs/methods.md#dp-mepf)."""
GENERATOR_WIDTH = 1024
"""Width of an MLP that draws latents in one step. On that stand-in, after 2,500 steps, a CNN learnt .940 from width 512 and .948 from
1,024; from width 512 without any noise .947."""
FREQUENCIES = (3000, 1000, 300)
"""Numbers of frequencies to choose from: as many as leave the noise in an embedding no longer than `LONGEST`."""
LONGEST = 0.2
"""In lengths of an embedding of images that are all alike. With .36 on the digits scores rise by far, and to the eye the moves leave specks."""
MOST_NUMBERS = 128
"""Numbers of a latent up to which matching is taken: photographs of three times as many gained little by it."""


def latent_generator(how: Embedding, channels: int) -> tuple[Pick, ...]:
    """The settings of a generator of latents of images with so many channels: `LATENT_GENERATOR` for the features of a kernel, with which they were
    tried."""
    if how.features == "fourier":
        return LATENT_GENERATOR
    return (IMAGE_BESIDE, SLOWLY_IN_COLOUR) if channels > 1 else (IMAGE_BESIDE,)


def matching_of(settings: Settings, declared: Declared, epsilon: float, share: float) -> Iterator[Pick]:
    """The settings of matching, at a share of the target `epsilon` for its price; none for a method whose images cannot move."""
    method, facts = METHODS[settings.method.name], declared.facts
    if not (method.images_may_move(settings) or learns_from_paid(settings, declared)):
        return
    if settings.latent.kind == "none":
        yield Pick("matching.share", 0.0, "pixels that move keep specks: of latents the decoder makes clean strokes")
        return
    if (numbers := math.prod(latent_shape(settings.latent, declared.shape))) > MOST_NUMBERS:
        yield Pick("matching.share", 0.0, f"{numbers} numbers: matching brought little to more than {MOST_NUMBERS}")
        return
    each = facts.records / len(facts.classes)
    if not share:
        yield Pick("matching.share", share, f"{each:.0f} records in a class are few")
        return
    privacy = with_numbers(settings.privacy, epsilon, facts.records)
    (spend,) = matching(Matching(share=share), privacy)
    noise = spend.event.model_dump()["noise_multiplier"]
    for frequencies in FREQUENCIES:
        length = embedding_noise(Matching(frequencies=frequencies), each, noise)
        if length <= LONGEST:
            price = f"epsilon {share * epsilon:.2f} by itself"
            yield Pick(
                "matching.share", round(share, 4) or share, f"{price}: drawn images move to where their class lies"
            )
            yield Pick(
                "matching.frequencies", frequencies, f"of an embedding of {each:.0f} records {length:.2f} is noise"
            )
            return
    yield Pick("matching.share", 0.0, f"{each:.0f} records in a class: their mean embedding would be noise")
