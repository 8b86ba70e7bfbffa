"""The meaning of a network's output: the noise, the velocity, which has the scale of data at every time, or the image.

A denoiser's contract stays the same, `model(x, t, y) -> predicted noise`: every network ends with one of these modules.
A velocity network's output v = sqrt(alpha_bar) eps - sqrt(1 - alpha_bar) x_0 (Salimans and Ho 2022, section 4) is turned
into eps = sqrt(alpha_bar) v + sqrt(1 - alpha_bar) x_t. Where little is left of the image an error of v is a small error
of eps, so that the clean image which follows from eps is as good as v; and the other way round the squared error of
eps, over alpha_bar, is that of v, which is how such a network's loss is weighed. A network that puts out the clean image is treated alike,
with eps = (x_t - sqrt(alpha_bar) x_0) / sqrt(1 - alpha_bar). Not covered: learned variances.
"""

import torch
from torch import Tensor, nn


class NoisePrediction(nn.Module):
    """The output is the noise itself."""

    def forward(self, out: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """`out` as it is."""
        return out


class VelocityPrediction(nn.Module):
    """The output is the velocity; `alpha_bar` `[T + 1]`, the signal levels of the schedule, travels with the weights."""

    alpha_bar: Tensor

    def __init__(self, alpha_bar: Tensor):
        super().__init__()
        self.register_buffer("alpha_bar", alpha_bar.detach().clone())

    def forward(self, out: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """The noise in x `[b, c, h, w]` at times t `[b]` that the velocity `out` `[b, c, h, w]` implies."""
        level = self.alpha_bar[t].view(-1, *[1] * (x.dim() - 1))
        return level.sqrt() * out + (1 - level).sqrt() * x


class SamplePrediction(nn.Module):
    """The output is the clean image; `alpha_bar` as for the velocity."""

    alpha_bar: Tensor

    def __init__(self, alpha_bar: Tensor):
        super().__init__()
        self.register_buffer("alpha_bar", alpha_bar.detach().clone())

    def forward(self, out: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """The noise in x `[b, c, h, w]` at times t `[b]` that the image `out` `[b, c, h, w]` implies."""
        level = self.alpha_bar[t].view(-1, *[1] * (x.dim() - 1))
        return (x - level.sqrt() * out) / (1 - level).sqrt()


def error_weights(model: object, t: Tensor) -> Tensor | None:
    """Weights of the squared errors of the noise at times `t` (any shape) in a model's loss; None for 1."""
    prediction = getattr(model, "prediction", None)
    if isinstance(prediction, VelocityPrediction):
        return 1 / prediction.alpha_bar[t]
    if isinstance(prediction, SamplePrediction):
        return (1 - prediction.alpha_bar[t]) / prediction.alpha_bar[t]
    return None


LEVELS = "prediction.alpha_bar"
"""Name of the signal levels among the weights of a network that does not predict the noise."""
PREDICTIONS = {"velocity": VelocityPrediction, "sample": SamplePrediction}
"""Predictions that need the schedule, by their name in the settings."""


def predicting(model: nn.Module, prediction: str, alpha_bar: Tensor | None) -> nn.Module:
    """Let `model`, in place, predict what the settings name, and return it; all but the noise needs the schedule's `alpha_bar` `[T + 1]`."""
    if prediction in PREDICTIONS:
        if alpha_bar is None:
            raise ValueError(f"network.prediction={prediction} needs the signal levels of the schedule")
        model.prediction = PREDICTIONS[prediction](torch.as_tensor(alpha_bar))
    return model
