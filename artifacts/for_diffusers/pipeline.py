"""Images of the classes of a collection, under the certificate in `card.json`: what `sfumato.load(folder).draw` draws, by diffusers.

From noise at the last time to an image at time 0 by one denoiser, with the guidance, solver and steps of the run that was published; where
there is an autoencoder it is decoded, and where classes were aligned with public images it is taken back. Drawing costs no privacy.

    pipeline = DiffusionPipeline.from_pretrained(folder, trust_remote_code=True)
    images = pipeline(16, classes=["cat"], seed=0).images
"""

import itertools
import math
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from diffusers import DiffusionPipeline
from diffusers.utils import BaseOutput

from sfumato.diffusion.objective import normal
from sfumato.diffusion.samplers import NO_CLASS, guided, solve
from sfumato.diffusion.schedule import NoiseSchedule
from sfumato.networks.layers import rows_of
from sfumato.networks.prediction import PREDICTIONS

CHUNK, DECODED = 1000, 512
"""Images drawn, and decoded, at once."""
ROUNDING = 1e-9
"""Tolerance of shares that sum to 1."""


@dataclass
class SfumatoOutput(BaseOutput):
    """Images, and the class of each by its position in `classes`."""

    images: object
    labels: object
    classes: object


class SfumatoPipeline(DiffusionPipeline):
    """Draws images of classes; `drawing` says how."""

    model_cpu_offload_seq = "denoiser->vae"
    _optional_components = ("vae", "alignment")

    def __init__(self, denoiser, scheduler, vae=None, alignment=None, drawing=None):
        super().__init__()
        self.register_modules(denoiser=denoiser, scheduler=scheduler, vae=vae, alignment=alignment)
        self.register_to_config(drawing=drawing)

    @torch.inference_mode()
    def __call__(self, count=1, classes=(), seed=None, output_type="pil", return_dict=True):
        """`count` images in order of class: PIL's, or a uint8 tensor `[count, c, h, w]` where `output_type` is "pt".

        `classes`, by name or position, are the ones to draw, in the proportions of the run; all without. The same `seed` draws the same
        images on the same machine.
        """
        drawing, device = SimpleNamespace(**self.config.drawing), self._execution_device
        seed = int(torch.randint(2**31, ())) if seed is None else seed
        # A released model is drawn from here: no noise protects anybody any more, so that a seed gives nothing away.
        generator = torch.Generator(device).manual_seed(seed + drawing.seeds_before)
        schedule = NoiseSchedule(torch.tensor(signal_levels(drawing.schedule), dtype=torch.float32), drawing.limit)
        shares = shares_among(drawing.shares, drawing.classes, classes) if classes else drawing.shares
        labels = wanted_classes(shares, len(drawing.classes), count)
        with frozen(self.denoiser, self.vae, self.alignment):
            images = torch.cat([self.drawn(drawing, schedule, y.to(device), generator) for y in labels.split(CHUNK)])
        images = images.cpu()
        if output_type == "pil":
            images = self.numpy_to_pil(images.permute(0, 2, 3, 1).float().div(255).numpy())
        return SfumatoOutput(images, labels, list(drawing.classes)) if return_dict else (images, labels)

    def drawn(self, drawing, schedule, y, generator):
        """uint8 images `[b, c, h, w]` of the classes y `[b]`."""
        predicts = (
            PREDICTIONS[drawing.predicts](schedule.alpha_bar).to(y.device) if drawing.predicts != "noise" else None
        )

        def denoise(x, t, y):
            known = torch.where(y < 0, drawing.nobody, y)
            out = self.denoiser(x, t - 1, class_labels=known, return_dict=False)[0][:, : x.shape[1]]
            return predicts(out, x, t) if predicts else out

        x = normal(torch.empty(len(y), *drawing.shape, device=y.device), generator)
        classes = y if drawing.conditional else torch.full_like(y, NO_CLASS)
        how: Any = SimpleNamespace(solver=drawing.solver, eta=drawing.eta)
        tables = [self.denoiser.get_submodule(place) for place in drawing.tables]
        hooks = [table.register_forward_hook(read_as_here) for table in tables]
        x = solve(how, schedule, guided(denoise, drawing.guidance), x, classes, drawing.times, generator=generator)
        for hook in hooks:
            hook.remove()
        if self.alignment is not None:
            x = self.alignment.to_private(x, y, generator)
        if self.vae is not None:
            mean, spread = (torch.tensor(part, device=x.device)[:, None, None] for part in drawing.latents)
            own = x * spread + mean
            x = torch.cat([self.vae.decode(part, return_dict=False)[0] for part in own.split(DECODED)]).clamp(-1, 1)
        return ((x.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


@contextmanager
def frozen(*models):
    """Parameters as Sfumato draws with them: where one might have a gradient, torch multiplies in another order, which rounds otherwise."""
    free = [p for model in models if model is not None for p in model.parameters() if p.requires_grad]
    for parameter in free:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in free:
            parameter.requires_grad_(True)


def read_as_here(table, labels, rows):
    """The rows of classes, of which the last is that of no class, by the product that Sfumato takes: a sum in another order would round otherwise."""
    own = table.weight[:-1]
    return rows_of(own, torch.where(labels[0] == len(own), NO_CLASS, labels[0]))


def signal_levels(schedule):
    """alpha_bar of all times from 0 on, in double precision."""
    kind, count = schedule["kind"], schedule["timesteps"]
    if kind == "cosine":
        offset = schedule["cosine_offset"]
        level = [math.cos((at / count + offset) / (1 + offset) * math.pi / 2) ** 2 for at in range(count + 1)]
        betas = [min(1 - after / now, schedule["beta_max"]) for now, after in itertools.pairwise(level)]
    else:
        power = 2 if kind == "scaled_linear" else 1
        first, last = (schedule[name] ** (1 / power) for name in ("beta_start", "beta_end"))
        betas = [math.prod([beta] * power) for beta in evenly(first, last, count)]
    levels = [1.0]
    for beta in betas:
        levels.append(levels[-1] * (1 - beta))
    return levels


def evenly(first, last, count):
    """`count` numbers from `first` to `last`, evenly spaced."""
    step = (last - first) / (count - 1)
    return [*(at * step + first for at in range(count - 1)), last]


def shares_among(shares, classes, chosen):
    """The shares of the chosen classes alone, by name or position."""
    names = [chosen] if isinstance(chosen, str) else list(chosen)
    places = {classes.index(one) if one in classes else int(one) for one in names}
    left = [(shares[at] if shares else 1.0) if at in places else 0.0 for at in range(len(classes))]
    left = left if sum(left) else [float(at in places) for at in range(len(classes))]
    return [share / sum(left) for share in left]


def wanted_classes(shares, classes, count):
    """The class of each of `count` images, in order of class: by largest remainders, evenly where there are no shares."""
    if not shares:
        return torch.arange(count) * classes // count
    quotas = [share * count for share in shares]
    whole = [math.floor(quota + ROUNDING) for quota in quotas]
    missing = count - sum(whole)
    for place in sorted(range(classes), key=lambda at: whole[at] - quotas[at])[:missing]:
        whole[place] += 1
    return torch.repeat_interleave(torch.arange(classes), torch.tensor(whole))
