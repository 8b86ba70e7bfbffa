"""Settings of retrieval: the extractor h, and how queries and keys are made."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sfumato.config import LATER, Section

RESNET_FEATURES = 512
"""Length of the pooled features of a ResNet-18 (He et al. 2016, Table 1)."""


class Extractor(Section):
    """The contrastive feature extractor h (Jiang et al. 2025, Algorithm 1)."""

    steps: int = Field(default=400, ge=0)
    """Optimiser steps."""
    batch: int = Field(default=256, ge=2)
    """Images per step, each seen in two views."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate of Adam."""
    temperature: float = Field(default=0.5, gt=0)
    """Temperature tau of the contrastive loss (Eq. 4)."""
    width: int = Field(default=32, ge=1)
    """Channels of the first convolution."""
    features: int = Field(default=128, ge=2)
    """Length of a feature vector."""
    kind: Annotated[Literal["convolutions", "resnet18"], LATER] = "convolutions"
    """`convolutions`: as many as halve the image to 2x2; `resnet18`: that network without its first pooling, for small images, with 512
    features and a width of its own."""
    projection: Annotated[int, Field(ge=0), LATER] = 0
    """Length of what the loss compares, which the head after the features makes of them for training alone; 0 takes `features`."""
    rotation: float = Field(default=12.0, ge=0)
    """Largest rotation of a view, degrees."""
    scale: float = Field(default=0.15, ge=0, lt=1)
    """Largest relative change of size of a view."""
    shift: float = Field(default=0.1, ge=0)
    """Largest shift of a view, as a share of the side."""
    crop: Annotated[float, Field(ge=0, lt=1), LATER] = 0.0
    """Largest share of the side that a view leaves out: photographs alone, since half a character is another one."""
    mirror: Annotated[bool, LATER] = False
    """Half of the views are mirrored left to right: photographs alone."""
    jitter: Annotated[float, Field(ge=0, lt=1), LATER] = 0.0
    """Largest relative change of a view's brightness, contrast and single channels."""
    edge: Annotated[Literal["background", "border"], LATER] = "background"
    """What moves in from outside an image: black paper, or its own border drawn out, which suits photographs."""
    contrast: Annotated[Literal["views", "classes"], LATER] = "views"
    """What is alike: two views of one image (Eq. 4), or all views of one public class (Khosla et al. 2020, Eq. 2), which is not in the
    paper."""

    @model_validator(mode="after")
    def _features_of_the_network(self) -> Self:
        if self.kind == "resnet18" and self.features != RESNET_FEATURES:
            raise ValueError(
                f"features={self.features}: kind=resnet18 gives {RESNET_FEATURES}; set features={RESNET_FEATURES}"
            )
        return self


class QuerySettings(Section):
    """Queries of the knowledge base, and the keys that they are compared with."""

    key_draws: int = Field(default=1, ge=1)
    """Noise draws over which a key is averaged; the first is that of the trajectory. Beyond the paper."""
    clean_keys: bool = False
    """Keys of clean images, not of noised ones that were denoised in one step; then without draws. Beyond the paper. A network that has
    never been trained finds more by them; a trained h, which has seen noised images alone, finds less than by averaged keys."""
    conditional: bool = False
    """The one-step image of a query or a key is asked for its public class. The class that retrieval then "finds" is
    partly an echo of the one that was asked for; see `sfumato.retrieval.accuracy`."""
