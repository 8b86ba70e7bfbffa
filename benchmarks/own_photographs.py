"""A user's photographs: two folders of JPEG files, the commands of docs/own-images.md on them, and what a rehearsal stops.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/own_photographs.py [--method moments] [--minutes 20] [--to FOLDER] [--picture FILE]
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/own_photographs.py --rehearse

Private are five labels of Tiny ImageNet, 2,500 photographs of 32x32 in class folders, public some of the other labels, as anybody would lay them out;
read from `SFUMATO_DATA`, written to `--to`. Without `--rehearse`: check, budget, plan, run and publish, each as a person types it, in a home of its
own, and a table of what came of it. With it: the public half alone as it was before there was a recipe, pixel by pixel after 200, 3,000 and 6,000 public
steps, and in latents of few steps, beside the recipe's own; *of the way*: from public images (0) to a Gaussian's draws (1), of public samples.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from small_images import SHOWN

from artifacts.record import load_record
from sfumato import sources
from tasks.runtime.environment import CHECKOUT, configure

PRIVATE = (0, 40, 80, 120, 160)
"""Labels of `benchmarks/targets.py photos`."""
EACH = 100
"""Public photographs of each other label."""
QUALITY = 95
"""Of the JPEG files."""
BEFORE = ("network.kind=mlp", "network.width=192", "network.blocks=2")
"""The denoiser of the preset for digits, which other images once inherited."""
REHEARSED = {
    **{
        f"pixels, {steps:,} steps": ("latent.kind=none", *BEFORE, f"pretraining.steps={steps}")
        for steps in (200, 3000, 6000)
    },
    "latents of 500 steps, 3,000 steps": ("latent.steps=500", *BEFORE, "pretraining.steps=3000"),
    "the recipe": (),
}
"""What is rehearsed, and its settings."""


def main() -> None:
    """Write the folders, type the commands, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="what a rehearsal stops")
    parser.add_argument("--method", default="moments", help="default: moments")
    parser.add_argument("--minutes", type=float, default=20.0, help="what the recipe may take (default: 20)")
    home = CHECKOUT / "sfumato-home" / "own-photographs"
    parser.add_argument("--to", type=Path, default=home, help="folder of the photographs and the home")
    parser.add_argument("--picture", type=Path, help="copy the picture of the samples there")
    given = parser.parse_args()
    os.environ["SFUMATO_HOME"] = str(given.to / "home")
    place = configure()
    private, public = given.to / "photographs", given.to / "others"
    for folder, labels in ((private, PRIVATE), (public, None)):
        if not folder.exists():
            write(folder, place.data / "tiny-imagenet-32", labels)
    data = ["--set", f"data.private={private}", "--set", f"data.public={public}", "--set", "privacy.delta=1e-4"]
    data += ["--set", f"recipe.minutes={given.minutes:g}"]
    if given.rehearse:
        print("| public half | of the way | survives | goes on |\n| --- | --- | --- | --- |")
        for name, settings in REHEARSED.items():
            code, text = typed("rehearse", given.method, *data, *(word for one in settings for word in ("--set", one)))
            numbers = [re.search(pattern, text) for pattern in (r"([\d.-]+) of the way", r"([\d.]+)% of what a")]
            way, survives = (float(number[1]) if number else "" for number in numbers)
            print(f"| {name} | {way} | {survives and survives / 100:.3} | {'no' if code else 'yes'} |", flush=True)
        return
    check = typed("check", str(private), "--public", str(public))[1]
    typed("ledger", "budget", "photographs", "--epsilon", "10", "--delta", "1e-4")
    typed("plan", given.method, *data)
    typed("run", given.method, *data, "--set", "evaluation.classifiers=fast", "--set", "evaluation.images=4000")
    typed("publish", "latest", "--to", str(given.to / "out"), "--licence", "CC-BY-4.0", "--public-licence", "MIT")
    verified = typed("verify-card", str(given.to / "out"))[0] == 0
    record = load_record(place.runs, max(path.name for path in place.runs.iterdir()))
    certificate, scores = record.certificate, record.metrics["synthetic"]
    assert certificate and "photographs" in check
    minutes = sum(stage.made_in for stage in record.stages) / 60
    print("| method | certified epsilon | minutes | " + " | ".join(SHOWN.values()) + " | the card verifies |")
    print("|" + " --- |" * (len(SHOWN) + 4))
    cells = [record.method, f"{certificate.epsilon:.4g}", f"{minutes:.1f}", *(f"{scores[name]:.3g}" for name in SHOWN)]
    print(f"| {' | '.join(cells)} | {'yes' if verified else 'no'} |")
    if given.picture:
        shutil.copyfile(record.samples, given.picture)


def typed(*words: str) -> tuple[int, str]:
    """The exit code of a command, and what it prints, which goes to this process's errors too."""
    done = subprocess.run([sys.executable, "-m", "flows", *words], cwd=CHECKOUT, capture_output=True, text=True)
    print(f"$ sfumato {' '.join(words)}\n{done.stdout}{done.stderr}", file=sys.stderr, flush=True)
    return done.returncode, done.stdout + done.stderr


def write(folder: Path, tiny: Path, labels: tuple[int, ...] | None) -> None:
    """Class folders of JPEG files: of some labels all, or of the others `EACH`; a split called test where the source has one."""
    for part in ("train", "test") if labels else ("train",):
        images = sources.load(str(tiny), sources.Reading(part=part))
        counts: dict[str, int] = {}
        for pixels, label in zip(images.pixels.transpose(0, 2, 3, 1), images.labels.tolist(), strict=True):
            name = images.classes[label]
            chosen = label in labels if labels else label not in PRIVATE and counts.get(name, 0) < EACH
            if chosen:
                number = counts[name] = counts.get(name, 0) + 1
                file = folder / (part if labels else "") / name / f"{number:04d}.jpg"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(file, quality=QUALITY)


if __name__ == "__main__":
    main()
