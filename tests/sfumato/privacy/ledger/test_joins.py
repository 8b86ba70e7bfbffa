"""Budgets follow the records: near copies under new names, new versions, and what a person says of two sets."""

import io
import shutil

import numpy as np
import pytest
from PIL import Image

from artifacts.card import in_all
from artifacts.reports.run import EDGE, SHARING
from sfumato import sources
from sfumato.errors import BadInput, Refused
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.door import Access, PrivateSet, check_in, spending
from sfumato.privacy.ledger.fingerprints import NONE, Prints, match, prints_of
from sfumato.privacy.ledger.ledger import entry_label
from tests.spends import DELTA, ledger_at, spend

EACH = 30
"""Pictures in each of two classes."""
KEY = bytes(32)


@pytest.fixture
def ledger(tmp_path):
    with ledger_at(f"sqlite:///{tmp_path}/ledger.db") as opened:
        yield opened


def folder_of(place, pictures, names="ab"):
    """Pictures `[h, w]` or `[h, w, 3]` in class folders, in turn."""
    for number, picture in enumerate(pictures):
        path = place / names[number % len(names)] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.ascontiguousarray(picture)).save(path)
    return place


@pytest.fixture
def pictures():
    return np.random.default_rng(0).integers(0, 256, (2 * EACH, 6, 7), dtype=np.uint8)


def requested(ledger, folder, name):
    private = PrivateSet(name=name, source=str(folder), held_out=0.3)
    return Access(
        ledger=ledger, private=private, run="run-1", stage="train", purpose="a test", code_version="0.1",
        relation="add_remove", delta=DELTA,
    )  # fmt: skip


def run(ledger, folder, name, cost=1.0, new_version=False):
    """What every run does: check in, then pay."""
    access = requested(ledger, folder, name)
    check_in(access, new_version=new_version)
    with spending(access, [Gaussian(noise_multiplier=cost**-0.5)]):
        pass


def one_bit(pictures):
    changed = np.array(pictures)
    changed[3, 2, 2] ^= 1
    return changed


NEAR_COPIES = {
    "one bit": one_bit,
    "one image less": lambda pictures: pictures[1:],
    "one image more": lambda pictures: np.concatenate([pictures, 255 - pictures[:1] // 2]),
    "rotated": lambda pictures: np.rot90(pictures, 1, (1, 2)),
    "flipped": lambda pictures: pictures[:, :, ::-1],
    "turned over and flipped": lambda pictures: np.rot90(pictures[:, ::-1], 3, (1, 2)),
    "negative": lambda pictures: 255 - pictures,
    "in colour": lambda pictures: np.stack([pictures] * 3, 3),
    "a half of them alone": lambda pictures: pictures[:30],
    "among many others": lambda pictures: np.concatenate(
        [np.random.default_rng(1).integers(0, 256, (300, 6, 7), dtype=np.uint8), pictures[:6]]
    ),
}


@pytest.mark.parametrize("change", NEAR_COPIES.values(), ids=NEAR_COPIES)
def test_a_near_copy_under_another_name_has_no_budget_of_its_own(ledger, tmp_path, pictures, change):
    run(ledger, folder_of(tmp_path / "scans", pictures), "scans", 0.7)
    ledger.set_budget("scans", 1.0, DELTA)
    copy = folder_of(tmp_path / "copy", change(pictures), names=("other", "names"))
    with pytest.raises(Refused, match="epsilon 0.3 of 1 left for 'scans', which is joined to 'copy'"):
        run(ledger, copy, "copy", 0.4)
    (entry,) = [entry for entry in ledger.entries() if entry.kind == "join"]
    assert (entry.dataset, entry.body["other"], entry.body["by"]) == ("copy", "scans", "records")
    assert entry_label(entry) == "PUBLIC" and "match" not in str(entry.body), "no count of records stands in it"
    run(ledger, copy, "copy", 0.2)
    assert ledger.total("copy").epsilon == ledger.total("scans").epsilon == pytest.approx(0.9)
    ledger.set_budget("copy", 0.95, DELTA)
    with pytest.raises(Refused, match="of 0.95 left for 'copy', which is joined to 'scans'"):
        run(ledger, tmp_path / "scans", "scans", 0.08)
    assert len([entry for entry in ledger.entries() if entry.kind == "join"]) == 1, "said once"


def test_new_versions_reset_nothing_that_their_records_have_cost(ledger, tmp_path, pictures):
    folder = folder_of(tmp_path / "scans", pictures)
    run(ledger, folder, "scans", 0.6)
    ledger.set_budget("scans", 1.0, DELTA)
    for time in range(2):
        (folder / "a" / f"{2 * time}.png").unlink()
        with pytest.raises(Refused, match="epsilon 0.4 of 1 left for 'scans'"):
            run(ledger, folder, "scans", 0.6, new_version=True)
    assert ledger.version("scans") == 3 and ledger.total("scans").epsilon == pytest.approx(0.6)
    shutil.rmtree(folder)
    folder_of(folder, np.random.default_rng(5).integers(0, 256, pictures.shape, dtype=np.uint8))
    run(ledger, folder, "scans", 0.6, new_version=True)
    assert ledger.total("scans").epsilon == pytest.approx(0.6), "none of these was paid for before"
    assert ledger.total("scans", all_versions=True).epsilon == pytest.approx(1.2)


def test_sets_with_nothing_in_common_keep_their_own_budgets(ledger, tmp_path, pictures):
    run(ledger, folder_of(tmp_path / "scans", pictures), "scans", 0.7)
    ledger.set_budget("scans", 0.7, DELTA)
    blank = np.zeros((8, 6, 7), np.uint8)
    others = np.random.default_rng(2).integers(0, 256, pictures.shape, dtype=np.uint8)
    run(ledger, folder_of(tmp_path / "empty", np.concatenate([others, blank])), "empty")
    run(ledger, folder_of(tmp_path / "more", np.concatenate([others[::-1] // 2 * 2, blank + 9])), "more")
    few = np.concatenate([others // 3, pictures[:4]])
    run(ledger, folder_of(tmp_path / "four", few), "four")
    assert ledger.joined("scans") == ledger.joined("four") == () and ledger.total("scans").left == pytest.approx(0)


def test_a_person_joins_and_parts_with_a_reason(ledger, tmp_path, pictures):
    for name, images in {"left": pictures[:30], "right": pictures[30:], "both": pictures}.items():
        folder_of(tmp_path / name, images)
    run(ledger, tmp_path / "left", "left")
    run(ledger, tmp_path / "right", "right", 2.0)
    assert ledger.joined("left") == ()
    ledger.join("left", "right", "the same patients")
    assert ledger.joined("left") == ("right",) and ledger.total("right").epsilon == pytest.approx(3.0)
    ledger.differ("right", "left", "no, others of the same names")
    assert ledger.joined("left") == () and ledger.total("right").epsilon == pytest.approx(2.0)
    run(ledger, tmp_path / "both", "both", 0.5)
    assert ledger.joined("left") == ("both", "right"), "what is joined to one of a group is joined to all"
    ledger.differ("both", "left", "checked by hand")
    ledger.differ("both", "right", "checked by hand")
    run(ledger, tmp_path / "both", "both", 0.5)
    assert (
        ledger.joined("both") == ()
        and [entry.kind for entry in ledger.join_history("both")] == ["join"] * 2 + ["differ"] * 2
    )
    ledger.join("both", "left", "after all")
    assert ledger.joined("both") == ("left",)
    assert [entry.body["reason"] for entry in ledger.join_history("left") if entry.kind == "differ"][0].startswith(
        "no, others"
    )


def test_what_a_person_says_needs_a_reason_and_names_that_are_known(ledger):
    spend(ledger)
    spend(ledger, dataset="faces")
    for one, other, reason, fault in [
        ("digits", "faces", " ", "needs a reason"),
        (
            "digits",
            "fases",
            "why",
            r"knows no private set 'fases' \(known: digits, faces\): .* `sfumato check` or a run",
        ),
        ("digits", "digits", "why", "is one set"),
    ]:
        with pytest.raises(BadInput, match=fault):
            ledger.join(one, other, reason)
    assert ledger.joined("digits") == ()


def test_a_set_of_one_version_has_nothing_to_tell_apart(ledger):
    spend(ledger)
    with pytest.raises(BadInput, match="one version alone"):
        ledger.differ("digits", "digits", "why")
    assert ledger.join_history("digits") == []


def test_a_version_of_which_no_records_are_known_counts_with_those_before(ledger):
    spend(ledger)
    ledger.new_version("digits", "n3wer", run="run-2", code_version="0.1")
    spend(ledger, digest="n3wer")
    assert ledger.total("digits").epsilon == 2.0
    ledger.differ("digits", "digits", "all taken anew")
    assert ledger.total("digits").epsilon == 1.0
    ledger.new_version("digits", "newest", run="run-3", code_version="0.1")
    assert ledger.total("digits").epsilon == 1.0, "the reason holds for the versions that there were"


def test_budgets_of_joined_sets_bind_at_their_own_deltas(ledger):
    spend(ledger)
    spend(ledger, dataset="faces")
    ledger.set_budget("faces", 2.5, DELTA / 10)
    ledger.join("digits", "faces", "the same")
    with pytest.raises(Refused, match="epsilon 0.5 of 2.5 left for 'faces', which is joined to 'digits'"):
        spend(ledger)
    ledger.set_budget("digits", 7, DELTA)
    with pytest.raises(BadInput, match="differs from the budget of 'digits'"):
        spend(ledger, delta=DELTA / 10)
    assert ledger.total("digits").left == 0.5 and ledger.budget("digits").epsilon == 2.5


def seen(prints, kind=0):
    """Fingerprints of one kind: 0 of the pixels as they are, 1 of how they look."""
    return set(prints.values[:, kind].tolist()) - {NONE}


def test_fingerprints_see_pixels_alone_and_depend_on_the_key(pictures):
    shown = [picture[:, :, None] for picture in pictures]
    one, other = prints_of(shown, KEY), prints_of(shown[::-1], KEY)
    assert one.records == len(pictures) and seen(one) == seen(other) and len(seen(one)) == len(pictures)
    assert not seen(one) & seen(prints_of(shown, bytes([1] * 32)))
    assert len(prints_of([np.full((3, 3, 3), 7, np.uint8)], KEY).values) == 0
    colour = np.random.default_rng(1).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    turns = [np.rot90(flip, times) for flip in (colour, colour[::-1], 255 - colour) for times in range(4)]
    assert len(seen(prints_of(turns, KEY))) == 1
    assert seen(prints_of([colour[:, :, ::-1]], KEY)) != seen(prints_of([colour], KEY))


def numbers(first, count):
    """Fingerprints of the first kind, and none of the second."""
    return np.stack([np.arange(first, first + count), np.full(count, NONE)], 1).astype(np.uint64)


@pytest.mark.parametrize(
    ("records", "shared", "joined"), [(60, 4, False), (60, 5, True), (999, 9, False), (999, 10, True)]
)
def test_one_in_a_hundred_of_the_smaller_set_and_five_join(records, shared, joined):
    small = Prints(records, numbers(1, records))
    large = Prints(5000, numbers(1 + records - shared, 5000))
    assert match(small, large) == match(large, small) == joined


def blurred(generator, count, side=24):
    """Pictures that show something, as photographs do."""
    coarse = generator.integers(0, 256, (count, 14, 14), dtype=np.uint8)
    return [
        np.asarray(Image.fromarray(one).resize((side, side), Image.Resampling.BICUBIC))[:, :, None] for one in coarse
    ]


def compressed(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0]).save(file, "JPEG", quality=90)
    return np.asarray(Image.open(file))[:, :, None]


CHANGES = {
    "every pixel a little": lambda pixels, generator: np.clip(
        pixels + generator.integers(-2, 3, pixels.shape), 0, 255
    ).astype(np.uint8),
    "compressed": lambda pixels, generator: compressed(pixels),
    "larger": lambda pixels, generator: np.asarray(Image.fromarray(pixels[:, :, 0]).resize((36, 36)))[:, :, None],
    "brighter and turned": lambda pixels, generator: np.rot90(np.clip(pixels * 0.9 + 20, 0, 255).astype(np.uint8)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_pictures_that_look_alike_match_and_others_do_not(change):
    generator = np.random.default_rng(3)
    shown = blurred(generator, 100)
    one, changed = prints_of(shown, KEY), prints_of([change(pixels, generator) for pixels in shown], KEY)
    assert len(seen(one, 1)) == 100 and not seen(one) & seen(changed)
    assert len(seen(one, 1) & seen(changed, 1)) >= 10 and match(one, changed)
    assert not match(one, prints_of(blurred(generator, 300), KEY))


def test_pictures_that_show_little_have_no_looks():
    small = [np.random.default_rng(0).integers(0, 256, (15, 20, 1), dtype=np.uint8)]
    plain = np.zeros((20, 20, 1), np.uint8)
    plain[:10] = 255  # what many sets hold, and says nothing
    assert not seen(prints_of(small, KEY), 1) and not seen(prints_of([plain], KEY), 1)


def test_the_halves_of_a_real_set_are_two_sets(data):
    pictures = list(sources.stored_pictures(data / "mnist"))[:6000]
    one, other = prints_of(pictures[:3000], KEY), prints_of(pictures[3000:], KEY)
    assert not match(one, other) and len(seen(one, 1)) > 2950
    assert match(one, prints_of([*pictures[3000:], *(one_bit(pictures[:40]))], KEY))


def test_a_card_tells_the_total_of_all_joined_sets_with_its_date_and_what_a_person_said(ledger):
    spend(ledger)
    spend(ledger, dataset="faces")
    ledger.join("digits", "faces", "the same people")
    reported = in_all(ledger, "digits")
    assert (reported["sets"], reported["epsilon"], reported["spends"]) == (["digits", "faces"], 2.0, 2)
    assert reported["as_of"].startswith("2026-01-01T") and reported["said"][0]["reason"] == "the same people"
    ledger.differ("digits", "faces", "no, namesakes")
    reported = in_all(ledger, "digits")
    assert (reported["sets"], reported["epsilon"], reported["said"][-1]["kind"]) == (["digits"], 1.0, "differ")


def test_one_record_decides_which_sets_a_card_names_and_what_is_not_covered_says_so(ledger, tmp_path, pictures):
    """Sets are compared without noise: of 60 records four in common leave two sets apart, and a fifth puts the other's name into the card."""
    others = np.random.default_rng(1).integers(0, 256, (2 * EACH, 6, 7), dtype=np.uint8)
    run(ledger, folder_of(tmp_path / "scans", pictures), "scans")
    for shared in (4, 5):
        with_some = np.concatenate([pictures[:shared], others[shared:]])
        run(ledger, folder_of(tmp_path / f"ward-{shared}", with_some), f"ward-{shared}", cost=1 / shared)
        assert (f"ward-{shared}" in in_all(ledger, "scans")["sets"]) == (shared == 5)
    assert "share records" in SHARING and SHARING in EDGE
