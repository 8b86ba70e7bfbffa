"""The data sheet of a collection with planted defects, and that the look at it is one."""

import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from artifacts.reports.data_profile import FIRST_LINE, profile_page
from sfumato import sources
from sfumato.privacy.auditing.data_profile import SHOWN, close, profile_of
from sfumato.privacy.auditing.looks import profiled
from sfumato.privacy.door import Access, PrivateSet
from sfumato.privacy.ledger.ledger import Ledger
from tests.sfumato.sources.writing import refused
from tests.spends import KEYS, clock


@pytest.fixture
def planted(tmp_path):
    """Forty digits in two classes, by ten persons, with one of each defect; and public ones, two of which are private."""
    script = Path(__file__).parents[4] / "benchmarks" / "planted_defects.py"
    return runpy.run_path(str(script))["plant"](tmp_path)


def test_all_planted_defects_are_found_and_nothing_else(planted):
    private, public = (
        sources.inspect(place, sources.Reading(group=group))
        for place, group in zip(planted, ("prefix", "none"), strict=True)
    )
    profile = profile_of("scans", private, public)
    assert (profile.records, profile.classes, profile.groups, profile.largest_group) == (
        43,
        {"even": 23, "odd": 20},
        12,
        5,
    )
    assert profile.kinds == {"32x32 L": 42, "40x40 RGB": 1}
    assert [line.split("'")[1].rsplit("/", 1)[1] for line in profile.broken] == ["p9_cut.png", "p9_text.png"]
    assert profile.duplicates.named == (("odd/p0_3.png", "even/p20_copy.png"),)
    assert (profile.duplicates.pairs, profile.duplicates.across_groups, profile.duplicates.across_classes) == (1, 1, 1)
    pairs = {frozenset(pair) for pair in profile.near.named}
    assert pairs == {
        frozenset(("even/p2_8.png", "even/p2_again.jpg")),
        frozenset(("even/p2_10.png", "even/p21_large.png")),
    }
    assert (profile.near.pairs, profile.near.across_groups, profile.near.across_classes) == (2, 1, 0), (
        "a pair is counted once"
    )
    assert profile.copies.named == (("even/p5_20.png", "odd/leak.png"),)
    assert set(profile.near_public.named) == {
        ("odd/p5_21.png", "odd/resized.png"),
        ("even/p5_22.png", "odd/negative.png"),
    }
    assert "2 of 45 pictures cannot be read" in profile.refused
    assert "none of its pictures can be read" in profile.model_copy(update={"records": 0}).refused


def test_a_clean_collection_is_not_refused(planted):
    private = sources.inspect(planted[1])
    profile = profile_of("open", private)
    assert profile.refused == "" and profile.groups is None and profile.public == ""
    assert profile.duplicates.pairs == profile.near.pairs == profile.copies.pairs == 0


def test_copies_among_the_public_images_are_refused(planted):
    for name in ("even/p9_cut.png", "odd/p9_text.png"):
        (planted[0] / name).unlink()
    profile = profile_of("scans", *(sources.inspect(place) for place in planted))
    assert "1 private picture is among the public ones" in profile.refused


def test_close_pictures_are_those_of_a_slow_search():
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (50, 4, 4), dtype=np.uint8)
    others = rng.integers(0, 256, (30, 4, 4), dtype=np.uint8)
    for reference in (None, others):
        slow = []
        for a, one in enumerate(pictures):
            reported = [
                (float(np.sqrt((((one.astype(float) - other) / 127.5) ** 2).mean())), a, b)
                for b, other in enumerate(pictures if reference is None else reference)
                if reference is not None or a != b
            ]
            slow.append(min(reported))
        limit = float(np.median([distance for distance, _, _ in slow]))
        wanted = [(a, b) for distance, a, b in sorted(slow) if distance <= limit + 1e-6]
        assert close(pictures, reference, limit + 1e-6) == wanted
    assert close(pictures[:1], None, 1.0) == [] and close(pictures[:0], others, 1.0) == []


def test_blank_pictures_are_no_near_duplicates(tmp_path):
    for at in range(4):
        (tmp_path / "x" / "a").mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), at).save(tmp_path / "x" / "a" / f"{at}.png")
    profile = profile_of("x", sources.inspect(tmp_path / "x"))
    assert profile.near.pairs == profile.duplicates.pairs == 0


def test_the_look_is_in_the_ledger_and_binds_no_content(tmp_path, planted):
    secret = PrivateSet(name="scans", source=str(planted[0]))
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", clock, KEYS) as ledger:
        terms = {"run": "check", "stage": "check", "purpose": "data sheet", "code_version": "1"}
        requested = Access(ledger=ledger, private=secret, relation="add_remove", delta=0.0, **terms)
        _, entries = profiled(requested, None)
        (planted[0] / "odd" / "p9_text.png").unlink()
        profiled(requested, None)
        assert list(entries.values()) == ["INTERNAL"] and [e.kind for e in ledger.entries()] == ["look", "look"]
        assert not any("digest" in entry.body for entry in ledger.entries()) and ledger.verify() == []
        assert ledger.total("scans").spends == 0


def test_the_first_picture_may_be_broken_too_but_not_all(planted):
    private = planted[0]
    (private / "even" / "p0_0.png").write_bytes(b"hello")
    profile = profile_of("scans", sources.inspect(private))
    assert len(profile.broken) == 3 and "p0_0.png" in profile.broken[0]
    for path in private.rglob("*.*g"):
        path.write_bytes(b"hello")
    with refused("even/p0_0.png' is corrupt"):
        sources.inspect(private)


def test_the_page_says_first_that_it_is_internal_and_quotes_names(planted):
    (planted[0] / "odd" / "a|b`c.png").write_bytes(b"hello")
    page = profile_page(profile_of("scans", *(sources.inspect(place) for place in planted)))
    assert page.splitlines()[0] == FIRST_LINE and "INTERNAL" in FIRST_LINE
    assert "`odd`" in page and "a|b'c.png" in page and "32x32 L" in page


def test_many_pairs_are_counted_and_some_named(tmp_path, planted):
    (tmp_path / "x" / "a").mkdir(parents=True)
    for at in range(SHOWN + 6):
        shutil.copy(planted[0] / "even" / "p0_0.png", tmp_path / "x" / "a" / f"{at:02}.png")
    result = profile_of("x", sources.inspect(tmp_path / "x")).duplicates
    assert result.pairs == SHOWN + 5 and len(result.named) == SHOWN
