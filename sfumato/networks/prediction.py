"""The meaning of a network's output: the noise, the velocity, which has the scale of data at every time, the image, or what EDM learns.

A denoiser's contract stays the same, `model(x, t, y) -> predicted noise`: every network ends with one of these modules, or is wrapped
in that of `sfumato.networks.energy`.
A velocity network's output v = sqrt(alpha_bar) eps - sqrt(1 - alpha_bar) x_0 (Salimans and Ho 2022, section 4) is turned
into eps = sqrt(alpha_bar) v + sqrt(1 - alpha_bar) x_t. Where little is left of the image an error of v is a small error
of eps, so that the clean image which follows from eps is as good as v; and the other way round the squared error of
eps, over alpha_bar, is that of v, which is how such a network's loss is weighed. A network that puts out the clean image is treated alike,
with eps = (x_t - sqrt(alpha_bar) x_0) / sqrt(1 - alpha_bar). Not covered: learned variances.

EDM (Karras et al. 2022) denoises x = x_0 + sigma eps, which is x_t sqrt(1 + sigma^2) for sigma^2 = (1 - alpha_bar) / alpha_bar, by

    D(x; sigma) = c_skip x + c_out F(c_in x)        (Eq. 7, with the constants of Table 1 for data of standard deviation s)
    c_skip = s^2 / (sigma^2 + s^2),  c_out = sigma s / sqrt(sigma^2 + s^2),  c_in = 1 / sqrt(sigma^2 + s^2)

where input and target of F have variance 1 at every sigma. The noise is eps = (x - D) / sigma, and the weight lambda = 1 / c_out^2 of D's
squared error is sigma^2 lambda = (sigma^2 + s^2) / s^2 for the noise's. With s = 1 that is the velocity, but for the sign of F. The
network is told the time, by an embedding of its own, in place of c_noise = ln(sigma) / 4: each follows from the other.
"""

import torch
from torch import Tensor, nn

from sfumato.config import Network
from sfumato.networks.energy import EnergyGradient


class Prediction(nn.Module):
    """What a network's output means; its input is x_t itself, unless `scaled` says otherwise."""

    def scaled(self, x: Tensor, t: Tensor) -> Tensor:
        """What the network is given for x `[b, c, h, w]` at times t `[b]`, of the same shape."""
        return x


class NoisePrediction(Prediction):
    """The output is the noise itself."""

    def forward(self, out: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """`out` `[b, c, h, w]` as it is."""
        return out


class VelocityPrediction(Prediction):
    """The output is the velocity; `alpha_bar` `[T + 1]`, the signal levels of the schedule, travels with the weights."""

    alpha_bar: Tensor

    def __init__(self, alpha_bar: Tensor):
        super().__init__()
        self.register_buffer("alpha_bar", alpha_bar.detach().clone())

    def forward(self, out: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """The noise in x `[b, c, h, w]` at times t `[b]` that the velocity `out` `[b, c, h, w]` implies."""
        level = self.alpha_bar[t].view(-1, *[1] * (x.dim() - 1))
        return level.sqrt() * out + (1 - level).sqrt() * x


class SamplePrediction(Prediction):
    """The output is the clean image; `alpha_bar` as for the velocity."""

    alpha_bar: Tensor

    def __init__(self, alpha_bar: Tensor):
        super().__init__()
        self.register_buffer("alpha_bar", alpha_bar.detach().clone())

    def forward(self, out: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """The noise in x `[b, c, h, w]` at times t `[b]` that the image `out` `[b, c, h, w]` implies."""
        level = self.alpha_bar[t].view(-1, *[1] * (x.dim() - 1))
        return (x - level.sqrt() * out) / (1 - level).sqrt()


class EdmPrediction(Prediction):
    """The output is F of the module's formulas; `alpha_bar` as for the velocity, and the standard deviation of the data."""

    alpha_bar: Tensor

    def __init__(self, alpha_bar: Tensor, sigma_data: float):
        super().__init__()
        self.register_buffer("alpha_bar", alpha_bar.detach().clone())
        self.sigma_data = sigma_data

    def scaled(self, x: Tensor, t: Tensor) -> Tensor:
        """c_in sqrt(1 + sigma^2) x for x `[b, c, h, w]` at times t `[b]`: over the standard deviation of x_t, sqrt(alpha_bar s^2 + 1 - alpha_bar)."""
        level = self._level(x, t)
        return x / (level * self.sigma_data**2 + 1 - level).sqrt()

    def forward(self, out: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """The noise in x `[b, c, h, w]` at times t `[b]` that the output F `[b, c, h, w]` implies.

        (x sqrt(1 + sigma^2) - D) / sigma = (sigma sqrt(1 + sigma^2) x - s sqrt(sigma^2 + s^2) F) / (sigma^2 + s^2), written with
        alpha_bar so that no large number is divided by another.
        """
        level = self._level(x, t)
        variance = level * self.sigma_data**2 + 1 - level
        return (1 - level).sqrt() / variance * x - self.sigma_data * (level / variance).sqrt() * out

    def weights(self, t: Tensor) -> Tensor:
        """(sigma^2 + s^2) / s^2 at times `t` `[...]`, of the same shape."""
        level = self.alpha_bar[t]
        return 1 + (1 - level) / (level * self.sigma_data**2)

    def _level(self, x: Tensor, t: Tensor) -> Tensor:
        return self.alpha_bar[t].view(-1, *[1] * (x.dim() - 1))


def error_weights(model: object, t: Tensor) -> Tensor | None:
    """Weights of the squared errors of the noise at times `t` `[...]` in a model's loss, of the same shape; None for 1."""
    prediction = getattr(model, "prediction", None)
    if isinstance(prediction, VelocityPrediction):
        return 1 / prediction.alpha_bar[t]
    if isinstance(prediction, SamplePrediction):
        return (1 - prediction.alpha_bar[t]) / prediction.alpha_bar[t]
    return prediction.weights(t) if isinstance(prediction, EdmPrediction) else None


LEVELS = "prediction.alpha_bar"
"""Name of the signal levels among the weights of a network that does not predict the noise."""
PREDICTIONS = {"velocity": VelocityPrediction, "sample": SamplePrediction}
"""Predictions that need the schedule alone, by their name in the settings."""


def predicting(model: nn.Module, settings: Network, alpha_bar: Tensor | None) -> nn.Module:
    """`model`, changed in place or wrapped, so that it predicts what the settings name; all but noise and energy need the schedule's
    `alpha_bar` `[T + 1]`."""
    if settings.prediction == "noise":
        return model
    if settings.prediction == "energy":
        return EnergyGradient(model)
    if alpha_bar is None:
        raise ValueError(f"network.prediction={settings.prediction} needs the signal levels of the schedule")
    levels = torch.as_tensor(alpha_bar)
    if settings.prediction == "edm":
        model.prediction = EdmPrediction(levels, settings.sigma_data)
    else:
        model.prediction = PREDICTIONS[settings.prediction](levels)
    return model
