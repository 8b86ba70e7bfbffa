"""Grey of more than 8 bits in PNG and TIFF: what each window makes of it, and that none of them looks beyond one record."""

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from sfumato.config import Decoding
from sfumato.privacy.door import PrivateSet, identify, read
from sfumato.settings import resolve
from sfumato.sources import Reading, load, source_digest
from sfumato.sources.windows import PERCENTILES, Grey, own_bounds
from tests.sfumato.sources.writing import draw, refused

RNG = np.random.default_rng(0)


def deep(root, values, name="a/1.png", **how):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, **how)
    return path


def shown(root, window="auto"):
    return load(root, Reading(part="all", decoding=Decoding(window=window))).pixels[:, 0]


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_go_through_each_window_and_eight_come_back(tmp_path, suffix):
    eight = RNG.integers(0, 256, (8, 8), dtype=np.uint8)
    deep(tmp_path / "whole", eight.astype(np.uint16) * 257, f"a/1.{suffix}")
    assert np.array_equal(shown(tmp_path / "whole")[0], eight)
    deep(tmp_path / "twelve", np.round(eight * (4095 / 255)).astype(np.uint16), f"a/1.{suffix}")
    assert np.array_equal(shown(tmp_path / "twelve", "0,4095")[0], eight)
    assert shown(tmp_path / "twelve").max() < 17 and shown(tmp_path / "twelve", "record").max() == 255


def test_a_record_is_stretched_by_itself_alone(tmp_path):
    one, other = (RNG.integers(low, low + 500, (16, 16), dtype=np.uint16) for low in (1000, 30_000))
    deep(tmp_path, one)
    alone = shown(tmp_path, "record")[0]
    deep(tmp_path, other, "a/2.png")
    assert np.array_equal(shown(tmp_path, "record")[0], alone)
    low, high = np.percentile(one, PERCENTILES)
    assert np.array_equal(alone, np.round(np.clip((one - low) / (high - low), 0, 1) * 255).astype(np.uint8))


def test_a_picture_of_one_level_is_black_and_not_a_division_by_zero(tmp_path):
    deep(tmp_path, np.full((8, 8), 777, np.uint16))
    with np.errstate(all="raise"):
        assert shown(tmp_path, "record").max() == 0
    assert own_bounds(np.r_[np.zeros(999), 5.0]) == (0.0, 5.0), "a speck is told by the extremes"


def test_a_tiff_declares_its_bits_and_which_end_is_white(tmp_path):
    values = RNG.integers(0, 65536, (8, 8), dtype=np.uint16)
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    deep(tmp_path / "plain", values, "a/1.tif")
    tags[262] = 0
    deep(tmp_path / "turned", values, "a/1.tif", tiffinfo=tags)
    with Image.open(tmp_path / "turned/a/1.tif") as image:
        turned = image.tag_v2[262] == 0
    if turned:
        assert np.array_equal(shown(tmp_path / "turned"), 255 - shown(tmp_path / "plain"))
    grey = Grey(values, "12 bits", (0, 4095), inverted=True)
    assert np.array_equal(
        grey.through("auto", "x")[:, :, 0], 255 - Grey(values, "12 bits", (0, 4095)).through("auto", "x")[:, :, 0]
    )


def test_the_window_is_no_part_of_what_a_record_is(tmp_path):
    for at in range(60):
        deep(tmp_path, RNG.integers(0, 4096, (8, 8), dtype=np.uint16), f"{'ab'[at % 2]}/{at}.png")
    narrow = Decoding(window="100,900")
    assert source_digest(tmp_path) == source_digest(tmp_path, Reading(decoding=narrow))
    sets = [PrivateSet(name="s", source=str(tmp_path), decoding=one) for one in (Decoding(), narrow)]
    assert identify(sets[0]) == identify(sets[1])
    assert len(read(sets[0], "test")) == len(read(sets[1], "test"))
    assert PrivateSet(name="s", source="x").model_dump().keys() >= {"decoding"}


@pytest.mark.parametrize("window", ["record", "0,4095"])
def test_colour_and_sources_of_eight_bits_have_no_window(tmp_path, window):
    (tmp_path / "a").mkdir()
    draw(RNG, channels=3).save(tmp_path / "a" / "1.png")
    with refused("a/1.png' is in colour", f"data.window={window}"):
        shown(tmp_path, window)
    with refused(f"data.window={window}", "'digits'"):
        load("digits", Reading(decoding=Decoding(window=window)))


@pytest.mark.parametrize(
    ("requested", "stored"),
    [("auto", "auto"), ("record", "record"), ("-160,240", "-160,240"), ("[0, 4095.5]", "0,4095.5")],
)
def test_a_window_is_kept_as_one_text(requested, stored):
    assert resolve("dp-sgd", changes=[f"data.window={requested}"]).data.window == stored
