"""Every preset is planned in a gibibyte, the largest networks of the papers too: they are counted, validated in small and not made."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.named_settings import presets
from sfumato.preflight import SURVEYED_NUMBERS
from sfumato.recipe.probe import PROBE_BYTES
from tests.flows.cli.test_plan_screen import CHECKOUT, GIBIBYTE, photographs
from tests.sfumato.sources.writing import write_idx

RECORDS = {"mnist": 60_000, "fashion-mnist": 60_000, "celeba": 162_770, "celeba-hair": 85_000}
"""Declared in place of the few stand-ins: noise and steps are those of the published sets."""
PICTURES = {"imagenet": 256, "imagenet32": 32, "ffhq32": 32, "ffhq64": 64}
"""Sides of public sets without a name here, which are folders."""
MOST = 0.8 * GIBIBYTE
"""Memory (kB) of one plan in a forked process, which has not mapped some 150 MB of the libraries that a command has."""
WIDEST = {"ensemble-cifar10": 0.95 * GIBIBYTE}
"""Presets that take more: this one attends at 32x32, in the miniature too, and its command takes a little more than a gibibyte."""
MOST_STEPS = 250
"""Timed steps of one plan: some kinds of step, each for `EACH_SECONDS`, of which the smallest takes half a millisecond."""
PLANS = """
import json, os, pathlib, sys, traceback
from flows.cli import plan_screen
from sfumato import preflight
from sfumato.costs import counted
from sfumato.recipe import probe, step_seconds
from tasks.planning import plan_run

surveyed, timed = [], []

def survey(model, trainable, shape, of=preflight.survey):
    weights = sum(p.numel() for p in model.parameters())
    surveyed.append(preflight.SURVEYED * preflight.CROWDS[-1] * seen(model, shape) + preflight.SURVEYED_WEIGHTS * weights)
    return of(model, trainable, shape)

def seen(model, shape):
    import torch
    zeros = torch.zeros(2, *shape), torch.ones(2, dtype=torch.long), torch.zeros(2, dtype=torch.long)
    return counted(model, lambda: model(*zeros)).numbers / 2

def per_image(self, kind, work, step, of=probe.Probe.per_image, **how):
    def one(images):
        timed.append(probe.BYTES * (probe.HELD * images * work.numbers + probe.HELD_WEIGHTS * work.weights))
        step(images)
    return of(self, kind, work, one, **how)

preflight.survey, probe.Probe.per_image = survey, per_image
def planned(preset, method, changes):
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is that of this plan
    run = plan_run(method, preset, changes)
    list(plan_screen.plan_lines(run.settings, run.plan))
    status = pathlib.Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0])
    print(json.dumps([preset, method, peak, max(surveyed, default=0), max(timed, default=0), len(timed)]), flush=True)

for plan in json.load(sys.stdin):
    if not os.fork():  # a process of its own, without the time of loading
        try:
            planned(*plan)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.wait()
"""
"""Plans each in a process of its own and prints its peak (kB), by reckoning the most numbers that a validation held and the most bytes of a timed step, and the number of timed steps."""


def digits(folder: Path, beginnings: tuple[str, ...], first: int = 0, classes: int = 10) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for beginning in beginnings:
        write_idx(folder / f"{beginning}images-idx3-ubyte", rng.integers(0, 256, (2 * classes, 28, 28)))
        write_idx(folder / f"{beginning}labels-idx1-ubyte", np.arange(2 * classes) % classes + first)


def sets(root: Path) -> Path:
    """Stand-ins for all data that presets name, each with a few images of the published size."""
    data, _ = photographs(root)
    for name in ("mnist", "fashion-mnist"):
        digits(data / name, ("train-", "t10k-"))
    digits(data / "omniglot", ("",), classes=242)
    digits(data / "emnist-letters", ("emnist-letters-train-", "emnist-letters-test-"), first=1, classes=26)
    (data / "cifar-10-batches-py").mkdir()
    (data / "cifar-10-batches-py" / "batches.meta").write_text("")
    lines = (data / "celeba" / "list_attr_celeba.txt").read_text().splitlines()
    sexes = [f"{line} {'Male' if number == 1 else 2 * (number % 2) - 1}" for number, line in enumerate(lines)][1:]
    (data / "celeba" / "list_attr_celeba.txt").write_text("\n".join([lines[0], *sexes]) + "\n")
    for name, side in PICTURES.items():
        for kind in "ab":
            (data / name / kind).mkdir(parents=True)
            Image.new("RGB", (side, side)).save(data / name / kind / "1.png")
    return data


def plans(data: Path):
    """Preset, method and changes of every plan."""
    for preset, each in presets().items():
        named = each["settings"].get("data", {})
        changes = [f"data.folder={data}"] if "private" in named else []
        if named.get("private") in RECORDS:
            changes.append(f"data.records={RECORDS[named['private']]}")
        if named.get("public") in PICTURES:
            changes.append(f"data.public={data / named['public']}")
        for method in each.get("methods", {}) or ["dp-sgd"]:
            yield preset, method, changes


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads what Linux says of a process")
def test_every_preset_is_planned_in_a_gibibyte(tmp_path):
    where = {"SFUMATO_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    wanted = list(plans(sets(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", PLANS],
        input=json.dumps(wanted), capture_output=True, text=True, cwd=CHECKOUT, env={**os.environ, **where},
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows] == [[preset, method] for preset, method, _ in wanted], done.stderr
    for preset, method, peak, surveyed, timed, steps in rows:
        assert peak < WIDEST.get(preset, MOST), (preset, method)
        assert surveyed <= SURVEYED_NUMBERS and timed <= PROBE_BYTES and steps <= MOST_STEPS, (preset, method)
