"""A released model as a folder that diffusers loads: `DiffusionPipeline.from_pretrained(folder, trust_remote_code=True)`.

Beside `model/`, which Sfumato reads, lie the same weights in the shape of `save_pretrained`: `denoiser/`, `scheduler/`, and where there
are any `vae/` and `alignment/`, with `model_index.json` and `pipeline.py`. What came from diffusers goes back as the class that it was;
our own networks are written as classes of diffusers, cut from this program's source (`artifacts.for_diffusers.bundle`), which import
torch and diffusers alone. Not covered: methods that look things up or pay while they draw, refining, and judges.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save_file
from torch import Tensor, nn

from artifacts.for_diffusers.bundle import bundled
from sfumato.alignment import ClassMaps
from sfumato.config import Network, Schedule
from sfumato.drawing import EDITIONS_APART
from sfumato.formats import load
from sfumato.latents import Latents
from sfumato.methods import METHODS
from sfumato.methods.parts import Parts
from sfumato.networks.build import resolved
from sfumato.networks.denoiser import class_rows
from sfumato.networks.diffusers_models import DiffusersAutoencoder, DiffusersDenoiser, exported, exported_tables
from sfumato.settings import Settings

VERSION = "0.42.0"
"""Version of diffusers whose format the folders have."""
INDEX, PIPELINE, CONFIG, WEIGHTS = (
    "model_index.json",
    "pipeline.py",
    "config.json",
    "diffusion_pytorch_model.safetensors",
)
OF_NETWORK = (
    "kind",
    "width",
    "blocks",
    "multipliers",
    "attention",
    "condition",
    "patch",
    "heads",
    "attention_heads",
    "head_channels",
    "transformer",
    "class_input",
    "embedding",
    "resampling",
    "dropout",
    "prediction",
    "sigma_data",
)
OF_LATENT = ("kind", "patch", "linear", "channels", "width", "multipliers", "blocks", "attention")
BETAS = {"linear": "linear", "scaled_linear": "scaled_linear", "cosine": "squaredcos_cap_v2"}
PREDICTS = {"noise": "epsilon", "velocity": "v_prediction", "sample": "sample"}
"""Our names -> diffusers' names."""


class Component(NamedTuple):
    """A part of the pipeline: how `model_index.json` names it, its settings and its weights."""

    library: str
    """diffusers, or the file in its folder that holds the class."""
    kind: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def lacking(settings: Settings, parts: Collection[str]) -> str:
    """The reason why diffusers cannot draw from a model of these `parts`, by name; empty where it can."""
    method = METHODS[settings.method.name]
    if method.walk is None or not {"tuned", "moments"} & set(parts):
        return f"method.name={settings.method.name} does more to draw than one denoiser can"
    if settings.judge.use != "none":
        return f"judge.use={settings.judge.use}, and diffusers has no judge"
    if "matching" in parts:
        return f"matching.share={settings.matching.share:g}, and diffusers moves no images"
    if settings.generation.vary:
        return f"generation.vary={settings.generation.vary:g}, and diffusers varies no images"
    if settings.schedule.kind not in BETAS:
        return f"schedule.kind={settings.schedule.kind}, which no scheduler that diffusers is given here can say"
    if settings.generation.solver == "heun":
        return "generation.solver=heun, which is not written for diffusers"
    return f"generation.refine={settings.generation.refine:g} asks a second model" if settings.generation.refine else ""


def write_pipeline(
    folder: Path, settings: Settings, parts: Parts, networks: Mapping[str, Path], shares: tuple[float, ...]
) -> None:
    """Write all of it but the images; `networks` are the folders of `public` and `tuned` in `model/`, `shares` as of the samples."""
    tuned = parts.tuned is not None
    model = parts.tuned if parts.tuned is not None else parts.public
    network = Network.model_validate(load(networks["tuned" if tuned else "public"])[1]["network"])
    components = {"denoiser": _denoiser(model, network, parts.shape, parts.schedule.timesteps)}
    if isinstance(parts.codec, Latents):
        components["vae"] = _autoencoder(parts.codec)
    if parts.alignment:
        components["alignment"] = _alignment(parts.alignment)
    for name, component in components.items():
        _write(folder / name, name, component)
    ours = not isinstance(model, DiffusersDenoiser)
    generation, walk = settings.generation, METHODS[settings.method.name].walk
    assert walk is not None  # `lacking` has asked
    drawing = {
        "classes": parts.facts.classes,
        "shape": parts.shape,
        "conditional": tuned,
        "predicts": "noise" if ours else network.prediction,
        "nobody": -1 if ours else len(class_rows(model)),
        "tables": exported_tables(model) if isinstance(model, DiffusersDenoiser) else [],
        "solver": generation.solver,
        "eta": generation.eta,
        "guidance": generation.guidance if tuned else 0.0,
        "times": list(walk(settings)),
        "shares": shares,
        "seeds_before": EDITIONS_APART * generation.edition,
        "limit": parts.schedule.limit,
        "schedule": settings.schedule.model_dump(mode="json"),
        "latents": [part.flatten().tolist() for part in (parts.codec.mean, parts.codec.spread)]
        if isinstance(parts.codec, Latents)
        else None,
    }
    index = {
        "_class_name": ["pipeline", "SfumatoPipeline"],
        "_diffusers_version": VERSION,
        **{name: [component.library, component.kind] for name, component in components.items()},
        "scheduler": ["diffusers", "DDIMScheduler"],
        "drawing": drawing,
    }
    _write_json(folder / INDEX, index)
    _write_json(
        folder / "scheduler" / "scheduler_config.json", scheduler_config(settings.schedule, str(drawing["predicts"]))
    )
    (folder / PIPELINE).write_text(bundled("artifacts.for_diffusers.pipeline"), encoding="utf-8")


def scheduler_config(schedule: Schedule, predicts: str) -> dict[str, Any]:
    """Our schedule as diffusers' DDIM has it, for other pipelines; its samples are ours but for what floating point leaves."""
    return {
        "_class_name": "DDIMScheduler",
        "_diffusers_version": VERSION,
        "num_train_timesteps": schedule.timesteps,
        "beta_schedule": BETAS[schedule.kind],
        "beta_start": schedule.beta_start,
        "beta_end": schedule.beta_end,
        "prediction_type": PREDICTS[predicts],
        "clip_sample": True,
        "set_alpha_to_one": True,
        "steps_offset": 0,
    }


def _denoiser(model: nn.Module, network: Network, shape: tuple[int, int, int], timesteps: int) -> Component:
    if isinstance(model, DiffusersDenoiser):
        return _as_it_was(exported(model))
    whole = resolved(network, shape[1])
    fields = {name: getattr(whole, name) for name in OF_NETWORK}
    config = {"settings": fields, "shape": shape, "classes": len(class_rows(model)), "timesteps": timesteps}
    return Component("sfumato_denoiser", "SfumatoDenoiser", config, _inside("network", model))


def _autoencoder(codec: Latents) -> Component:
    if isinstance(codec.network, DiffusersAutoencoder):
        return _as_it_was(codec.network.inner)
    config = {"settings": {name: getattr(codec.settings, name) for name in OF_LATENT}, "image": codec.image}
    return Component("sfumato_autoencoder", "SfumatoAutoencoder", config, _inside("network", codec.network))


def _alignment(maps: ClassMaps) -> Component:
    classes, cells, numbers = maps.centres.shape
    tensors = {"mean": maps.reference.mean, "centres": maps.centres, "back": maps.back, "weights": maps.weights}
    config = {"classes": classes, "cells": cells, "numbers": numbers}
    plain = {name: tensor.float() for name, tensor in tensors.items()}
    return Component("sfumato_alignment", "SfumatoAlignment", config, plain)


def _inside(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}


def _as_it_was(model: Any) -> Component:
    """A model of a class of diffusers' own."""
    config = {name: value for name, value in model.config.items() if not name.startswith("_")}
    return Component("diffusers", type(model).__name__, config, model.state_dict())


def _write(folder: Path, name: str, component: Component) -> None:
    """A component's folder, as `save_pretrained` writes one."""
    _write_json(folder / CONFIG, {"_class_name": component.kind, "_diffusers_version": VERSION, **component.config})
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in component.tensors.items()}
    save_file(plain, folder / WEIGHTS, metadata={"format": "pt"})
    if component.library != "diffusers":
        module = component.library.removeprefix("sfumato_")
        (folder / f"{component.library}.py").write_text(bundled(f"artifacts.for_diffusers.{module}"), encoding="utf-8")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
