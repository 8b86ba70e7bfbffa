"""A published folder is complete, says what it promises and no more; what may not leave does not."""

import base64
import csv
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import fsspec
import numpy as np
import pytest
from PIL import Image

from artifacts import upload
from artifacts.publish import below, destination, publish
from artifacts.record import RECORD, Override
from artifacts.references import TunedModel
from artifacts.remote import MANIFEST
from artifacts.reports.audit import AUDIT_REPORT
from artifacts.reports.run import INTERNAL_FILES, PICTURES
from artifacts.store import Store
from sfumato.class_shares import ClassShares
from sfumato.errors import BadInput, Refused
from sfumato.image_folder import folder_names, pictures_of, safe_name, write_folders
from sfumato.images import ImageSet, grid, save_png
from tests.examples import (
    DELTA,
    PRIVATE_PATH,
    PUBLIC_PATH,
    SCORES,
    keep_samples,
    make_certificate,
    make_record,
    picture_set,
)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store.open(tmp_path / "store")


def dp_samples(store, images=None):
    return keep_samples(store, images, entries={"2": "DP", "5": "DP"})


@pytest.fixture
def record(store, tmp_path):
    return make_record(tmp_path, samples_artifact=dp_samples(store).digest)


def test_what_the_plan_warned_of_goes_along(store, record, tmp_path):
    stated = "privacy.delta=0.02 is above 0.01"
    reported = record.model_copy(update={"plan": record.plan.model_copy(update={"warnings": (stated,)})})
    folder = publish(store, reported, tmp_path / "out" / "told")
    assert json.loads((folder / "card.json").read_text())["warnings"] == [stated]
    assert f"Warning: {stated}." in (folder / "README.md").read_text()


@pytest.fixture
def published(store, record, tmp_path) -> Path:
    return publish(store, record, tmp_path / "out" / "set")


def refused(*words: str):
    """Expects a BadInput in one line that holds all words."""
    return pytest.raises(BadInput, match="^" + "".join(f"(?=.*{word})" for word in words) + r"[^\n]*$")


def texts(folder: Path) -> dict[str, str]:
    """What a person can read in the folder, by file name."""
    return {name: (folder / name).read_text() for name in ("README.md", "card.json", "labels.csv", "report.html")}


# What is there


def test_the_folder_holds_images_labels_picture_card_and_readme_and_nothing_else(published):
    files = sorted(path.relative_to(published).as_posix() for path in published.rglob("*") if path.is_file())
    pictures = [
        f"data/train/{name}/{number:06d}.png"
        for name, numbers in (("cat", (0, 2, 4)), ("dog", (1, 3, 5)))
        for number in numbers
    ]
    beside = ["DATASHEET.md", "README.md", "card.json", "croissant.json", "labels.csv", "registry.yaml", "report.html"]
    assert files == sorted([*beside, "samples.png", "verify_card.py", *pictures])
    assert os.access(published, os.X_OK) and published.stat().st_mode & 0o777 == 0o755


def test_every_image_has_its_row_and_its_pixels(published):
    images = picture_set()
    with (published / "labels.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["file", "label", "class"] and len(rows) == len(images)
    assert len({row[0] for row in rows}) == len(images)
    for number, (name, label, title) in enumerate(rows):
        assert (int(label), title) == (images.labels[number], images.classes[images.labels[number]])
        with Image.open(published / name) as result:
            assert np.array_equal(np.asarray(result), images.pixels[number, 0])
            assert set(result.info) == {"xmp", "XML:com.adobe.xmp"}


def test_classes_that_a_judge_changed_stand_beside_those_that_count(tmp_path):
    images = picture_set()
    write_folders(tmp_path, pictures_of(images, 1 - images.labels, None), images.classes)
    with (tmp_path / "labels.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["file", "label", "class", "drawn"]
    assert [row[3] for row in rows] == [images.classes[1 - label] for label in images.labels]
    assert all(row[0].startswith(f"data/train/{row[2]}/") for row in rows), "folders are of the label that counts"


def test_the_sample_picture_is_the_one_in_the_store(published, store, record):
    original = store.folder(record.samples_artifact) / "samples.png"
    with Image.open(original) as stored, Image.open(published / "samples.png") as shown:
        assert np.array_equal(np.asarray(stored), np.asarray(shown)) and "trainedAlgorithmicMedia" in str(shown.info)


def test_the_card_holds_the_sentence_all_spends_and_the_ledger_entries(published, record):
    card = json.loads((published / "card.json").read_text())
    assert card["statement"] == record.certificate.sentence()
    assert card["certificate"] == record.certificate.model_dump(mode="json")
    assert card["claim"] == {"epsilon": 76.38, "source": "Proposition 1"}
    assert card["spends"] == [spend.model_dump(mode="json") for spend in record.plan.spends]
    assert [spend["event"]["kind"] for spend in card["spends"]] == ["gaussian", "subsampled_gaussian"]
    assert card["ledger_entries"] == [2, 5] and card["label"] == "DP"
    assert (card["images"], card["classes"], card["shape"]) == (6, ["cat", "dog"], [1, 8, 8])
    assert card["settings"]["fine_tuning"] == record.settings["fine_tuning"]


def test_the_readme_says_the_promise_and_its_edge(published, record):
    readme = (published / "README.md").read_text()
    assert record.certificate.sentence() in readme
    for word in (
        "9.876",
        f"{DELTA:.3g}",
        "add_remove",
        "one image with its label",
        "dp-accounting 0.6.0 PLD",
        "any number of images",
        "not covered",
        "people with several images",
        "76.380",
        "not a promise",
    ):
        assert word in readme, word
    assert "Ledger entries 2, 5" in readme and record.run in readme


@pytest.mark.parametrize("images", [1, 500])
def test_a_statement_for_so_many_images_says_so(store, record, tmp_path, images):
    limited = record.model_copy(update={"certificate": make_certificate(images=images, relation="replace_one")})
    readme = (publish(store, limited, tmp_path / "out") / "README.md").read_text()
    assert f"covering {images} images" in readme and "replace_one" in readme and "any number" not in readme


def test_no_private_path_no_score_and_no_seed_leave(published, record, tmp_path):
    for name, text in texts(published).items():
        assert PRIVATE_PATH not in text and "ward-7" not in text and PUBLIC_PATH not in text, name
        assert str(tmp_path) not in text, name
        assert not [score for score in SCORES.values() if str(score) in text], name
    card = json.loads((published / "card.json").read_text())
    assert "data" not in card["settings"] and "seed" not in card["settings"] and "machine" not in card["settings"]


def test_public_samples_leave_with_a_statement_of_their_own(store, record, tmp_path):
    public = keep_samples(store)
    plain = record.model_copy(update={"samples_artifact": public.digest, "certificate": None, "label": "PUBLIC"})
    card = json.loads((publish(store, plain, tmp_path / "out") / "card.json").read_text())
    assert card["statement"] == "made from public data alone" and card["certificate"] is None


# Class names

NAMES = (
    "a/b",
    "a_b",
    "a b",
    "..",
    ".",
    "",
    "../../../etc/cron.d/x",
    "/etc/passwd",
    ".hidden",
    "a\\b",
    "猫",
    "x" * 300,
    "x" * 299,
)


def test_class_names_stay_inside_and_apart(store, record, tmp_path):
    images = picture_set(count=2 * len(NAMES), classes=NAMES)
    strange = record.model_copy(update={"samples_artifact": dp_samples(store, images).digest})
    folder = publish(store, strange, tmp_path / "out" / "set")
    homes = [path.name for path in (folder / "data" / "train").iterdir()]
    assert len(homes) == len(NAMES) and not [home for home in homes if home.startswith(".")]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["set"]
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == list(NAMES) * 2
    for row in rows:
        path = folder / row["file"]
        assert path.is_file() and ".." not in path.parts and path.parent.parent == folder / "data" / "train"
    assert len({(row["file"].split("/")[2], row["class"]) for row in rows}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_safe_name_is_one_part_of_a_path(name):
    safe = safe_name(name)
    assert safe and Path(safe).parts == (safe,) and safe not in (".", "..") and len(os.fsencode(safe)) < 256


def test_an_ordinary_name_stays_as_it_is():
    assert [safe_name(name) for name in ("cat", "7", "v1.2-b_c")] == ["cat", "7", "v1.2-b_c"]


def test_class_folders_differ_in_more_than_capitals_and_are_taken_for_no_split():
    names = folder_names(
        ["Cat", "cat", "test", "my-test.1", "contest", "val", "valley", "__hidden", "nul", "end.", "train"]
    )
    assert names[:2] == ["Cat", "cat-2"]
    assert names[2:8] == ["class=test", "my-class=test.1", "contest", "class=val", "valley", "_hidden"]
    assert names[8:] == ["class=nul", "end", "train"]


# What may not leave


def test_internal_samples_are_refused_naming_the_parent_that_tainted_them(store, record, tmp_path):
    with store.writing() as folder:
        (folder / "facts.json").write_text("{}")
        model = store.keep(TunedModel, folder, entries={"7": "INTERNAL", "2": "DP"})
    samples = keep_samples(store, parents=[model])
    # The record says DP and carries a certificate: the store knows better.
    tainted = record.model_copy(update={"samples_artifact": samples.digest})
    with pytest.raises(Refused, match=rf"^[^\n]*TunedModel {model.digest[:12]}: they must not leave[^\n]*$") as caught:
        publish(store, tainted, tmp_path / "out" / "set")
    assert caught.value.exit_code == 3 and record.run in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_label_is_computed_again_when_something_leaves(store, record, tmp_path):
    """So that a rule that was put right reaches what was kept before, though nothing is made again for it."""
    text = json.loads((store.root / "objects" / record.samples_artifact / MANIFEST).read_text())
    text = json.dumps({**text, "entries": {"7": "INTERNAL"}, "label": "DP"}, sort_keys=True, indent=1)
    forged = hashlib.sha256(text.encode()).hexdigest()
    shutil.copytree(store.root / "objects" / record.samples_artifact, store.root / "objects" / forged)
    (store.root / "objects" / forged / MANIFEST).write_text(text)
    assert store.manifest(forged)["label"] == "DP" and store.label_of(forged) == "INTERNAL"
    with pytest.raises(Refused, match=r"because of Samples .*: they must not leave"):
        publish(store, record.model_copy(update={"samples_artifact": forged}), tmp_path / "out")


def test_samples_without_a_certificate_are_refused_for_that_reason(store, record, tmp_path):
    with pytest.raises(Refused, match=r"^[^\n]*no certificate[^\n]*$"):
        publish(store, record.model_copy(update={"certificate": None}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("harm", [lambda path: path.write_bytes(b"x"), Path.unlink], ids=["changed", "gone"])
def test_damaged_samples_are_one_line_and_do_not_leave(store, record, tmp_path, harm):
    harm(store.folder(record.samples_artifact) / "tensors.safetensors")
    with refused(record.samples_artifact[:12], "run again"):
        publish(store, record, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Where it cannot go


def test_a_folder_with_something_in_it_is_left_alone(store, record, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with refused(str(tmp_path / "out"), "not an empty folder", "--to"):
        publish(store, record, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_used(store, record, tmp_path):
    (tmp_path / "out").mkdir()
    assert (publish(store, record, tmp_path / "out") / "README.md").is_file()


def test_a_place_that_is_a_file_or_below_one_is_refused(store, record, tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "set"):
        with refused(str(tmp_path / "file"), "--to"):
            publish(store, record, place)
    assert (tmp_path / "file").read_text() == "mine"


def refuse(code):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("name", "code"), [("mkdtemp", errno.EACCES), ("mkdtemp", errno.EROFS), ("rename", errno.EBUSY)]
)
def test_a_place_that_cannot_be_written_is_refused(store, record, tmp_path, monkeypatch, name, code):
    place = os if name == "rename" else tempfile
    monkeypatch.setattr(place, name, refuse(code))
    with refused("cannot write", str(tmp_path), os.strerror(code), "--to"):
        publish(store, record, tmp_path / "out")


def test_a_place_that_cannot_be_looked_into_is_refused(store, record, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "iterdir", refuse(errno.EACCES))
    with refused(str(tmp_path / "out"), os.strerror(errno.EACCES), "--to"):
        publish(store, record, tmp_path / "out")


@pytest.mark.parametrize(("place", "name"), [(Path, "write_bytes"), (shutil, "copyfile"), (os, "rename")])
@pytest.mark.parametrize("empty_folder", [True, False])
def test_a_disk_that_fills_leaves_no_half_folder(store, record, tmp_path, monkeypatch, place, name, empty_folder):
    if empty_folder:
        (tmp_path / "out").mkdir()
    monkeypatch.setattr(place, name, refuse(errno.ENOSPC))
    with refused("no space left", str(tmp_path)):
        publish(store, record, tmp_path / "out")
    left = [path for path in tmp_path.iterdir() if path.name != "store"]
    assert not [path for path in left if list(path.iterdir())] and {path.name for path in left} <= {"out"}


def test_the_images_of_a_colour_set_keep_their_colours(store, record, tmp_path):
    images = picture_set(channels=3)
    coloured = record.model_copy(update={"samples_artifact": dp_samples(store, images).digest})
    folder = publish(store, coloured, tmp_path / "out")
    with Image.open(folder / "data" / "train" / "dog" / "000001.png") as result:
        assert np.array_equal(np.asarray(result).transpose(2, 0, 1), images.pixels[1])


def test_a_class_without_images_needs_no_folder(store, record, tmp_path):
    images = ImageSet(picture_set().pixels, np.zeros(6, dtype=np.int64), ("cat", "dog"))
    folder = publish(
        store, record.model_copy(update={"samples_artifact": dp_samples(store, images).digest}), tmp_path / "out"
    )
    assert json.loads((folder / "card.json").read_text())["classes"] == ["cat", "dog"]
    assert [path.name for path in (folder / "data" / "train").iterdir()] == ["cat"]


# The report beside the card


def test_nothing_internal_is_in_what_was_published(store, record, tmp_path):
    """Whatever file there is, walked: no score, no path, no mark of the INTERNAL report, none of its pictures."""
    secrets = {}
    for name in (*INTERNAL_FILES, AUDIT_REPORT, RECORD):
        if name in PICTURES or (tmp_path / name).is_dir():
            continue
        secrets[name] = f"secret of {name}".encode()
        (tmp_path / name).write_bytes(secrets[name])
    save_png(tmp_path / PICTURES[0], grid(picture_set().pixels, 3, 2))
    folder = publish(store, record, tmp_path / "out")
    files = [path for path in folder.rglob("*") if path.is_file()]
    banned = [
        *secrets.values(),
        *(base64.b64encode(secret)[:16] for secret in secrets.values()),
        b"ward-7",
        b"report-internal",
    ]
    banned += [
        PUBLIC_PATH.encode(),
        str(tmp_path).encode(),
        b"Scores against",
        b"trade-off",
        b"copies.png",
        b"canaries",
    ]
    banned += [str(score).encode() for score in SCORES.values()] + [b'class="INTERNAL"', b'"bbb"']
    for path in files:
        text = path.read_bytes()
        assert not [one for one in banned if one in text], path
        assert "internal" not in path.name
    report = (folder / "report.html").read_text()
    assert record.certificate.sentence() in report and "data:image/png;base64," in report
    assert "seed" not in report and "data.limit" not in report and "fine_tuning.steps" in report
    assert not re.search(r"(src|href)=\"(?!data:|#)", report)


def test_on_a_claim_alone_no_report_is_handed_over(store, record, tmp_path):
    samples = keep_samples(store, entries={"7": "INTERNAL"})
    override = Override(kind="claim", reason="a test", missing="all of it", entry=9)
    claimed = record.model_copy(
        update={"samples_artifact": samples.digest, "label": "INTERNAL", "certificate": None, "overrides": (override,)}
    )
    folder = publish(store, claimed, tmp_path / "out")
    assert not (folder / "report.html").exists() and "report.html" not in (folder / "README.md").read_text()


def test_shares_of_the_classes_are_told_with_where_they_come_from(store, record, tmp_path):
    counts = {"cat": 812, "dog": -3}
    requested = ClassShares(source="Counted with noise.", shares={"cat": 0.9, "dog": 0.1}, counts=counts)
    folder = publish(store, record.model_copy(update={"class_shares": requested}), tmp_path / "out")
    card = json.loads((folder / "card.json").read_text())
    assert card["class_shares"] == {"source": requested.source, "shares": requested.shares, "counts": counts}
    for name in ("README.md", "report.html"):
        text = (folder / name).read_text()
        assert "Counted with noise." in text and "812" in text and "90.00%" in text
    plain = json.loads((publish(store, record, tmp_path / "plain") / "card.json").read_text())
    assert plain["class_shares"] is None


# At a URL


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def url(request, tmp_path):
    """An empty place."""
    if request.param == "file":
        return f"file://{tmp_path}/there"
    return f"{request.getfixturevalue('s3')}/{tmp_path.name}"


def listing(url):
    """What is there, by name."""
    files, root = fsspec.core.url_to_fs(url)
    files.invalidate_cache()
    result = files.find(root) if files.exists(root) else []
    return {path.removeprefix(root).strip("/"): files.cat_file(path) for path in result}


def test_at_a_url_the_same_files_lie_as_in_a_folder(store, record, tmp_path, url):
    if url.startswith("file:"):
        Path(url.removeprefix("file://"), "set").mkdir(parents=True)  # an empty folder is a place
    assert publish(store, record, f"{url}/set/") == f"{url}/set"
    folder = publish(store, record, tmp_path / "out")
    here = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert listing(f"{url}/set") == here and set(listing(url)) == {f"set/{name}" for name in here}, "no temporary name"
    with refused("there is something at", "--to"):
        publish(store, record, f"{url}/set")
    with refused("there is something at", "--to"):
        destination(f"{url}/set/card.json")
    assert listing(f"{url}/set") == here


@pytest.mark.parametrize("step", ["put", "_move", "put_file"])
def test_an_upload_that_breaks_off_is_not_whole_and_is_one_line(store, record, url, step, monkeypatch):
    files, _ = fsspec.core.url_to_fs(url, **({"auto_mkdir": True} if url.startswith("file") else {}))

    def broken(*_, **__):
        raise OSError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(upload if step == "_move" else files, step, broken)
        with refused("cannot be published to", "connection lost", "--to"):
            publish(store, record, f"{url}/set")
    there = listing(url)
    assert "set/card.json" not in there and not [name for name in there if name.startswith(".")]
    assert step == "put_file" or not there


def test_internal_samples_do_not_leave_by_a_url_either(store, record, url):
    samples = keep_samples(store, entries={"7": "INTERNAL"})
    with pytest.raises(Refused, match="INTERNAL"):
        publish(store, record.model_copy(update={"samples_artifact": samples.digest}), f"{url}/set")
    assert listing(url) == {}


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("nowhere://bucket/x", "cannot be published to"),
        ("ftp://keeper:secret@127.0.0.1:1/x", "ftp://127.0.0.1:1/x cannot be published to"),
        ("s3://bucket", "names no folder"),
    ],
)
def test_a_url_that_cannot_be_used_is_one_line_without_its_password(place, words):
    with pytest.raises(BadInput, match=words) as error:
        destination(place)
    assert "\n" not in str(error.value) and "secret" not in str(error.value)


def test_nothing_is_written_among_the_private_images(tmp_path):
    """A folder there would be a class of them at the next run."""
    scans = tmp_path / "scans"
    (scans / "cat").mkdir(parents=True)
    for place in (scans / "out", scans / "cat" / "out", tmp_path / "other" / ".." / "scans" / "out"):
        with pytest.raises(BadInput, match="lies within the private images of this run"):
            destination(place, str(scans))
    assert destination(tmp_path / "scans-out", str(scans)) == (tmp_path / "scans-out").resolve()
    with pytest.raises(BadInput, match="name a new one with --to"):
        destination("")


def test_a_place_below_a_place():
    assert (
        below("s3://bucket/sets/", "run-1") == "s3://bucket/sets/run-1"
        and below("/srv/out", "run-1") == "/srv/out/run-1"
    )


@pytest.mark.skipif(not shutil.which("xargs"), reason="the command needs xargs")
def test_the_report_names_the_digest_of_the_images_that_a_reader_can_compute(published):
    command = "find data -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum"
    digest = subprocess.run(command, shell=True, cwd=published, capture_output=True, text=True, check=True).stdout[:64]
    assert digest in (published / "report.html").read_text()
