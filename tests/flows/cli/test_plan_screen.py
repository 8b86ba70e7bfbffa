"""What a plan says of the machine, and that one of a paper's size takes little memory and time: networks that nobody trains here are counted, not made."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flows.cli.plan_screen import recipe_lines
from sfumato.preflight import preflight
from sfumato.recipe.estimate import Estimate
from sfumato.settings import resolve

CHECKOUT = Path(__file__).resolve().parents[3]
GIBIBYTE = 2**20
"""Memory (kB) of a plan, Python and torch included."""
MEASURED = """
import atexit, runpy
def tell():
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
    print("MEASURED", peak)
atexit.register(tell)
runpy.run_module("flows", run_name="__main__")
"""


def photographs(root: Path) -> tuple[Path, Path]:
    """A miniature of CelebA in its folder, three hundred persons with three colours of hair, and public class folders."""
    pictures, public = root / "data" / "celeba" / "img_align_celeba", root / "public"
    rng, pictures_of_hair = np.random.default_rng(0), ("1 -1 -1", "-1 1 -1", "-1 -1 1")
    pictures.mkdir(parents=True)
    rows = [f"{i:06}.jpg {pictures_of_hair[i % 3]}" for i in range(1, 301)]
    for row in rows:
        Image.fromarray(rng.integers(0, 256, (109, 89, 3), dtype=np.uint8)).save(pictures / row.split()[0])
    head = "300\nBlack_Hair Blond_Hair Brown_Hair\n"
    (pictures.parent / "list_attr_celeba.txt").write_text(head + "\n".join(rows) + "\n")
    for name in "ab":
        (public / name).mkdir(parents=True)
        Image.fromarray(rng.integers(0, 256, (256, 256, 3), dtype=np.uint8)).save(public / name / "1.png")
    return root / "data", public


@pytest.mark.parametrize(
    ("gpus", "device", "reported"),
    [(0, "cpu", False), (1, "cpu", True), (1, "gpu", False)],
    ids=["none", "idle", "planned"],
)
def test_a_recipe_for_a_cpu_beside_a_gpu_is_pointed_out(monkeypatch, gpus, device, reported):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    settings, _, _ = preflight(resolve("moments", "auto", [f"recipe.device={device}"]))
    lines = [line for line in recipe_lines(settings) if isinstance(line, str)]
    assert bool(lines) == reported and all("recipe.device=gpu" in line for line in lines)


def test_a_run_of_hours_says_how_many(sfumato, monkeypatch):
    monkeypatch.setattr(
        "flows.cli.plan_screen.estimate", lambda *_, **__: Estimate(stages=(("drawing", 17_995.0),), gigabytes=1.0)
    )
    assert "min (5 hours) on this machine" in sfumato("plan", "moments", "--set", "data.public=glyphs").out


@pytest.mark.parametrize(("images", "reported"), [(100, False), (10**12, True)])
def test_a_run_that_needs_more_memory_than_there_is_says_so(sfumato, images, reported):
    shown = sfumato("plan", "moments", "--set", f"generation.images={images}", "data.public=glyphs")
    assert shown.code == 0 and ("GB would be needed" in shown.out) == reported


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads what Linux says of a process")
@pytest.mark.parametrize(
    ("preset", "parameters"), [("dppm-celeba", "27,209,091"), ("dppm-celeba256", "79,113,219")], ids=str
)
def test_dppm_at_its_papers_size_is_planned_in_a_gibibyte(preset, parameters, tmp_path):
    data, public = photographs(tmp_path)
    where = {"SFUMATO_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    changes = ["--set", f"data.folder={data}", "--set", f"data.public={public}"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "plan", "dppm", "--preset", preset, *changes],
        capture_output=True, text=True, cwd=CHECKOUT, env={**os.environ, **where},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert parameters in done.stdout and "no certificate" in done.stdout
    assert int(done.stdout.split("MEASURED")[1]) < GIBIBYTE
