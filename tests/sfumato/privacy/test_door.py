"""The door: one content under one name, an entry before each opening, its label, and the asked part alone."""

import itertools

import numpy as np
import pytest
from PIL import Image

from sfumato import sources
from sfumato.config import Constants
from sfumato.errors import BadInput, Refused, Unnamed
from sfumato.images import ImageSet
from sfumato.privacy import door
from sfumato.privacy.accounting.events import Gaussian
from sfumato.privacy.door import Access, PrivateSet, check_in, identify, looking, read, spending
from sfumato.privacy.ledger.ledger import Ledger
from tests.spends import KEYS

EVENT = Gaussian(noise_multiplier=4.0)


@pytest.fixture
def ledger(tmp_path):
    ticks = itertools.count()
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", lambda: f"2026-01-01T00:{next(ticks) % 60:02d}:00Z", KEYS) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path):
    """Sixty pictures in three classes."""
    generator = np.random.default_rng(0)
    for name in "abc":
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(20):
            pixels = generator.integers(0, 256, (6, 6), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "set" / name / f"{i}.png")
    return tmp_path / "set"


def private(folder, **changes):
    return PrivateSet(**({"name": "set", "source": str(folder), "held_out": 0.3} | changes))


def access(ledger, private, **changes):
    fields = {
        "ledger": ledger, "private": private, "run": "run-1", "stage": "a stage", "purpose": "a test",
        "code_version": "0.1", "relation": "add_remove", "delta": 1e-5,
    }  # fmt: skip
    return Access(**(fields | changes))


def spend(access):
    with spending(access, [EVENT]) as visit:
        pass
    visit.payment.commit(access.ledger, "a" * 64)
    return visit


def look(access):
    with looking(access, "train") as visit:
        return visit


def compare(access):
    with spending(Access(**{**vars(access), "comparison": True}), [EVENT]) as visit:
        return visit


WAYS_IN = {"check in": check_in, "spending": spend, "looking": look, "comparison": compare}
every_way_in = pytest.mark.parametrize("enter", WAYS_IN.values(), ids=WAYS_IN)


def test_why_so_large_an_epsilon_is_wanted_stands_in_the_ledger(ledger, folder):
    spend(access(ledger, private(folder), reason="nobody sees it but us"))
    spend(access(ledger, private(folder)))
    reserved = [entry.body for entry in ledger.entries() if entry.kind == "reserve"]
    assert [body.get("reason") for body in reserved] == ["nobody sees it but us", None]


def test_the_door_stays_shut_where_the_budget_bears_this_spend_and_not_what_follows(ledger, folder, monkeypatch):
    check_in(access(ledger, private(folder)))
    ledger.set_budget("set", 1.5, 1e-5)
    monkeypatch.setattr(door, "read", lambda *_: pytest.fail("the door was opened"))
    with pytest.raises(Refused, match="epsilon 1.5 of 1.5 left for .*this run needs 1.99"):
        spend(access(ledger, private(folder), following=(EVENT, EVENT, EVENT)))
    assert [entry.kind for entry in ledger.entries()] == ["look", "budget"]
    monkeypatch.undo()
    spend(access(ledger, private(folder)))


def test_canaries_go_into_a_comparison_alone(ledger, folder):
    coins = ImageSet(np.zeros((2, 1, 6, 6), np.uint8), np.zeros(2, np.int64), ("a", "b", "c"))
    with pytest.raises(ValueError, match="canaries may go into a comparison only"):
        access(ledger, private(folder), canaries=coins)
    assert compare(access(ledger, private(folder), canaries=coins, comparison=True)).label == "INTERNAL"


@every_way_in
@pytest.mark.parametrize("change", ["pixel", "more", "fewer", "label"])
def test_changed_images_under_the_same_name_are_refused(ledger, folder, enter, change, monkeypatch):
    check_in(access(ledger, private(folder)))
    if change == "pixel":
        pixels = np.asarray(Image.open(folder / "a" / "0.png")).copy()
        pixels[3, 3] ^= 1
        Image.fromarray(pixels).save(folder / "a" / "0.png")
    elif change == "more":
        Image.fromarray(np.zeros((6, 6), np.uint8)).save(folder / "a" / "new.png")
    elif change == "fewer":
        (folder / "a" / "0.png").unlink()
    else:
        (folder / "a" / "0.png").rename(folder / "b" / "moved.png")
    if enter is not check_in:  # which reads first, as it says
        monkeypatch.setattr(door, "read", lambda *_: pytest.fail("the door was opened"))
    with pytest.raises(BadInput, match="'set' changed since its last entry: bring the images back"):
        enter(access(ledger, private(folder)))
    assert [entry.kind for entry in ledger.entries()] == ["look"], "no second entry"
    enter_anew = PrivateSet(**{**private(folder).model_dump(), "name": "set-2"})
    monkeypatch.undo()
    check_in(access(ledger, enter_anew))


@every_way_in
def test_files_that_change_while_they_are_read_are_refused_and_cost_nothing(ledger, folder, enter, monkeypatch):
    """The ledger holds the digest of what was there before; what is learnt from must be the same."""

    def followed(work):
        def meanwhile(*arguments):
            images = work(*arguments)
            Image.fromarray(np.zeros((6, 6), np.uint8)).save(folder / "a" / "0.png")
            return images

        return meanwhile

    for name in ("read", "_sound"):
        monkeypatch.setattr(door, name, followed(getattr(door, name)))
    with pytest.raises(BadInput, match="files of 'set' changed while they were read: nothing was learnt"):
        enter(access(ledger, private(folder)))
    assert not any(events for _, events in ledger.spends("set"))


def test_files_beside_those_of_the_set_may_change(ledger, folder, monkeypatch):
    def preceded(work):
        def meanwhile(*arguments):
            (folder / "notes.txt").write_text(str(len(list(folder.iterdir()))))
            (folder.parent / "home.db").write_text("more")
            return work(*arguments)

        return meanwhile

    for name in ("read", "_sound"):
        monkeypatch.setattr(door, name, preceded(getattr(door, name)))
    for enter in WAYS_IN.values():
        enter(access(ledger, private(folder)))


@every_way_in
def test_one_content_has_one_name(ledger, folder, enter):
    check_in(access(ledger, private(folder)))
    with pytest.raises(BadInput, match="in the ledger as 'set': use that name"):
        enter(access(ledger, private(folder, name="alias")))


@every_way_in
def test_names_order_and_format_of_files_do_not_matter(ledger, folder, enter):
    check_in(access(ledger, private(folder)))
    for name in "abc":
        for i in range(20):
            path = folder / name / f"{i}.png"
            Image.open(path).save(folder / name / f"other-{19 - i}.bmp")
            path.unlink()
    enter(access(ledger, private(folder)))


@every_way_in
def test_a_damaged_picture_is_refused_without_its_name_and_nothing_is_written(ledger, folder, enter):
    path = folder / "b" / "7.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(Unnamed, match="the private set 'set' holds an image that is corrupt") as reported:
        enter(access(ledger, private(folder)))
    assert "7.png" not in str(reported.value) and reported.value.internal.count("b/7.png") == 1
    assert reported.value.__context__ is None, "no traceback shows the line with the name"
    assert ledger.entries() == []


def test_what_would_end_a_run_after_it_has_paid_ends_it_at_check_in(ledger, folder):
    for changes, message in [
        ({"share": 0.02}, "training images .* too few .* it takes 6"),
        ({"held_out": 0.02}, "held-out images .* too few .* data.held_out=0.02"),
    ]:
        with pytest.raises(BadInput, match=message):
            check_in(access(ledger, private(folder, **changes)))
    assert ledger.entries() == []
    check_in(access(ledger, private(folder, share=0.7)))


def test_where_no_setting_brings_enough_images_none_is_offered(ledger, folder):
    for name in "abc":
        for path in sorted((folder / name).glob("*.png"))[3:]:
            path.unlink()
    with pytest.raises(BadInput, match="it takes 6: add images$"):
        check_in(access(ledger, private(folder)))


def test_what_is_wrong_with_one_image_of_an_array_is_said_without_its_number_and_its_values(ledger, tmp_path):
    images = np.linspace(0, 1, 60 * 36).reshape(60, 6, 6)
    images[17, 3, 3] = 1371.25
    np.savez(tmp_path / "scans.npz", images=images, labels=np.arange(60) % 2, range=[0, 1])
    with pytest.raises(Unnamed, match=r"holds an image with values outside its range \[0, 1\]") as refused:
        check_in(access(ledger, private(tmp_path / "scans.npz")))
    assert "17" not in str(refused.value) and "1371" in refused.value.internal


@pytest.mark.parametrize("kind", ["npz", "idx"])
def test_a_label_without_a_name_is_said_without_its_value(ledger, tmp_path, kind):
    """It is one record's, and the refusal stands in Prefect's UI."""
    images, labels = np.zeros((60, 6, 6), np.uint8), np.arange(60) % 2
    labels[17] = 41
    (place := tmp_path / "scans").mkdir()
    if kind == "npz":
        np.savez(place := tmp_path / "scans.npz", images=images, labels=labels, classes=np.array(["ill", "well"]))
    else:
        for name, values in (("images-idx3", images), ("labels-idx1", labels.astype(np.uint8))):
            header = [0x0800 + values.ndim, *values.shape]
            (place / f"train-{name}-ubyte").write_bytes(np.array(header, ">u4").tobytes() + values.tobytes())
        (place / "classes.txt").write_text("ill\nwell\n")
    with pytest.raises(Unnamed) as refused:
        check_in(access(ledger, private(place)))
    assert "41" not in str(refused.value) and "name" in str(refused.value) and "41" in refused.value.internal


@pytest.mark.parametrize("group", ["folder", "prefix"])
def test_a_set_of_persons_enters_however_they_are_named(ledger, tmp_path, group):
    for number in range(80):
        between = f"person-{number // 2}" + ("/" if group == "folder" else "_")
        path = tmp_path / "wards" / ("ill", "well")[number % 2] / f"{between}{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(path)
    requested = access(ledger, private(tmp_path / "wards", group=group, unit="person"))
    assert check_in(requested).kind == "look" and len(set(read(requested.private, "train").groups)) > 20


@pytest.mark.parametrize("group", ["folder", "prefix"])
def test_how_persons_are_to_be_named_is_said_without_the_name_of_a_file(ledger, folder, group):
    with pytest.raises(Unnamed, match=f"as data.group={group} has them.*use another data.group$") as refused:
        check_in(access(ledger, private(folder, group=group, unit="person")))
    assert "0.png" not in str(refused.value)


@pytest.mark.parametrize(("unit", "total"), [("person", 2), ("", 1)])
def test_versions_of_persons_count_together_though_no_image_is_in_both(ledger, tmp_path, unit, total):
    """The same persons come with other images; single images that are all new have paid nothing yet."""
    for version in range(2):
        for number in range(80):
            between = f"person-{number // 2}" + ("/" if unit else "_")
            path = tmp_path / f"{version}" / "ill" / f"{between}{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), 80 * version + number, np.uint8)).save(path)
        requested = access(ledger, private(tmp_path / f"{version}", group="folder" if unit else "none", unit=unit))
        check_in(requested, new_version=version > 0)
        spend(requested)
    assert ledger.total("set").spends == total


def test_a_version_of_single_images_between_two_of_persons_parts_them_not(ledger, tmp_path):
    """Images that are all new have paid nothing yet, but their persons may have: those that come next count with every version before."""
    for version, unit in enumerate(["person", "", "person"]):
        for number in range(80):
            path = tmp_path / f"{version}" / "ill" / f"person-{number // 2}" / f"{number}.png"
            path = path if unit else path.parent.parent / path.name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), 80 * version + number, np.uint8)).save(path)
        requested = access(ledger, private(tmp_path / f"{version}", group="folder" if unit else "none", unit=unit))
        check_in(requested, new_version=version > 0)
        spend(requested)
        assert ledger.total("set").spends == (1, 1, 3)[version]


def public_images(source, **requested):
    return sources.load(source, sources.Reading(part="all", **requested))


def copied_to(place, folder, kind):
    """One private picture of sixty, in a class of another name, among others that are not private."""
    generator, pixels = np.random.default_rng(1), np.asarray(Image.open(folder / "b" / "7.png"))
    others = [*generator.integers(0, 256, (5, 6, 6), dtype=np.uint8)]
    if kind == "npz":
        np.savez(place / "open.npz", images=np.stack([*others, pixels]), labels=np.arange(6) % 2)
        return place / "open.npz"
    for i, picture in enumerate([*others, pixels]):
        (place / "open" / f"class {i % 2}").mkdir(parents=True, exist_ok=True)
        picture = np.stack([picture] * 3, axis=2) if kind == "colour" else picture
        Image.fromarray(picture).save(place / "open" / f"class {i % 2}" / f"{i}.bmp")
    return place / "open"


@pytest.mark.parametrize("kind", ["folder", "npz", "colour"])
@pytest.mark.parametrize("changes", [{}, {"share": 0.5}, {"size": 4}, {"size": 4, "invert": True}])
def test_public_images_with_a_private_one_among_them_are_refused(ledger, folder, tmp_path, kind, changes):
    """With the look written, in one line that says neither which nor how many."""
    changes = {"channels": 1, **changes}
    public = public_images(copied_to(tmp_path, folder, kind), size=changes.get("size"), channels=1)
    with pytest.raises(BadInput, match="^the public images hold copies of private images of .*data.public") as caught:
        check_in(access(ledger, private(folder, **changes)), public)
    assert "\n" not in str(caught.value) and "7" not in str(caught.value).replace(str(folder), "")
    assert [entry.kind for entry in ledger.entries()] == ["look"]


def test_held_out_images_are_private_too(ledger, folder):
    requested = access(ledger, private(folder))
    for part in ("train", "test"):
        with pytest.raises(BadInput, match="hold copies"):
            check_in(requested, read(requested.private, part).subset(slice(1)))


def test_public_images_of_their_own_are_welcome_and_so_are_empty_pages(ledger, folder):
    for at in range(2):
        Image.fromarray(np.full((6, 6), 255 * at, np.uint8)).save(folder / "a" / f"empty {at}.png")
    own = public_images(folder)
    pixels = np.concatenate([own.pixels ^ 1, np.zeros((1, 1, 6, 6), np.uint8)])
    labels = np.append(own.labels, 0)
    assert check_in(access(ledger, private(folder)), ImageSet(pixels, labels, own.classes)).kind == "look"


def test_the_default_public_images_are_no_private_ones(ledger):
    requested = access(ledger, private("digits"))
    for characters in sources.ALPHABETS.values():
        check_in(requested, public_images("glyphs", size=8, characters=characters))


def test_the_digest_is_of_the_whole_set_however_it_is_read(folder):
    reported = {identify(private(folder, **changes)) for changes in ({}, {"size": 3}, {"share": 0.5}, {"channels": 3})}
    assert len(reported) == 1 and reported != {identify(private("digits"))}


@pytest.mark.parametrize("enter", [spend, look, compare])
def test_the_entry_stands_before_the_first_picture_is_handed_out(ledger, folder, enter, monkeypatch):
    seen = []

    def spy(private, part, real=read):
        seen.extend(entry.kind for entry in ledger.entries())
        return real(private, part)

    monkeypatch.setattr(door, "read", spy)
    enter(access(ledger, private(folder)))
    assert seen == {spend: ["reserve", "open"], look: ["look"], compare: ["look"]}[enter]


def test_each_way_gives_the_label_of_its_entry(ledger, folder):
    requested = access(ledger, private(folder))
    visit = spend(requested)
    assert visit.entries == {ledger.entries()[0].hash: "DP"} and visit.label == "DP"
    assert look(requested).label == compare(requested).label == "INTERNAL"
    with spending(requested, [EVENT], insecure=True) as visit:
        assert visit.label == "INTERNAL"


def test_an_error_inside_leaves_no_commit(ledger, folder):
    with pytest.raises(ZeroDivisionError), spending(access(ledger, private(folder)), [EVENT]):
        1 / 0  # noqa: B018
    assert [entry.kind for entry in ledger.entries()] == ["reserve", "open"]
    assert ledger.total("set").spends == 1


def test_each_part_is_read_as_the_set_says(ledger, folder):
    whole = sources.load(folder, sources.Reading(part="all", channels=3, size=4))
    requested = access(ledger, private(folder, size=4, channels=3))
    with looking(requested, "train") as train, looking(requested, "test") as test:
        assert train.images.pixels.shape[1:] == test.images.pixels.shape[1:] == (3, 4, 4)
        assert len(train.images) + len(test.images) == len(whole) == 60
        assert 8 <= len(test.images) <= 30
        assert not {x.tobytes() for x in train.images.pixels} & {x.tobytes() for x in test.images.pixels}


def test_the_share_is_of_the_training_part_and_leaves_the_held_out_one(folder):
    some, whole = private(folder, share=0.5), private(folder)
    chosen, everyone = read(some, "train"), read(whole, "train")
    assert 10 < len(chosen) < len(everyone) - 10
    assert {x.tobytes() for x in chosen.pixels} < {x.tobytes() for x in everyone.pixels}
    assert np.array_equal(read(some, "test").pixels, read(whole, "test").pixels)


def test_removing_a_record_pulls_no_other_one_in(folder):
    """Attack of the survey: with the first N, as data.limit took them, one record less brought another one into training, so
    that a run told at epsilon 8.38 under add/remove was an exchange, 21.2."""
    some = private(folder, share=0.5)
    before = {x.tobytes() for x in read(some, "train").pixels}
    for path in sorted(folder.rglob("*.png"))[::7]:
        own, retained = np.asarray(Image.open(path)).tobytes(), path.read_bytes()
        path.unlink()
        assert {x.tobytes() for x in read(some, "train").pixels} == before - {own}, path
        path.write_bytes(retained)


def test_constants_stand_in_the_entry_of_the_check_until_a_new_version(ledger, folder):
    """What later runs take for the number of records and the class list, whatever lies in the folder by then."""
    constants = Constants(records=60, images=60, classes=("a", "b", "c"))
    assert ledger.constants("set") is None
    entry = check_in(access(ledger, private(folder)), constants=constants)
    look(access(ledger, private(folder)))
    assert ledger.constants("set") == constants and entry.public()["unprotected"]["records"] == 60
    (folder / "a" / "0.png").unlink()
    check_in(access(ledger, private(folder)), new_version=True)
    assert ledger.constants("set") is None, "another version has its own"


def test_no_digest_is_shown(ledger, folder):
    digest = identify(private(folder))
    spend(access(ledger, private(folder)))
    look(access(ledger, private(folder)))
    shown = repr(ledger.entries()) + "".join(map(str, (entry.public() for entry in ledger.entries())))
    assert digest not in shown


def test_a_choice_of_classes_is_a_set_of_its_own(ledger, folder):
    """The same name for another choice is refused; what two choices share counts together, what they do not stays apart."""

    def chosen(name, *only):
        return access(ledger, private(folder, name=name, only=only))

    assert identify(private(folder)) == identify(private(folder, only=("a", "b", "c")))
    check_in(chosen("one", "a", "b"))
    with looking(chosen("one", "a", "b"), "all") as visit:
        assert len(visit.images) == 40 and visit.images.classes == ("a", "b")
    with pytest.raises(BadInput, match="--new-version"):
        check_in(chosen("one", "b", "c"))
    spend(chosen("one", "a", "b"))
    check_in(chosen("two", "b", "c"))
    spent = [ledger.total(name, 1e-5).epsilon for name in ("one", "two")]
    assert spent[0] == spent[1] > 0
    alone = access(ledger, private(folder, name="three", only=("c",), classes=("c", "d")))
    identify(alone.private)
    others = sources.load(folder, sources.Reading(part="all", only=("c",)))
    with pytest.raises(BadInput, match="hold copies of private images"):
        check_in(chosen("two", "b", "c"), others)
    check_in(chosen("one", "a", "b"), others)
