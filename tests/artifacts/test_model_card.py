"""The card of a model says its certificate, its parts, what it cannot hold, and its limits; what it shows of drawing runs."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

import sfumato
from artifacts.model_card import IN_WORDS, model_card
from sfumato.errors import BadInput
from tests.examples import make_record


def text_of(folder: Path) -> str:
    return (folder / "model" / "README.md").read_text(encoding="utf-8")


def test_it_holds_certificate_claim_parts_limits_and_a_picture(released):
    text, card = text_of(released), json.loads((released / "card.json").read_text())
    header = yaml.safe_load(text.split("---\n")[1])
    assert header["license"] == "cc0-1.0" and {"synthetic", "differential-privacy"} <= set(header["tags"])
    assert f"**{card['statement']}**" in text and "a claim is not a promise" in text
    for name, part in card["model"]["parts"].items():
        assert f"| `{name}` | {IN_WORDS[name]} | {part['label']} | {part['bytes']:,} |" in text
    assert "public images in its base (licence: CC0-1.0)" in text and "no pipeline for diffusers" in text
    assert "## What is not covered" in text and "people with several images" in text and "rare things" in text
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (released / "model" / picture).is_file()
    assert "model/README.md" in card["files"] and "(model/README.md)" in (released / "README.md").read_text()


def test_what_it_shows_of_drawing_runs(released):
    (code,) = re.findall(r"```python\n(.*?)```", text_of(released), re.DOTALL)
    names: dict = {}
    exec(code.replace("FOLDER", str(released)), names)
    assert np.array_equal(names["images"], sfumato.load(released).draw(16, seed=0)[0])


def test_a_pipeline_for_diffusers_and_parts_that_are_left_out_are_told(released, tmp_path):
    card, record = json.loads((released / "card.json").read_text()), make_record(tmp_path)
    model = card["model"]
    assert "DiffusionPipeline.from_pretrained" in model_card(
        card | {"model": {**model, "diffusers": "pipeline.py"}}, record
    )
    parts = {name: part for name, part in model["parts"].items() if name != "base"}
    text = model_card(
        card | {"model": {**model, "parts": parts, "without": {"base": "nobody named a licence"}}}, record
    )
    assert "It cannot draw: its part 'base' is left out, since nobody named a licence." in text
    assert f"| `base` | {IN_WORDS['base']} | left out | nobody named a licence |" in text and "```python" not in text


@pytest.mark.parametrize("change", ["edited", "gone"])
def test_a_card_of_a_model_that_was_changed_is_found(released, tmp_path, change):
    folder = shutil.copytree(released, tmp_path / "out")
    place = folder / "model" / "README.md"
    place.write_text("better than it is") if change == "edited" else place.unlink()
    with pytest.raises(BadInput, match="model/README.md"):
        sfumato.load(folder)
