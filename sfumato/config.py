"""Settings that say *what* is done. Frozen, checked, hashed into cache keys, cards and the ledger.

A method adds one section of its own (`sfumato.methods`). *How fast* is `Machine`, which never changes the meaning of a
result and is never hashed; *where* (stores, URLs) is read from the environment by the tasks alone.
"""

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sfumato.data_settings import AUTO_WINDOW as AUTO_WINDOW
from sfumato.data_settings import RECORD_WINDOW as RECORD_WINDOW
from sfumato.data_settings import Columns as Columns
from sfumato.data_settings import Constants as Constants
from sfumato.data_settings import Crop as Crop
from sfumato.data_settings import Data as Data
from sfumato.data_settings import Decoding as Decoding
from sfumato.data_settings import Slices as Slices
from sfumato.data_settings import Source
from sfumato.data_settings import window_bounds as window_bounds
from sfumato.marks import (
    COMPARING,
    JUDGE_TRAINING,
    MEASURING,
    OF_EACH_CLASS,
    PROTOTYPES,
    REHEARSING,
    SUMMING,
    TAKING_MOMENTS,
    not_for,
)
from sfumato.network_settings import Network as Network
from sfumato.section import LATER as LATER
from sfumato.section import NOT_HASHED as NOT_HASHED
from sfumato.section import Section as Section

Relation = Literal["add_remove", "replace_one"]
"""How neighbouring data sets differ: one record more or less, or one record exchanged. Never mixed inside one number."""
ParameterGroup = Literal["rows", "film", "attention", "time", "rest"]
"""Named parts of a denoiser: class rows, feature-wise modulation, attention, the network on the time, everything else."""

Clipping = Literal["flat", "per_group", "automatic"]
"""How a record's gradient is scaled down; its contribution has a norm of at most `clip` under each rule."""

Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


AUTO: Any = "auto"
"""A number that is yet to be worked out from that of the records."""
SEEDS = 2**31
"""A seed lies below it, as every library takes them."""
MOST_MINUTES = 100_000.0
"""Longest time of a recipe, ten weeks; nothing in its table is worth more."""
LEAST_GAMMA = 1e-12
"""Smallest stability constant of automatic clipping. The square of a number below some 1e-23 is 0 in float32, and what looks like no gradient at all is
scaled by clip / gamma."""
LONGEST_REASON = 500


def _delta(value: Any) -> Any:
    """Check a number inside its bounds, or `auto`; the error is one line, which that of a union of types would not be."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value != AUTO and not (number and 0 < value < 1):
        raise PydanticCustomError(
            "delta", "give a number above 0 and below 1, or auto for one from the number of records"
        )
    return value


def _count(value: Any) -> Any:
    """Check a whole number, or `auto`, in one line."""
    if value != AUTO and not (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        raise PydanticCustomError("count", "give a whole number, 0 or more, or auto for one from the number of records")
    return value


if TYPE_CHECKING:
    # Which they are wherever anything is computed: only the preflight meets `auto`.
    Delta = float
    Count = int
else:
    Delta = Annotated[float | Literal["auto"], BeforeValidator(_delta)]
    Count = Annotated[int | Literal["auto"], BeforeValidator(_count)]


class Privacy(Section):
    """The promise to be kept."""

    epsilon: float = Field(default=10.0, gt=0)
    """Target epsilon of the whole release under `relation`, by the PLD accountant; `inf` runs without noise, to see what noise costs, and all of
    it is INTERNAL."""
    delta: Delta = AUTO
    """Target delta, above 0 and below 1, or `auto`, which a plan works out: the delta of the budget that binds the set, else records to the power of
    `delta_exponent`."""
    delta_exponent: float = Field(default=-1.1, lt=-1)
    """Exponent of the delta that `auto` takes; below -1, so that it is below one over the number of records."""
    relation: Relation = "add_remove"
    """How neighbouring data sets differ."""
    reason: Annotated[str, Field(max_length=LONGEST_REASON), NOT_HASHED] = ""
    """The reason for an epsilon above 50, which is refused without one; goes into the ledger and the card."""
    public_because: Annotated[str, Field(max_length=LONGEST_REASON), NOT_HASHED] = ""
    """Why weights from elsewhere (`network.from`, `latent.from`) count as public, which are refused without it: source, licence, and that no
    private record was in their training; goes into the ledger and the card."""


class Schedule(Section):
    """Diffusion noise (Ho et al. 2020; Nichol and Dhariwal 2021; Karras et al. 2022)."""

    kind: Literal["linear", "cosine", "scaled_linear", "edm"] = "linear"
    """Shape of the noise schedule; `scaled_linear`: betas linear in their roots, as latent diffusion has them (Rombach et al. 2022); `edm`: noise
    levels relative to the signal from `sigma_min` to `sigma_max`, whose `rho`-th roots are evenly spaced (Karras et al. 2022, Eq. 5)."""
    timesteps: int = Field(default=1000, ge=2)
    """Number of diffusion times T."""
    beta_start: float = Field(default=1e-4, gt=0, lt=1)
    """First beta of the linear schedules."""
    beta_end: float = Field(default=0.02, gt=0, lt=1)
    """Last beta of the linear schedules."""
    cosine_offset: float = Field(default=0.008, ge=0)
    """Offset s of the cosine schedule."""
    beta_max: float = Field(default=0.999, gt=0, lt=1)
    """Largest beta of the cosine schedule."""
    sigma_min: Annotated[float, Field(ge=1e-3), LATER] = 0.002
    """Noise relative to the signal at the first time of the `edm` schedule; below .001 signal levels in float32 would not tell it from none."""
    sigma_max: Annotated[float, Field(gt=0, allow_inf_nan=False), LATER] = 80.0
    """Noise relative to the signal at the last time of the `edm` schedule."""
    rho: Annotated[float, Field(ge=1, allow_inf_nan=False), LATER] = 7.0
    """Root by which the `edm` schedule is evenly spaced: more puts more times at small noise."""
    law: Annotated[Literal["uniform", "lognormal"], LATER] = "uniform"
    """How often training draws each time: all alike, or so that the logarithm of the noise relative to the signal is normal (Karras et al. 2022,
    section 5). For public and private training; what trains some of the times alone keeps the proportions among them."""
    law_mean: Annotated[float, Field(allow_inf_nan=False), LATER] = -1.2
    """Mean of that logarithm for `lognormal` (P_mean)."""
    law_spread: Annotated[float, Field(gt=0, allow_inf_nan=False), LATER] = 1.2
    """Standard deviation of that logarithm for `lognormal` (P_std)."""

    @model_validator(mode="after")
    def _rising(self) -> Self:
        """Noise levels rise with time."""
        if self.sigma_min >= self.sigma_max:
            raise PydanticCustomError("sigma", "schedule.sigma_max must be above schedule.sigma_min")
        return self


class Latent(Section):
    """Diffusion on latents of an autoencoder that saw public images alone (Rombach et al. 2022) in place of pixels."""

    kind: Literal["none", "kl", "patch"] = "none"
    """`none`: the denoisers work on pixels; `kl`: on latents of a convolutional autoencoder with a normal posterior; `patch`: on those
    of one that first turns squares of pixels into channels and convolves at the small size alone, several times faster."""
    patch: Annotated[int, Field(ge=2, le=16), LATER] = 4
    """For `patch`: side in pixels of the squares that become one position each, before `multipliers` halve any further."""
    linear: Annotated[bool, LATER] = False
    """Whether a linear map lies beside the convolutions of either half and begins at the principal components of the public images:
    colours are there from the first step on. Of grey images, strokes above all, convolutions alone make latents that class moments suit better."""
    channels: int = Field(default=3, ge=1)
    """Channels of a latent."""
    width: int = Field(default=16, ge=1)
    """Channels of the autoencoder's first level."""
    multipliers: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 2), min_length=1)
    """Channels of each level in units of `width`; each level after the first halves the side."""
    blocks: int = Field(default=1, ge=1)
    """Residual blocks per level."""
    attention: tuple[int, ...] = ()
    """Sides in pixels at which the autoencoder attends over positions."""
    loss: Literal["l1", "l2"] = "l1"
    """Error of a reconstructed pixel: absolute or squared difference."""
    kl_weight: float = Field(default=1e-3, ge=0)
    """Weight of the posterior's divergence from a standard normal, against the sum of the pixels' errors; more makes latents
    smoother and images blunter."""
    perceptual: Annotated[float, Field(ge=0, allow_inf_nan=False), LATER] = 0.0
    """Weight of the distance between an image and its reconstruction in the features of the public backbone, 1 between two public
    images on average, against the mean error of a pixel; 0 leaves it out, and the backbone with it."""
    bound: float = Field(default=1.5, gt=0)
    """Largest root mean square of a record's scaled latent, which is about 1 on public images; a longer one is scaled down. A
    constant, so that a mechanism which adds noise to latents knows their largest norm beforehand."""
    steps: int = Field(default=1000, ge=1)
    """Optimiser steps."""
    batch: int = Field(default=128, ge=1)
    """Images per step."""
    learning_rate: float = Field(default=5e-3, gt=0)
    """Peak learning rate of Adam."""
    from_: Annotated[Source, Field(alias="from"), NOT_HASHED] = ""
    """Folder of a public autoencoder from elsewhere, as diffusers keeps it (`AutoencoderKL`, `AutoencoderTiny` or `VQModel`), in place of
    one trained here; needs `privacy.public_because`. Its shape then follows from the folder, and nothing of it is trained."""
    config: Annotated[str, LATER] = ""
    """The settings of that autoencoder, as its folder has them; filled in."""
    weights: Annotated[str, LATER] = ""
    """Digest of that folder (SHA-256); filled in."""


class BackboneSettings(Section):
    """A classifier of the public images, whose last features serve autoencoders, rehearsals, scores and the paid judge."""

    width: int = Field(default=32, ge=8, multiple_of=8)
    """Channels of the first convolutions; the next have twice, the last four times as many. There are 16 `width` features."""
    steps: int = Field(default=2200, ge=1)
    """Optimiser steps."""
    batch: int = Field(default=128, ge=2)
    """Images per step, each shown under a random affine map."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Peak learning rate of Adam."""
    rotation: float = Field(default=0.25, ge=0)
    """Largest rotation, radians."""
    shear: float = Field(default=0.25, ge=0)
    """Largest shear, as the tangent of its angle."""
    scale: float = Field(default=0.2, ge=0, lt=1)
    """Largest relative change of size, of each axis by itself."""
    shift: float = Field(default=0.125, ge=0)
    """Largest shift, as a share of the side."""
    mirror: bool = False
    """Also shows images mirrored left to right: right for photographs, wrong for characters."""
    edge: Literal["border", "reflection"] = "border"
    """What moves in from outside an image: its border drawn out, which suits one ground, or its reflection, which suits photographs."""


class Judge(Section):
    """A linear classifier of the private classes on the backbone's features, paid for, that labels, chooses or guides what is drawn."""

    use: Annotated[Literal["none", "relabel", "weigh", "filter", "guide"], not_for(JUDGE_TRAINING)] = "none"
    """`relabel` gives each image the judge's class, `weigh` the likelier one of that and the class it was drawn for, `filter` draws more and
    keeps the surest of each class (its own, where it sees next to nothing of those drawn for), `guide` draws by its gradient as well."""
    share: Annotated[float, not_for(JUDGE_TRAINING)] = Field(default=0.1, gt=0, lt=1)
    """Share of the target epsilon that it may cost by itself; together with the rest it costs less."""
    steps: int = Field(default=60, ge=2)
    """Full-batch gradients."""
    directions: int = Field(default=64, ge=1)
    """Principal directions of the public features that it sees."""
    scale: float = Field(default=20.0, gt=0)
    """Factor on its logits, since the features have norm 1."""
    learning_rate: float = Field(default=1.0, gt=0)
    """Step along the mean clipped gradient; less suits a small epsilon, more a large one."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the last step's velocity that is kept."""
    keep: Annotated[float, not_for(JUDGE_TRAINING)] = Field(default=0.8, ge=0.1, lt=1)
    """For `filter`: share of the drawn images that is kept. Less takes longer to draw and varies less."""
    pull: Annotated[float, not_for(JUDGE_TRAINING)] = Field(default=1.0, gt=0)
    """For `guide`: weight of the judge's gradient; more reads better and varies less."""


class Alignment(Section):
    """Moment alignment: noisy means and covariances of the private classes map their images to the public images' space, where a method
    trains and draws (`sfumato.alignment`)."""

    kind: Literal["none", "moments"] = "none"
    """`moments`: count, mean and covariance of each class, noised and paid for with everything else. The method of that name needs nothing
    else and pays with all there is."""
    share: Annotated[float, not_for(MEASURING, TAKING_MOMENTS)] = Field(default=0.15, gt=0, le=1)
    """Share of `privacy.epsilon` that the moments may cost by themselves; 1 takes all that the other queries leave."""
    proportions: Annotated[tuple[Positive, Positive, Positive], not_for(MEASURING, TAKING_MOMENTS)] = (2.0, 1.0, 1.0)
    """Noise on the counts, means and covariances, in proportion to one another, each relative to what one record adds. Chosen on
    a stand-in (`benchmarks/moments.py`): fewer good counts are needed than good covariances."""
    clusters: Annotated[int, not_for(TAKING_MOMENTS)] = Field(default=1, ge=1, le=256)
    """Cells of each class, one for each so many centroids of the public images, with a count and a mean each; the covariance is the
    class's."""
    quantile: Annotated[float, not_for(TAKING_MOMENTS)] = Field(default=0.9, gt=0, le=1)
    """Of the public images' distances from their mean: no private image's counts as more."""
    residual: Annotated[float, not_for(TAKING_MOMENTS)] = Field(default=0.7, gt=0, le=1)
    """Longest distance from the mean of a class that counts for its covariance, as a share of that; where a histogram of `distances` says
    little, or there is none."""
    distances: Annotated[Share, not_for(MEASURING, TAKING_MOMENTS)] = 4.0
    """Noise on a histogram of how far records lie from the means of their classes, in proportion to that of `proportions`; 0: there is none.
    A class far from the public images, and narrow, then needs much less noise on its covariance."""
    inside: Annotated[float, not_for(MEASURING)] = Field(default=0.7, gt=0, lt=1)
    """Share of the records that lie within the distance which that histogram gives: what lies farther out is brought to it."""
    cells: Annotated[int, not_for(MEASURING)] = Field(default=1, ge=1, le=256)
    """Cells of each class that noised k-means finds among its own records, in `rounds`; `clusters` takes those of the public images instead."""
    rounds: Annotated[int, not_for(MEASURING, TAKING_MOMENTS)] = Field(default=3, ge=1, le=20)
    """Rounds of k-means for `cells`, each paid for; they start from draws out of each class's covariance."""
    refining: Annotated[Positive, not_for(MEASURING, TAKING_MOMENTS)] = 2.0
    """Noise on the sums of a round, in proportion to that of `proportions`."""

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if self.cells > 1 and self.clusters > 1:
            raise ValueError(
                f"clusters = {self.clusters} are cells of the public images and cells = {self.cells} of the private ones: set one of them to 1"
            )
        return self


class Training(Section):
    """Training of the denoiser without clipping and noise."""

    steps: int = Field(default=6000, ge=0)
    """Optimiser steps."""
    batch: int = Field(default=256, ge=1)
    """Images per step."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak learning rate of Adam."""
    warm_up: int = Field(default=100, ge=0)
    """Steps over which the learning rate rises."""
    final_rate: float = Field(default=0.05, ge=0, le=1)
    """Share of the peak learning rate at the last step."""
    ema_decay: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the moving average of the weights."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False), LATER] = 0.0
    """Share of each weight, times the learning rate, that a step takes off beside Adam's (Loshchilov and Hutter 2019)."""


class Pretraining(Training):
    """Training of the denoiser on public images."""

    label_dropout: float = Field(default=0.1, ge=0, le=1)
    """Share of images shown without their class, so that the null row (the mean of the rows) is learnt too."""


class Selection(Section):
    """Selection of public classes: the public denoiser learns from those alone that private records vote for (Li et al. 2024, PrivImage)."""

    classes: int = Field(default=0, ge=0)
    """Public classes that are kept; 0 keeps all, and asks nothing."""
    sources: Annotated[int, LATER] = Field(default=0, ge=0)
    """Sources of a public mixture that are kept, in the place of classes: 1 of `glyphs+shapes`, say; 0 keeps all, and asks nothing."""
    clusters: Annotated[Count, LATER] = 0
    """Clusters of public images that look alike, among which private records vote in the place of classes; images of those that stand out of the noise are kept,
    and of a drawn source more are drawn like them. `auto` takes as many as the records can tell apart; 0 keeps all, and asks nothing."""
    threshold: Annotated[float, LATER] = Field(default=4.0, ge=0)
    """For `clusters`: votes that one needs to win, in standard deviations of their noise. With a low one noise wins."""
    candidates: Annotated[int, LATER] = Field(default=200_000, ge=0)
    """For `clusters`: further images, at most, that a drawn source (`glyphs`, `shapes`) draws in search of images of the winners."""
    share: float = Field(default=0.05, gt=0, lt=1)
    """Share of `privacy.epsilon` that the votes may cost by themselves; together with the rest they cost less."""

    @property
    def takes_votes(self) -> bool:
        """Whether private records vote."""
        return self.classes > 0 or self.sources > 0 or self.clusters != 0

    @property
    def options(self) -> str:
        """What they vote for."""
        return "clusters" if self.clusters else "sources" if self.sources else "classes"


class Central(Section):
    """Central images: noisy means of private images, on which the denoiser warms up by plain training before DP-SGD (Li et al. 2025)."""

    images: int = Field(default=0, ge=0, le=256)
    """Central images of each class; 0 leaves them out."""
    of: Literal["cells", "samples"] = "cells"
    """Means of what: `cells`, of the private images nearest to each of so many centroids of the public images, where a record lies in one; `samples`,
    of so many Poisson samples of each class, where a record may lie in several and pays for each."""
    sample_rate: float = Field(default=0.5, gt=0, le=1)
    """For `samples`: probability that a record takes part in one."""
    share: float = Field(default=0.1, gt=0, lt=1)
    """Share of `privacy.epsilon` that they may cost by themselves; together with the rest they cost less."""
    since: float = Field(default=0.5, ge=0, lt=1)
    """Earliest time that the warm-up trains, as a share of T: what a mean lacks is seen at the times below."""
    steps: int = Field(default=200, ge=1)
    """Optimiser steps of the warm-up, on the groups of parameters that DP-SGD trains."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate of Adam."""


class Matching(Section):
    """Matching: drawn images move until each class of them has the noisy mean embedding of the private class, which is paid once (`sfumato.matching`)."""

    share: Annotated[float, not_for(SUMMING)] = Field(default=0.0, ge=0, lt=1)
    """Share of `privacy.epsilon` that the mean embeddings may cost by themselves; together with the rest they cost less. 0 leaves images as drawn."""
    frequencies: int = Field(default=3000, ge=1)
    """Random frequencies; each gives two features. More come nearer to the kernel, and need more records in a class to stand out from the noise."""
    length_scales: tuple[float, ...] = Field(default=(0.2, 0.4, 0.8), min_length=1)
    """Widths of the Gaussian kernels, in units of the root of the numbers of an image or latent; public. Narrow ones tell strokes apart, wide
    ones fetch what lies far away."""
    count_share: float = Field(default=0.05, gt=0, lt=1)
    """Share of a record's squared norm that counts it in its class."""
    steps: Annotated[int, not_for(SUMMING)] = Field(default=60, ge=1)
    """Steps that the images move."""
    step: Annotated[float, not_for(SUMMING)] = Field(default=0.08, gt=0)
    """Length of the first step of each number, by Adam."""
    at_once: Annotated[int, not_for(SUMMING)] = Field(default=1000, ge=1)
    """Frequencies that a step looks at."""


class FineTuning(Section):
    """DP-SGD on private images."""

    trainable: tuple[ParameterGroup, ...] = Field(default=("rows", "film"), min_length=1)
    """Groups of parameters that learn and carry noise, the others stay as pretrained: class rows, modulation by class and time (`film`), attention, the network on the time, all else (`rest`)."""
    rank: int = Field(default=0, ge=0)
    """Above 0, linear layers of those groups learn through low-rank adapters of this rank and are frozen themselves."""
    steps: int = Field(default=150, ge=1)
    """Noisy steps."""
    sample_rate: float = Field(default=0.5, gt=0, le=1)
    """Probability that a record takes part in a step (Poisson sampling)."""
    batch: int = Field(default=0, ge=0)
    """Expected number of records in a step; sets `sample_rate` where it is not 0."""
    draws: int = Field(default=4, ge=1)
    """Noised copies K of each record, averaged before clipping."""
    images_per_group: int = Field(default=4, ge=1)
    """Where records have groups: how many of a group's a step looks at, drawn at random; K copies of each are averaged."""
    clip: float = Field(default=0.05, gt=0)
    """Largest l2 norm that one record contributes."""
    clipping: Clipping = "flat"
    """`flat` clips the whole gradient, `per_group` each group of parameters to clip / sqrt(number of groups), `automatic` scales
    every gradient to nearly clip. All three cost the same."""
    clipping_gamma: float = Field(default=0.01, ge=LEAST_GAMMA)
    """Gradients with a norm well below this keep their relative sizes under `automatic` clipping."""
    checked: float = Field(default=0.02, ge=0, le=1)
    """Share of the steps, and never fewer than 5, in which what one record adds is computed again beside other records; training
    stops where it changed (`sfumato.privacy.engine.spot_check`)."""
    rate_rows: float = Field(default=3e-2, gt=0)
    """Learning rate of the class rows."""
    rate_other: float = Field(default=3e-3, gt=0)
    """Learning rate of all other trained parameters."""
    warm_up: int = Field(default=10, ge=0)
    """Steps over which the learning rates rise."""
    final_rate: float = Field(default=0.1, ge=0, le=1)
    """Share of the peak learning rates at the last step."""
    ema_decay: float = Field(default=0.97, ge=0, lt=1)
    """Decay of the moving average of the weights, from which images are drawn."""
    averages: Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], LATER] = ()
    """Decays of further moving averages of the same steps, which cost nothing more: kept beside the model and scored (INTERNAL). Images are drawn from that of
    `ema_decay`, whatever the scores say; another choice is for the next private set."""
    rates: Annotated[tuple[Positive, ...], Field(max_length=4), LATER] = ()
    """Candidates for the learning rates, 2 to 4 factors on both, such as `[0.3,1,3]`: each trains a model of its own, paid for in full, and
    private records vote, with noise, for the one that is kept. Empty trains once, at the rates above."""
    rates_share: Annotated[float, Field(gt=0, lt=1), LATER] = 0.05
    """Share of `privacy.epsilon` that those votes may cost by themselves; together with the rest they cost less."""

    @property
    def trainings(self) -> int:
        """Number of models that are trained and paid for."""
        return max(1, len(self.rates))

    def at(self, factor: float) -> Self:
        """The settings of one candidate: the learning rates times a factor."""
        rates = {"rate_rows": factor * self.rate_rows, "rate_other": factor * self.rate_other}
        return self.model_copy(update={"rates": (), **rates})


class Hamiltonian(Section):
    """Sampling by Hamiltonian dynamics (Liu et al. 2024, Algorithm 2), for methods whose network is a score."""

    iterations: int = Field(default=40, ge=1)
    """M: how often momentum is drawn anew."""
    steps: int = Field(default=3, ge=1)
    """N: leapfrog steps of an iteration, after which a Metropolis test keeps or undoes them."""
    step_size: float = Field(default=0.025, gt=0)
    """lambda_0, the last iteration's leapfrog step; iteration m takes (M / m)^2 times that. Where the score is known at several
    noise levels, N steps of half the level are about a quarter of an oscillation, which forgets most."""
    start: float = Field(default=5.0, gt=0)
    """Standard deviation of the noise that sampling starts from, on images in [-1, 1], and the largest noise level."""
    noise: float = Field(default=0.05, gt=0)
    """Where the score is known at several noise levels: that of the last iteration. Iteration m takes (M / m)^2 times that, at
    most `start`, and its step in proportion."""
    momentum: Literal["gaussian", "rayleigh", "uniform"] = "gaussian"
    """What momenta are drawn from (section 5.3); only with `gaussian` are the images of the network's own density."""
    metropolis: bool = True
    """False keeps all steps, which the paper allows where they are many."""


class Generation(Section):
    """How images are drawn."""

    images: Annotated[int, not_for(PROTOTYPES)] = Field(default=2000, ge=1)
    """Number of images, over the classes as `classes` says."""
    classes: Annotated[Literal["uniform", "declared", "queried"], LATER, OF_EACH_CLASS] = "uniform"
    """How many images of each class: `uniform`, as many of each; `declared`, in the proportions of `shares`, which the custodian
    vouches to be public knowledge; `queried`, in those of the private records, counted with noise and paid for (`count_noise`)."""
    shares: Annotated[dict[str, Share], LATER, OF_EACH_CLASS] = Field(default={})
    """For `declared`: a share or a count for each class, by its name, or by its position from 0 on where no class is called so. Only the
    proportions count; a class that is left out gets no image."""
    count_noise: Annotated[float, Field(gt=0, allow_inf_nan=False), LATER, OF_EACH_CLASS] = 10.0
    """For `queried`: standard deviation of the noise on the number of records of each class, in records (or groups). Less costs more."""
    largest_share: Annotated[float, Field(gt=0, le=1), LATER, OF_EACH_CLASS] = 1.0
    """For `queried`: the largest share of the images that a class may get, whatever the counts say; the rest goes to the others. A
    sampler that pays for the images of each class pays for as many of one."""
    edition: Annotated[int, not_for(REHEARSING, PROTOTYPES, COMPARING)] = Field(default=0, ge=0)
    """Number of this set among those drawn with the same settings; another number draws other images."""
    steps: int = Field(default=100, ge=1)
    """Sampling steps for the whole way from T to 0."""
    solver: Literal["ddim", "dpm++", "ddpm", "pndm", "heun"] = "ddim"
    """`ddim` (Song et al. 2021); `dpm++`: DPM-Solver++(2M) (Lu et al. 2022), made for few steps; `pndm` (Liu et al. 2022), without
    randomness; `ddpm`: ancestral sampling (Ho et al. 2020), made for many steps; `heun` (Karras et al. 2022, Algorithm 2), which asks the network
    twice in each step but the last and with `churn` adds noise on the way."""
    eta: float = Field(default=1.0, ge=0, le=1)
    """0: deterministic; 1: the variance of ancestral sampling; for `ddim` and `dpm++`."""
    churn: Annotated[float, Field(ge=0, allow_inf_nan=False), LATER] = 0.0
    """For `heun`: how much noise all steps together add, over their number by how much each raises the noise level, as a share of it (S_churn);
    0 is deterministic."""
    churn_from: Annotated[float, Field(ge=0, allow_inf_nan=False), LATER] = 0.05
    """For `heun`: smallest noise relative to the signal at which a step adds noise (S_tmin)."""
    churn_to: Annotated[float, Field(ge=0, allow_inf_nan=False), LATER] = 50.0
    """For `heun`: largest noise relative to the signal at which a step adds noise (S_tmax)."""
    early_steps: int = Field(default=0, ge=0)
    """Steps of the public walk from T to the query, where a method retrieves; 0 takes their share of `steps`."""
    late_steps: int = Field(default=0, ge=0)
    """Steps of the walk that goes on from what was retrieved; 0 takes their share of `steps`."""
    redraw: Annotated[float, not_for(REHEARSING, PROTOTYPES)] = Field(default=0.1, gt=0, le=1)
    """Time, as a share of T, to which a prototype is noised before the public model draws an image from it, where a method draws
    from prototypes; more varies more and keeps less."""
    refine: Annotated[float, Field(ge=0, le=1), LATER] = 0.0
    """Time, as a share of T, to which whatever was drawn is noised once more, and from which the public model, asked for no class, denoises it
    (Meng et al. 2022): it closes broken strokes and takes specks away. More takes images nearer to the public ones, and farther from
    their class. Costs no epsilon."""
    refine_steps: Annotated[int, Field(ge=1), LATER] = 10
    """Sampling steps of that way back."""
    vary: Annotated[float, Field(ge=0, le=0.5), LATER, OF_EACH_CLASS] = 0.0
    """How far each drawn image is turned, slanted, scaled and shifted at random (`sfumato.variation`), where any number of images is covered: what
    learns from them then sees more than was drawn. Largest angle in radians; the others follow from it. Costs no epsilon."""
    guidance: float = Field(default=0.5, ge=0)
    """Weight w of classifier-free guidance; more reads better and varies less."""
    hamiltonian: Hamiltonian = Hamiltonian()
    """In place of all the others but `images`, for a method that draws by Hamiltonian dynamics."""

    @field_validator("shares", mode="before")
    @classmethod
    def _named(cls, shares: Any) -> Any:
        """YAML reads a class that is called 3 as a number."""
        return {str(name): share for name, share in shares.items()} if isinstance(shares, Mapping) else shares


FEWEST_JUDGED = 6
"""The fewest images that can be judged: one more than the neighbours that each is compared with (`sfumato.evaluation.scores`)."""


class Evaluation(Section):
    """How the result is judged. Scores against private images are INTERNAL."""

    images: Annotated[int, not_for(PROTOTYPES)] = Field(default=2000, ge=1)
    """Synthetic images that are judged."""
    baseline: bool = True
    """Also train plain DP-SGD at the same budget for comparison; its model and scores are INTERNAL and never leave."""
    features: Literal["auto", "cnn", "inception"] = "auto"
    """Extractor of the features in which images are compared: `cnn` (small, trained on the public images), `inception` (of published
    FIDs; its weights are fetched where they are missing), or `auto`: Inception where it is on the machine, the CNN elsewhere."""
    classifiers: Literal["fast", "all", "dppm_cnn"] = "fast"
    """Classifiers that learn from the synthetic images and are tested on held-out private ones: `fast`, logistic regression and a small
    CNN; `all`, also the papers' MLP, CNN and (in colour) ResNet-9, and ten more of scikit-learn's (dp-promise, Table 2); `dppm_cnn`, the
    fast two and the CNN of DPPM's Table 1 (Liu et al. 2024, Figure 4c)."""
    epochs: int = Field(default=50, ge=1)
    """Epochs of the papers' networks (Wang et al. 2024; DPPM does not say)."""
    scikit_images: int = Field(default=2000, ge=0)
    """Synthetic images that the ten more of scikit-learn's learn from at most, spread evenly; 0 takes all that are judged."""
    resamples: int = Field(default=100, ge=20)
    """Bootstrap resamples behind each 95 % interval."""


class Choice(Section):
    """One setting that the recipe chose."""

    setting: str
    """Its name, as after `--set`."""
    value: str
    """The chosen value, as a person would write it."""
    why: str
    """One sentence, or part of one."""


class Recipe(Section):
    """Settings that follow from the data: the recipe chooses open settings from declared facts and a time (`sfumato.recipe`)."""

    kind: Literal["none", "auto"] = "none"
    """`auto` chooses whatever neither a person nor a preset has set; `none` leaves the defaults."""
    minutes: float = Field(default=60.0, gt=0, le=MOST_MINUTES, allow_inf_nan=False)
    """Time up to the images, in minutes on the machine that the table of costs was measured on: two CPU cores, or one large GPU. It decides
    how long each network trains, and is no promise about another machine."""
    device: Literal["cpu", "gpu"] = "cpu"
    """Which table of costs is used. A meaning, like `minutes`: it does not look at the machine, so that two machines choose the same."""
    public_images: int = Field(default=0, ge=0)
    """Public images that it was chosen for; filled in."""
    choices: tuple[Choice, ...] = ()
    """The choices and their reasons; empty before the recipe. Settings with choices are not chosen again."""


class RehearsalSettings(Section):
    """Thresholds that public images alone must meet before anything is paid for; a failure stops the run, unless a person goes on."""

    images: int = Field(default=500, ge=20)
    """Public samples that are drawn, and images of each set that they are compared with; half of the held-out images at most."""
    nearer: float = Field(default=1.0)
    """Public samples must lie nearer to held-out public images than this: 0 is where other public images lie, 1 where draws from a
    Gaussian lie that is fitted to the public pixels or latents (Frechet distances in the features of a classifier of public images)."""
    survives: float = Field(default=0.8, ge=0, le=1)
    """The least share of what that classifier reads in held-out public images, beyond chance, that must survive the autoencoder."""


def _licence(value: str) -> str:
    """A licence as SPDX writes it; empty for none."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        return canonicalize_license_expression(value) if value else ""
    except InvalidLicenseExpression:
        raise PydanticCustomError(
            "licence",
            "give an identifier of SPDX such as CC-BY-4.0 or CC0-1.0, or LicenseRef-NAME for terms of your own",
        ) from None


def _public_key(value: str) -> str:
    """A public Ed25519 key as base64 of its 32 bytes; openssl puts twelve others before them."""
    try:
        raw = base64.b64decode(value, validate=True)
    except ValueError:
        raw = b""
    if len(raw) not in (32, 44):
        raise PydanticCustomError(
            "approver",
            "give a public Ed25519 key: the middle line of what openssl pkey -in approver.pem -pubout prints",
        )
    return base64.b64encode(raw[-32:]).decode()


Approval = Literal["none", "required", "signed"]
APPROVALS: tuple[Approval, ...] = get_args(Approval)
"""What may be asked of an approval, each more than the one before."""


class Release(Section):
    """Terms and form in which a run's images are handed over; they change no image."""

    licence: Annotated[str, AfterValidator(_licence)] = ""
    """Licence of the published images as an SPDX identifier, such as `CC-BY-4.0`, or `LicenseRef-NAME` for terms of your own. Where
    it is empty, `sfumato publish` asks for it."""
    public_licence: Annotated[str, AfterValidator(_licence)] = ""
    """Licence under which the public images may be passed on, where a model holds some (the knowledge base of `rapid`). Where it is empty
    `sfumato publish` asks for it, or the model leaves without these, cannot draw, and says so. That of built-in images is known."""
    form: Literal["folder", "parquet", "webdataset"] = "folder"
    """Class folders of PNG files, Parquet with the same files inside, or WebDataset's shards (tar) for large sets."""
    curator: str = ""
    """Who publishes the images, as datasheet, Croissant and the draft for the registry name them; empty leaves it open there."""
    purpose: str = ""
    """What the images are published for, for the same."""
    contact: str = ""
    """Who answers questions, for the same."""
    approval: Approval = "none"
    """Whether somebody must approve before the images leave: `required` accepts a decision typed into the form of
    `sfumato request-release` and one signed by `sfumato approve`, `signed` the second alone. Publishing can ask for more, not for less."""
    approvers: tuple[Annotated[str, AfterValidator(_public_key)], ...] = ()
    """The public keys whose signatures count, in base64; `signed` needs one at least, `required` takes any where it is empty."""

    @model_validator(mode="after")
    def _some_approver(self) -> Self:
        if self.approval == "signed" and not self.approvers:
            raise PydanticCustomError(
                "approvers", "release.approval=signed needs the public key of an approver: release.approvers=[KEY]"
            )
        return self


class Machine(Section):
    """Speed and devices: never change the meaning of a result, never hashed."""

    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1`, ..."""
    threads: int = Field(default=0, ge=0)
    """Threads of the CPU; 0 leaves torch's own choice. Tiny networks run faster on one."""
    physical_batch: int = Field(default=256, ge=1)
    """Records whose gradients are held in memory at once."""
    runner: Literal["inline", "threads", "processes", "ray", "dask"] = "inline"
    """How the members of an ensemble and the runs of a comparison are carried out: one after another, or side by side in threads,
    in processes, or on the machines of a Ray or Dask cluster (`RAY_ADDRESS`, `DASK_SCHEDULER_ADDRESS`, or one of its own)."""
    workers: int = Field(default=0, ge=0)
    """How many of them at once; 0 takes one for each core. A cluster of several machines has its own number."""
    checkpointing: bool = False
    """Compute the activations of each U-Net block again in the backward pass instead of holding them: less memory, more time. Kept
    gradients of records, which do not shrink, are bounded by `physical_batch`."""
    watch: bool = False
    """Note loss, gradient norms and records that are not finite in each private step. They look at private images without noise:
    they are written to the ledger as a look and kept as an INTERNAL table beside the model, never on the screen. Nothing is
    noted of a stage that is found in the cache, or of steps before a stop."""


class MethodSection(Section):
    """Base of the section that a method adds (`sfumato.methods`)."""

    name: str


OwnMethod = TypeVar("OwnMethod", bound=MethodSection, covariant=True)


class SettingsOf(Section, Generic[OwnMethod]):
    """All settings of a run of one method, as that method's functions see them; `sfumato.settings.Settings` are those of any method.

    Only the completed class builds the schema, and not each method that names its own section.
    """

    model_config = ConfigDict(defer_build=True)

    data: Data = Data()
    privacy: Privacy = Privacy()
    schedule: Schedule = Schedule()
    latent: Latent = Latent()
    backbone: Annotated[BackboneSettings, LATER] = BackboneSettings()
    network: Network = Network()
    selection: Annotated[Selection, LATER] = Selection()
    pretraining: Pretraining = Pretraining()
    alignment: Annotated[Alignment, LATER] = Alignment()
    method: OwnMethod
    central: Annotated[Central, LATER] = Central()
    fine_tuning: FineTuning = FineTuning()
    matching: Annotated[Matching, LATER] = Matching()
    judge: Annotated[Judge, LATER] = Judge()
    generation: Generation = Generation()
    evaluation: Evaluation = Evaluation()
    recipe: Annotated[Recipe, LATER] = Recipe()
    rehearsal: Annotated[RehearsalSettings, LATER] = RehearsalSettings()
    release: Annotated[Release, NOT_HASHED] = Release()
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Seed of the public stages. Private randomness never follows it."""
    machine: Annotated[Machine, NOT_HASHED] = Machine()
