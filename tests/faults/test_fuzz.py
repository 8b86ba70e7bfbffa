"""Made-up input: whatever settings or files hold, there is an answer or one line that refuses, and never a traceback."""

import io
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from PIL import Image

from sfumato import sources
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.preflight import plan_for, preflight
from sfumato.settings import Settings, resolve
from tests.examples import write_classes

SECTIONS = {name: field.annotation for name, field in Settings.model_fields.items() if name not in ("method", "seed")}
VALUES = some.one_of(
    some.sampled_from(["", "null", "true", "[]", "{}", "[1]", "nan", "inf", "-inf", "1e400", "auto", "none", "../..", "/", "~", "a: b", "'", "\x00"]),
    some.integers(-2, 9).map(str),
    some.sampled_from(["16", "64", "100", "1000"]),
    some.floats(-1, 1.5).map(repr),
    some.text(max_size=8),
)  # fmt: skip


def paths(method):
    """Every setting that a run by the method knows, and some that none does."""
    known = [f"{section}.{name}" for section, kind in SECTIONS.items() for name in kind.model_fields]
    known += [f"method.{name}" for name in METHODS[method].section.model_fields]
    return [*known, "seed", "network", "method", "no.such", "network.no", "", "."]


@some.composite
def requested(draw):
    """A method and a few changes."""
    method = draw(some.sampled_from([*METHODS]))
    pairs = some.tuples(some.sampled_from(paths(method)), VALUES)
    return method, [f"{path}={value}" for path, value in draw(some.lists(pairs, min_size=1, max_size=2))]


def answered(work, *given_to):
    """Whether the work was done; a refusal must be one line."""
    try:
        work(*given_to)
    except BadInput as refusal:
        assert str(refusal) and "\n" not in str(refusal).strip(), refusal
        return False
    return True


def planned(method, changes):
    """As far as `sfumato plan` goes before it measures."""
    ready, facts, _ = preflight(resolve(method, changes=changes))
    plan_for(ready, facts)


def each(count):
    """So many examples, each as slow as it is, the same ones every time that they are asked for."""
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, suppress_health_check=quiet, derandomize=True, database=None)


def test_settings(request, tally):
    """made-up settings"""

    @each(request.config.getoption("--fuzz"))
    @given(requested())
    def check(case):
        tally.tried += 1
        answered(planned, *case)

    check()


def picture(kind):
    """A small valid file."""
    buffer, pixels = io.BytesIO(), np.random.default_rng(0).integers(0, 256, (6, 6), dtype=np.uint8)
    if kind == "npz":
        np.savez(buffer, images=np.stack([pixels] * 4), labels=np.arange(4) % 2)
    else:
        Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def mutated(rng, content):
    """Bytes changed, cut off, doubled or put in."""
    data = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        at, what = int(rng.integers(0, max(1, len(data)))), rng.integers(0, 5)
        if what == 0:
            data[at : at + 1] = bytes([rng.integers(0, 256)])
        elif what == 1:
            del data[at:]
        elif what == 2:
            data[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif what == 3:
            data += data[at:]
        else:
            data[at : at + 4] = b"\xff\xff\xff\x7f"
    return bytes(data)


@pytest.mark.parametrize("kind", ["png", "jpeg", "tiff", "bmp", "gif", "npz"])
def test_files(request, tmp_path, tally, kind):
    """damaged image files"""
    rng, content = np.random.default_rng(1), picture(kind)
    write_classes(tmp_path / "folder", {"a": 2, "b": 2})
    for _ in range(max(1, request.config.getoption("--fuzz") // 6)):
        tally.tried += 1
        if kind == "npz":
            place = source = tmp_path / "set.npz"
        else:
            source, place = tmp_path / "folder", tmp_path / "folder" / "a" / f"x.{kind}"
        place.write_bytes(mutated(rng, content))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answered(sources.describe, source)
            answered(sources.load, source)


def test_undamaged_files_are_read(tmp_path):
    """Else the test above would pass by refusing everything."""
    (tmp_path / "set.npz").write_bytes(picture("npz"))
    assert answered(sources.load, tmp_path / "set.npz")
    for kind in ("png", "jpeg", "tiff", "bmp"):
        for name in "ab":
            (tmp_path / kind / name).mkdir(parents=True)
            for i in range(3):
                (tmp_path / kind / name / f"{i}.{kind}").write_bytes(picture(kind))
        assert answered(sources.load, tmp_path / kind)
    assert not answered(sources.load, tmp_path / "nowhere") and answered(planned, "rapid", [])
