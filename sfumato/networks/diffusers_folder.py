"""A folder as diffusers keeps models: which class, its settings, its schedule and its weights, before anything is built.

Only JSON and safetensors are read; a folder whose weights are pickles, which could run programs, is refused. Not covered: what the
weights were trained on, which the person who brings them must say.
"""

import contextlib
import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sfumato.config import Schedule
from sfumato.diffusion.schedule import signal_levels
from sfumato.errors import BadInput

EXTRA = 'pip install "sfumato[models]"'
"""Command that installs diffusers."""
CONFIG, SCHEDULER, SCHEDULER_CONFIG, WEIGHTS = "config.json", "scheduler", "scheduler_config.json", "*.safetensors"
PICKLES = ("*.bin", "*.ckpt", "*.pt", "*.pth", "*.pkl")
DENOISERS = {"UNet2DModel": "unet", "DiTTransformer2DModel": "transformer"}
AUTOENCODERS = {"AutoencoderKL": "vae", "AutoencoderTiny": "vae", "VQModel": "vqvae"}
"""Classes that can be read -> where the folder of a pipeline holds one."""
SCHEDULES = {"linear": "linear", "scaled_linear": "scaled_linear", "squaredcos_cap_v2": "cosine"}
PREDICTIONS = {"epsilon": "noise", "v_prediction": "velocity", "sample": "sample"}
"""Their names of predictions -> ours."""
CLOSE = 1e-5
"""Largest difference between signal levels that are the same: theirs are products in float32."""


class ModelFolder(NamedTuple):
    """A model in a folder, not yet built."""

    path: Path
    config: Mapping[str, Any]
    """All settings of its class, those that the file leaves out too."""
    files: tuple[Path, ...]
    """Its weights."""

    @property
    def kind(self) -> str:
        """Name of its class in diffusers."""
        return str(self.config["_class_name"])

    def digest(self, *others: Path) -> str:
        """SHA-256 over its settings and weights, and over other files, each with its name."""
        whole = hashlib.sha256()
        for path in (self.path / CONFIG, *self.files, *others):
            with path.open("rb") as file:
                whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return whole.hexdigest()


def diffusers() -> Any:
    """The library, loaded when it is first needed; `BadInput` with the command that installs it."""
    try:
        return importlib.import_module("diffusers")
    except ImportError:
        raise BadInput(f"models from elsewhere are read by diffusers, which is not installed: {EXTRA}") from None


def model_folder(folder: str | Path, setting: str, kinds: Mapping[str, str]) -> ModelFolder:
    """The model of one of the `kinds` in a folder, or in the part of a pipeline's folder that holds one.

    `BadInput`, which names the `setting`, for no folder, a class of another kind, and weights that are missing or pickles.
    """
    path = Path(folder).expanduser().resolve()
    option = f"{setting}={folder}"
    if not path.is_dir():
        raise BadInput(f"{option} is no folder: give one that diffusers' save_pretrained wrote")
    places = [path, *(path / name for name in dict.fromkeys(kinds.values()))]
    place = next((place for place in places if (place / CONFIG).is_file()), None)
    if place is None:
        inside = " or ".join(dict.fromkeys(kinds.values()))
        raise BadInput(
            f"{option} holds no {CONFIG}, nor does {inside} in it: give a folder that diffusers' save_pretrained wrote"
        )
    config = read_json(place / CONFIG)
    kind = config.get("_class_name")
    if kind not in kinds:
        raise BadInput(f"{option} holds a model of class {kind}: what can be read here is {', '.join(kinds)}")
    files = tuple(sorted(place.glob(WEIGHTS)))
    if not files:
        pickled = next((file.name for end in PICKLES for file in sorted(place.glob(end))), "")
        why = f"holds pickles ({pickled}), which can run programs, and no" if pickled else "holds no"
        raise BadInput(f"{option} {why} safetensors: save the model with save_pretrained(..., safe_serialization=True)")
    return ModelFolder(place, completed(config, place / CONFIG), files)


def completed(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The settings of a model with those that its file leaves out; `BadInput` where diffusers can build nothing of them."""
    library = diffusers()
    try:
        with torch.device("meta"), quiet():
            model = getattr(library, config["_class_name"]).from_config(config)
    except Exception as error:  # whatever a class makes of values that it does not expect
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"{path} describes no {config['_class_name']} that diffusers can build ({reason}): save the model again"
        ) from None
    return {**model.config, "_class_name": config["_class_name"]}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the notes of diffusers; errors say what a person needs."""
    logging = diffusers().utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file; `BadInput` for anything else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read ({error}): save the model again") from None
    if not isinstance(values, dict):
        raise BadInput(f"{path} holds no settings: save the model again")
    return values


def scheduler_file(folder: ModelFolder, setting: str) -> Path:
    """The schedule that a denoiser was trained with: in its folder, beside it, or in `scheduler` of the pipeline; else `BadInput`."""
    places = (folder.path, folder.path / SCHEDULER, folder.path.parent / SCHEDULER)
    for place in places:
        if (place / SCHEDULER_CONFIG).is_file():
            return place / SCHEDULER_CONFIG
    raise BadInput(
        f"{setting}={folder.path} has no {SCHEDULER_CONFIG} in it or in {SCHEDULER} beside it, so that nobody knows its noise: save its "
        "scheduler there"
    )


def schedule_of(path: Path) -> tuple[Schedule, str]:
    """Our schedule for one of diffusers, and what the network predicts; `BadInput` for what ours cannot express."""
    config = read_json(path)
    kind, library = str(config.get("_class_name")), diffusers()
    maker: Any = getattr(library, kind, None)
    usable = isinstance(maker, type) and issubclass(maker, library.SchedulerMixin)
    scheduler = maker.from_config(config) if usable else None
    theirs = getattr(scheduler, "alphas_cumprod", None)
    if scheduler is None or theirs is None:
        raise BadInput(f"{path}: the schedule of {kind} cannot be expressed here: {KNOWN}")
    full = scheduler.config
    shape, predicts = full.get("beta_schedule"), full.get("prediction_type", "epsilon")
    if predicts not in PREDICTIONS:
        raise BadInput(f"{path}: prediction_type={predicts} is not known here: use one of {', '.join(PREDICTIONS)}")
    if shape not in SCHEDULES:
        raise BadInput(f"{path}: beta_schedule={shape} cannot be expressed here: {KNOWN}")
    betas = {} if SCHEDULES[shape] == "cosine" else {"beta_start": full["beta_start"], "beta_end": full["beta_end"]}
    ours = Schedule.model_validate({"kind": SCHEDULES[shape], "timesteps": full["num_train_timesteps"], **betas})
    levels = np.asarray(theirs, dtype=np.float64)
    if levels.shape != (ours.timesteps,) or not np.abs(signal_levels(ours)[1:] - levels).max() < CLOSE:
        raise BadInput(
            f"{path}: its signal levels are not those of beta_schedule={shape} (rescaled, or betas of its own), which cannot be expressed "
            f"here: {KNOWN}"
        )
    return ours, PREDICTIONS[predicts]


KNOWN = f"bring a model trained with beta_schedule {', '.join(SCHEDULES)}"


def multiples(channels: Sequence[int]) -> tuple[int, ...]:
    """Channels of each level in units of the first."""
    return tuple(max(1, round(count / channels[0])) for count in channels)
