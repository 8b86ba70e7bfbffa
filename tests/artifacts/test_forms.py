"""Each form of a published set is read by the tools that the world reads data sets with, and by this program; all hold the same pictures."""

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from artifacts import forms
from artifacts.forms import FORMS
from artifacts.packaging import Packaging
from artifacts.publish import publish
from artifacts.references import Samples
from artifacts.serialization import save_relabelled
from artifacts.store import Store
from sfumato import sources
from sfumato.config import Release
from sfumato.errors import BadInput
from sfumato.images import ImageSet, grid, save_png
from tests.examples import keep_samples, make_record, picture_set

NAMES = ("cat", "test", "a/b")
FOLDERS = ("a_b", "cat", "class=test")
"""The names as folders, in the order in which loaders number them."""
COUNT = 7


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        datasets = pytest.importorskip("datasets")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
        datasets.disable_progress_bars()
        yield


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return picture_set(count=COUNT, classes=NAMES, channels=3)


@pytest.fixture(scope="module")
def published(tmp_path_factory, images) -> dict[str, Path]:
    """The same samples in each form."""
    base = tmp_path_factory.mktemp("published")
    store = Store.open(base / "store")
    record = make_record(base, samples_artifact=keep_samples(store, images, entries={"2": "DP"}).digest)
    return {
        form: publish(
            store, record, base / form, packaging=Packaging(Release(licence="CC-BY-4.0", form=form), date="2026-01-31")
        )
        for form in FORMS
    }


@pytest.fixture(params=list(FORMS))
def folder(request, published) -> Path:
    return published[request.param]


def snippets(folder: Path) -> list[str]:
    """The lines of Python in a README, for this folder."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    return [block.replace("FOLDER", str(folder)) for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]


def run(snippet: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(snippet, names)
    return names


def pngs(folder: Path) -> list[bytes]:
    """The files of a folder's pictures, in the order of their numbers, whatever its form."""
    if folder.name == "folder":
        return [path.read_bytes() for path in sorted(folder.glob(FORMS["folder"].glob), key=lambda path: path.name)]
    if folder.name == "parquet":
        table = pytest.importorskip("pyarrow.parquet").read_table(folder / "data")
        return [row["image"]["bytes"] for row in table.to_pylist()]
    shards = sorted(folder.glob(FORMS["webdataset"].glob))
    return [
        tar.extractfile(e).read()
        for path in shards
        for tar in [tarfile.open(path)]
        for e in tar
        if e.name.endswith("png")
    ]


def test_all_forms_hold_the_same_files(published, images):
    first = pngs(published["folder"])
    assert len(first) == COUNT and pngs(published["parquet"]) == first and pngs(published["webdataset"]) == first


def test_datasets_reads_the_folder_with_names_and_counts(published, images):
    import datasets

    read = datasets.load_dataset("imagefolder", data_dir=str(published["folder"]))
    assert list(read) == ["train"] and len(read["train"]) == COUNT
    assert tuple(read["train"].features["label"].names) == FOLDERS
    counts = [read["train"]["label"][:].count(number) for number in range(3)]
    assert counts == [2, 3, 2]


@pytest.mark.parametrize("form", list(FORMS))
def test_datasets_reads_the_header_of_the_readme(published, form, images):
    import datasets

    read = datasets.load_dataset(str(published[form]))
    assert list(read) == ["train"] and len(read["train"]) == COUNT
    picture, label = ("png", "cls") if form == "webdataset" else ("image", "label")
    first = read["train"][0]
    assert first[picture].size == (8, 8)
    if form == "parquet":
        assert read["train"].features["label"].names == list(NAMES)
        assert read["train"][label] == images.labels.tolist()


def test_torchvision_reads_the_folder(published):
    torchvision = pytest.importorskip("torchvision")
    read = torchvision.datasets.ImageFolder(published["folder"] / "data" / "train")
    assert tuple(read.classes) == FOLDERS and len(read) == COUNT


def test_what_the_readme_says_of_loading_runs(folder):
    results = [run(snippet) for snippet in snippets(folder)]
    assert len(results) == (2 if folder.name == "webdataset" else 3)
    for names in results:
        (rows,) = [names[name] for name in ("images", "table", "records") if name in names]
        assert len(getattr(rows, "index", list(rows))) == COUNT


def test_croissant_is_valid_and_gives_the_pictures(folder, images):
    mlcroissant = pytest.importorskip("mlcroissant")
    described = mlcroissant.Dataset(folder / "croissant.json")
    issues = described.metadata.ctx.issues
    assert not issues.errors and not issues.warnings, issues.report()
    content = json.loads((folder / "croissant.json").read_text())
    assert (
        content["conformsTo"][0].endswith("/1.1") and content["rai:dataLimitations"] and content["rai:dataCollection"]
    )
    if folder.name == "webdataset":
        assert len(content["distribution"]) == 1 and not content["recordSet"]
        return
    rows = list(described.records("images"))
    assert len(rows) == COUNT and all("images/label" in row for row in rows)
    shown = sorted(np.asarray(row["images/image"]).tobytes() for row in rows)
    assert shown == sorted(one.transpose(1, 2, 0).tobytes() for one in images.pixels)


def test_the_program_reads_back_what_it_published(folder, images):
    names = (
        [name.replace("/", "_").replace("test", "class=test") for name in NAMES]
        if folder.name == "folder"
        else list(NAMES)
    )
    read = sources.load(folder, sources.Reading("all"))
    assert sorted(read.classes) == sorted(names) and len(read) == COUNT
    theirs = {(read.classes[label], one.tobytes()) for label, one in zip(read.labels, read.pixels, strict=True)}
    assert theirs == {(names[label], one.tobytes()) for label, one in zip(images.labels, images.pixels, strict=True)}
    assert sources.describe(folder, sources.Reading("all")).records == COUNT
    assert not sources.inspect(folder, sources.Reading("all")).broken


def test_a_folder_that_was_edited_is_refused_in_one_line(published, tmp_path):
    folder = shutil.copytree(published["folder"], tmp_path / "copy")
    picture = next(folder.glob(FORMS["folder"].glob))
    picture.unlink()
    with pytest.raises(
        BadInput, match=r"^[^\n]*was edited since it was published \(file data/train/[^\n]* is missing\)[^\n]*$"
    ):
        sources.load(folder, sources.Reading("all"))
    assert len(sources.load(folder / "data", sources.Reading("all"))) == COUNT - 1


def test_a_folder_of_a_newer_version_is_refused_in_one_line(published, tmp_path):
    folder = shutil.copytree(published["parquet"], tmp_path / "copy")
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "form": "zarr", "code_version": "9.1"}))
    with pytest.raises(BadInput, match=r"^[^\n]*of the form 'zarr'[^\n]* install 9.1$"):
        sources.load(folder, sources.Reading("all"))


@pytest.mark.parametrize("form", list(FORMS))
def test_one_class_needs_no_label(tmp_path, form):
    store = Store.open(tmp_path / "store")
    samples = keep_samples(store, picture_set(classes=("unlabelled",)), entries={"2": "DP"})
    record = make_record(tmp_path, samples_artifact=samples.digest)
    reported = []
    folder = publish(
        store,
        record,
        tmp_path / form,
        packaging=Packaging(Release(licence="MIT", form=form)),
        progress=lambda *step: reported.append(step),
    )
    import datasets

    assert reported == [(image, 6) for image in range(1, 7)], "each image is reported"
    assert len(datasets.load_dataset(str(folder))["train"]) == 6
    assert len(sources.load(folder, sources.Reading("all"))) == 6
    for snippet in snippets(folder):
        run(snippet)


def test_folders_of_earlier_versions_are_read(published, tmp_path):
    folder = shutil.copytree(published["folder"], tmp_path / "copy")
    (folder / "data" / "train").rename(folder / "images")
    (folder / "data").rmdir()
    card = json.loads((folder / "card.json").read_text())
    card["files"] = {name.replace("data/train/", "images/"): digest for name, digest in card["files"].items()}
    (folder / "card.json").write_text(json.dumps(card))
    assert sources.load(folder, sources.Reading("all")).classes == FOLDERS


def test_the_header_says_what_hugging_face_asks(folder):
    header = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert header["license"] == "cc-by-4.0" and header["size_categories"] == ["n<1K"]
    assert header["task_categories"] == ["image-classification"] and "synthetic" in header["tags"]
    assert header["dataset_info"]["splits"][0]["num_examples"] == COUNT


@pytest.mark.parametrize("terms", ["LicenseRef-Ward-7", "MIT OR CC0-1.0"])
def test_other_licences_are_named(tmp_path, terms):
    store = Store.open(tmp_path / "store")
    record = make_record(tmp_path, samples_artifact=keep_samples(store, entries={"2": "DP"}).digest)
    folder = publish(store, record, tmp_path / "out", packaging=Packaging(Release(licence=terms)))
    header = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert header["license"] == "other" and header["license_name"] in ("ward-7", "mit-or-cc0-1.0")
    assert json.loads((folder / "card.json").read_text())["licence"] == terms


def test_without_a_licence_nothing_is_published(tmp_path):
    store = Store.open(tmp_path / "store")
    record = make_record(tmp_path, samples_artifact=keep_samples(store, entries={"2": "DP"}).digest)
    bare = record.model_copy(update={"settings": {**record.settings, "release": {}}})
    with pytest.raises(BadInput, match=r"^no licence[^\n]*--licence[^\n]*$"):
        publish(store, bare, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", list(FORMS))
def test_classes_drawn_for_stand_beside_those_that_count(tmp_path, form):
    store, images = Store.open(tmp_path / "store"), picture_set()
    with store.writing() as retained:
        save_relabelled(retained, images, 1 - images.labels)
        save_png(retained / "samples.png", grid(images.pixels, 3, 2))
        samples = store.keep(Samples, retained, entries={"2": "DP"})
    record = make_record(tmp_path, samples_artifact=samples.digest)
    folder = publish(store, record, tmp_path / form, packaging=Packaging(Release(licence="MIT", form=form)))
    import datasets

    rows = datasets.load_dataset(str(folder))["train"]
    if form == "parquet":
        assert rows["drawn"] == [1 - label for label in rows["label"]]
    if form == "webdataset":
        assert [row["drawn"] for row in rows["json"]] == [images.classes[1 - label] for label in rows["cls"]]
    assert "class drawn for" in (folder / "README.md").read_text()
    answers = (folder / "DATASHEET.md").read_text()
    assert f"A judge then gave {len(images)} images another class" in answers
    assert "drawn for, or the one that a judge gave it" in answers


@pytest.mark.parametrize("form", ["parquet", "webdataset"])
def test_large_sets_are_dealt_to_several_files(tmp_path, monkeypatch, form, images):
    monkeypatch.setattr(forms, "SHARD_BYTES", 1500)
    store = Store.open(tmp_path / "store")
    record = make_record(tmp_path, samples_artifact=keep_samples(store, images, entries={"2": "DP"}).digest)
    folder = publish(store, record, tmp_path / form, packaging=Packaging(Release(licence="MIT", form=form)))
    assert len(list(folder.glob(FORMS[form].glob))) > 2
    assert len(sources.load(folder, sources.Reading("all"))) == COUNT
    assert all(sum(1 for _ in run(snippet).get("records", range(COUNT))) == COUNT for snippet in snippets(folder))


def test_each_file_says_that_a_model_made_it(published):
    for path in published["folder"].rglob("*.png"):
        with Image.open(path) as shown:
            assert b"digitalsourcetype/trainedAlgorithmicMedia" in shown.info["xmp"]
