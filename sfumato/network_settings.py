"""Settings of the denoiser: its kind, its sizes and what papers build into it (`sfumato.config` names them to all others)."""

import math
from typing import Annotated, Literal

from pydantic import Field

from sfumato.data_settings import Source
from sfumato.section import LATER, NOT_HASHED, Section


class Network(Section):
    """The denoiser."""

    kind: Literal["auto", "mlp", "unet", "refinenet", "dit"] = "auto"
    """`mlp` for tiny images, `unet` from 16x16 up; `auto` chooses one of the two by the side of the images; `refinenet`: dilated
    residual blocks whose levels are merged from coarse to fine (Lin et al. 2017); `dit`: a transformer over positions (Peebles and
    Xie 2023)."""
    width: int = Field(default=0, ge=0)
    """Hidden width of the MLP and of the transformer, channels of the first level of the others; 0 takes 192, 128 or 32."""
    blocks: int = Field(default=2, ge=1)
    """Residual blocks (per level where there are levels)."""
    multipliers: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 2), min_length=1)
    """Channels of each level in units of `width`. In the U-Net each level after the first halves the side; in the RefineNet the second
    alone does, and those after it see twice as far each."""
    refine: Annotated[tuple[Annotated[int, Field(ge=1)], ...], LATER] = ()
    """Channels of each refine block of the RefineNet in units of `width`, from the last level on; empty: those of its level. More blocks than
    levels refine what is merged by itself."""
    attention: tuple[int, ...] = (7, 8)
    """Sides in pixels at which the U-Net attends over positions."""
    condition: int = Field(default=64, ge=2, multiple_of=2)
    """Length of the vector that carries time and class."""
    patch: Annotated[int, Field(ge=0), LATER] = 0
    """Side of the squares that the transformer takes for one position; 0 takes 1 up to sides of 8, and 2 above where it divides them."""
    heads: Annotated[int, Field(ge=1), LATER] = 4
    """Heads of the transformer's attention, which share its width."""
    attention_heads: Annotated[int, Field(ge=1), LATER] = 1
    """Heads of the U-Net's attention, which share the channels of their level."""
    head_channels: Annotated[int, Field(ge=0), LATER] = 0
    """Channels of each of those heads, of which a level then has as many as its channels allow (Dhariwal and Nichol 2021); 0 leaves their number to
    `attention_heads`."""
    transformer: Annotated[int, Field(ge=0), LATER] = 0
    """Transformer blocks that stand where the U-Net attends (Rombach et al. 2022: a spatial transformer of this depth): each attends over positions,
    to the class where `class_input` says so, and mixes features at each position. 0 attends over positions and does no more."""
    class_input: Annotated[Literal["sum", "cross_attention"], LATER] = "sum"
    """How the U-Net hears of the class: its row is added to the vector of the time (`sum`), or each transformer block attends to it
    (`cross_attention`), and the vector carries the time alone."""
    embedding: Annotated[int, Field(ge=0), LATER] = 0
    """For `cross_attention`: numbers of a class row; 0 takes those of `condition`."""
    resampling: Annotated[Literal["convolution", "block"], LATER] = "convolution"
    """What halves and doubles the sides in the U-Net: a convolution of its own, or a residual block, inside which both of its paths change
    their sides (`block`; Brock et al. 2019, BigGAN)."""
    dropout: Annotated[float, Field(ge=0, lt=1), LATER] = 0.0
    """Share of the numbers that each residual block of the U-Net sets to zero while it learns from public images, or as a member of an ensemble.
    Steps of DP-SGD and drawing leave all of them."""
    prediction: Annotated[Literal["noise", "velocity", "sample", "edm", "energy"], LATER] = "noise"
    """What the network's output stands for: the noise, the velocity sqrt(alpha_bar) noise - sqrt(1 - alpha_bar) image, or the clean image
    (`sample`), of which the noise is worked out, and whose squared error is then what is learnt from (Salimans and Ho 2022); or, with input and
    output of unit variance at every time (`edm`), what the clean image lacks of a share of the noisy one (Karras et al. 2022, Table 1). `energy` is
    for the score network of `dppm` alone, where `method.energy=exact` chooses it."""
    sigma_data: Annotated[float, Field(gt=0, allow_inf_nan=False), LATER] = math.sqrt(1 / 3)
    """Standard deviation that `edm` takes the data to have: by default that of values spread evenly over [-1, 1], as in the official code of
    Dockhorn et al. 2023; Karras et al. 2022 take .5."""
    from_: Annotated[Source, Field(alias="from"), NOT_HASHED] = ""
    """Folder of a public denoiser from elsewhere, as diffusers keeps it (a `UNet2DModel` or `DiTTransformer2DModel` beside its
    `scheduler_config.json`), in place of one trained here; needs `privacy.public_because`. All else of this section, and the schedule, then
    follow from the folder, and it is trained further on the public images only where `pretraining.steps` is set."""
    config: Annotated[str, LATER] = ""
    """The settings of that denoiser, as its folder has them; filled in."""
    weights: Annotated[str, LATER] = ""
    """Digest of that folder (SHA-256); filled in."""
