"""A public model made with diffusers alone, through Sfumato and back: trained, saved, loaded, aligned, fine-tuned privately, published, drawn.

    .venv/bin/python benchmarks/pretrained.py unet --folder data      # or dit; data/tiny-imagenet-32 below it
    .venv/bin/python benchmarks/pretrained.py dit --folder data --work shown/dit --steps 2000

Public are 195 classes of Tiny ImageNet at 32x32, private the five others. An `AutoencoderKL` and then a `UNet2DModel` or a
`DiTTransformer2DModel` of its latents learn from the public classes by diffusers' own schedule, on a CPU in minutes; `sfumato run` takes
them from their folder. Printed are the scores of the run, and whether diffusers draws from the published folder what `sfumato.load` draws.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import Tensor
from torch.nn import functional as F

import sfumato
from sfumato import sources
from sfumato.images import to_unit

PRIVATE = ("0", "40", "80", "120", "160")
BECAUSE = "made by benchmarks/pretrained.py from 195 classes of Tiny ImageNet; the five private classes were left out"
BATCH, CHANNELS, SIDE = 64, 4, 8
KL = 1e-4


def main() -> None:
    """Make the models, run, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["unet", "dit"], help="which denoiser")
    parser.add_argument("--folder", required=True, help="data folder with tiny-imagenet-32 below it")
    parser.add_argument(
        "--work", type=Path, help="where the models and the home are kept (default: a folder that goes)"
    )
    parser.add_argument("--steps", type=int, default=1500, help="steps of each public training (default: 1500)")
    parser.add_argument("--images", type=int, default=500, help="images that are drawn (default: 500)")
    parser.add_argument("--set", nargs="+", default=[], metavar="SETTING", help="further section.field=value")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        table = made(work / "model", given.kind, f"{given.folder}/tiny-imagenet-32", given.steps)
        table |= run(work, f"{given.folder}/tiny-imagenet-32", given.images, given.set)
    for name, value in table.items():
        print(f"{name:40} {value}")


def made(folder: Path, kind: str, data: str, steps: int) -> dict[str, Any]:
    """Train and save what is not there yet; CPU seconds."""
    if (folder / "scheduler").is_dir():
        return {}
    torch.manual_seed(0)
    every = sources.describe(data, sources.Reading(part="all")).classes
    names = tuple(every[int(place)] for place in PRIVATE)
    public = sources.load(data, sources.Reading(part="train", size=32, without=names))
    x, y = to_unit(public.pixels), torch.from_numpy(public.labels)
    started = time.process_time()
    coder = diffusers.AutoencoderKL(
        block_out_channels=(16, 32, 32),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=CHANNELS,
        norm_num_groups=8,
        mid_block_add_attention=False,
    )

    def reconstruct(at: Tensor) -> Tensor:
        posterior = coder.encode(x[at]).latent_dist
        again = coder.decode(posterior.sample()).sample
        return F.l1_loss(again, x[at]) + KL * posterior.kl().mean() / x[0].numel()

    train(coder, reconstruct, len(x), steps)
    coder.eval()
    with torch.no_grad():
        latents = torch.cat([coder.encode(part).latent_dist.mean for part in x.split(BATCH)])
    coder.register_to_config(scaling_factor=float(1 / latents.std()))
    latents *= coder.config.scaling_factor
    scheduler = diffusers.DDPMScheduler(prediction_type="v_prediction", clip_sample=False)
    denoiser = unet(len(public.classes)) if kind == "unet" else dit(len(public.classes))

    def denoise(at: Tensor) -> Tensor:
        noise, t = torch.randn_like(latents[at]), torch.randint(scheduler.config.num_train_timesteps, at.shape)
        seen = scheduler.add_noise(latents[at], noise, t)
        out = denoiser(seen, t, class_labels=y[at], return_dict=False)[0]
        return F.mse_loss(out, scheduler.get_velocity(latents[at], noise, t))

    train(denoiser, denoise, len(x), steps)
    coder.save_pretrained(folder / "vae")
    denoiser.save_pretrained(folder / ("unet" if kind == "unet" else "transformer"))
    scheduler.save_pretrained(folder / "scheduler")
    return {"public training, CPU s": round(time.process_time() - started)}


def unet(classes: int) -> Any:
    """About a million parameters."""
    return diffusers.UNet2DModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        block_out_channels=(48, 96),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
        num_class_embeds=classes,
    )


def dit(classes: int) -> Any:
    """About a million parameters."""
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=24,
        in_channels=CHANNELS,
        num_layers=4,
        sample_size=SIDE,
        patch_size=1,
        num_embeds_ada_norm=classes,
    )


def train(model: torch.nn.Module, loss: Callable[[Tensor], Tensor], images: int, steps: int) -> None:
    """Adam on random batches."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for step in itertools.count(1):
        optimiser.zero_grad()
        value = loss(torch.randint(images, (BATCH,)))
        value.backward()
        optimiser.step()
        if step % 100 == 0:
            print(f"{type(model).__name__}: step {step}, loss {value.item():.4f}", file=sys.stderr)
        if step == steps:
            return


def run(work: Path, data: str, images: int, more: list[str]) -> dict[str, Any]:
    """The private half by Sfumato, and both ways of drawing from what it published."""
    os.environ["SFUMATO_HOME"] = str(work / "home")
    from flows.synthesize import run_changed
    from tasks.planning import Wishes

    chosen = f"[{', '.join(PRIVATE)}]"
    changes = [f"data.private={data}", f"data.private_classes={chosen}", f"data.public={data}", "data.name=photos"]
    changes += [f"data.public_without={chosen}", "privacy.delta=1e-4", "evaluation.baseline=false"]
    changes += [
        f"network.from={work}/model",
        f"latent.from={work}/model",
        f"privacy.public_because={json.dumps(BECAUSE)}",
    ]
    changes += [
        f"generation.images={images}",
        f"evaluation.images={images}",
        "alignment.kind=moments",
        "judge.use=none",
        "release.licence=CC0-1.0",
        *more,
    ]
    place = work / f"published-{time.time_ns()}"
    record = run_changed("dp-sgd", "auto", changes, Wishes(publish_to=str(place), go_on=True))
    pixels, labels = sfumato.load(place).draw(50, seed=1)
    pipeline = diffusers.DiffusionPipeline.from_pretrained(place, trust_remote_code=True)
    drawn = pipeline(50, seed=1, output_type="pt")
    scores = {f"{name}: {key}": value for name, one in record.metrics.items() for key, value in one.items()}
    shown = {name: value for name, value in scores.items() if isinstance(value, int | float)}
    return {
        "certificate": record.certificate.sentence() if record.certificate else "none",
        "read error of the autoencoder": record.latents.get("reconstruction_error"),
        "pixels that differ, of 50 images": int((drawn.images.numpy() != pixels).sum()),
        "labels that differ": int((drawn.labels.numpy() != labels).sum()),
        "published": place,
        "picture": record.samples,
        **shown,
    }


if __name__ == "__main__":
    main()
