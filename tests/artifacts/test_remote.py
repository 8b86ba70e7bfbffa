"""A store that several machines share: on S3 (moto's server on loopback) and in a folder, whole or not at all there too."""

import json
import warnings

import pytest

from artifacts import remote as module
from artifacts.references import PublicModel, Samples
from artifacts.remote import MANIFEST, Remote
from artifacts.store import VERSION, Damaged, Store
from sfumato.errors import BadInput


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.slow)])
def url(request, tmp_path):
    """An empty place."""
    return f"file://{tmp_path}/share" if request.param == "file" else f"{request.getfixturevalue('s3')}/{tmp_path.name}"


def machine(tmp_path, name, url):
    """The store as one machine has it."""
    return Store.open(tmp_path / name, url)


def keep(store, text="one", kind=PublicModel, **facts):
    with store.writing() as folder:
        (folder / "facts.json").write_text(text)
        (folder / "more.json").write_text("more")
        return store.keep(kind, folder, **facts)


def spoil(url, path, data=b"spoilt"):
    """Change a file there, or remove it."""
    files, root = module._connected(url)
    files.rm_file(f"{root}/{path}") if data is None else files.pipe_file(f"{root}/{path}", data)


def test_what_one_machine_keeps_another_one_finds(tmp_path, url):
    first, second = machine(tmp_path, "first", url), machine(tmp_path, "second", url)
    model = keep(first, "model", entries={"4": "DP"})
    drawn = keep(first, "drawn", kind=Samples, parents=[model])
    assert (second.folder(drawn) / "facts.json").read_text() == "drawn"
    assert {path.name for path in second.folder(drawn).iterdir()} == {"facts.json", "more.json", MANIFEST}
    assert second.entries(drawn) == ["4"] and second.manifest(model) == first.manifest(model)
    assert [path.name for path in second.root.iterdir() if path.name.startswith(".new-")] == []


def test_results_are_found_by_their_keys(tmp_path, url):
    first, second = machine(tmp_path, "first", url), machine(tmp_path, "second", url)
    drawn = keep(first, kind=Samples, entries={"4": "INTERNAL"}, seconds=3.5).model_copy(update={"memory": 1.25})
    assert second.recall("books/key") is None
    first.remember("books/key", drawn)
    assert second.recall("books/key") == drawn and type(second.recall("books/key")) is Samples
    spoil(url, "keys/books/key", b"{not json")
    assert second.recall("books/key") is None


@pytest.mark.parametrize("data", [b"spoilt", None], ids=["changed", "gone"])
@pytest.mark.parametrize("name", ["facts.json", MANIFEST])
def test_damage_there_is_found_out_and_made_good_by_making_it_again(tmp_path, url, name, data):
    first, second = machine(tmp_path, "first", url), machine(tmp_path, "second", url)
    ref = keep(first)
    first.remember("key", ref)
    spoil(url, f"objects/{ref.digest}/{name}", data)
    with pytest.raises(Damaged, match=rf"missing or damaged at {url}: run again$"):
        second.folder(ref)
    assert second.recall("key") is None and list((second.root / "objects").iterdir()) == []
    assert keep(second) == ref
    assert machine(tmp_path, "third", url).intact(ref)


def test_damage_here_is_made_good_from_there(tmp_path, url):
    first = machine(tmp_path, "first", url)
    ref = keep(first)
    (first.root / "objects" / ref.digest / "facts.json").write_text("spoilt")
    assert (first.folder(ref) / "facts.json").read_text() == "one"


def test_an_upload_that_is_broken_off_leaves_nothing_that_counts(tmp_path, url, monkeypatch):
    first, second = machine(tmp_path, "first", url), machine(tmp_path, "second", url)
    files, _ = module._connected(url)
    pipe = files.pipe_file

    def break_off(path, value):
        if path.endswith(MANIFEST):
            raise OSError("connection lost")
        return pipe(path, value)

    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as stated:
        warnings.simplefilter("always")
        patch.setattr(files, "pipe_file", break_off)
        ref = keep(first, entries={"1": "DP"})
    assert "is on this machine only" in str(stated[0].message) and first.intact(ref), "what was paid for is not lost"
    assert not second.intact(ref)
    first.remember("key", ref)
    assert second.recall("key") == ref, "the next run sends it"


def test_a_name_that_leaves_its_folder_is_not_written(tmp_path, s3):
    import hashlib

    store = machine(tmp_path, "first", url := f"{s3}/leaving")
    text = json.dumps(
        {"kind": "Samples", "files": {"../../outside": "0" * 64}, "parents": [], "label": "PUBLIC"}
    ).encode()
    digest = hashlib.sha256(text).hexdigest()
    spoil(url, f"objects/{digest}/{MANIFEST}", text)
    with pytest.raises(Damaged, match="leaves its folder"):
        store.folder(digest)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("bucket/folder", "is no URL"),
        ("nowhere://bucket", "cannot be used"),
        ("ftp://keeper:secret@127.0.0.1:1/x", "ftp://127.0.0.1:1/x cannot be used"),
        ("ftp://keeper:of@secret@127.0.0.1:1/x", "ftp://127.0.0.1:1/x cannot be used"),
        ("nowhere://bucket/x?token=secret", "cannot be used"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_line_without_its_password(tmp_path, url, words):
    with pytest.raises(BadInput, match=words) as error:
        Store.open(tmp_path / "store", url)
    assert "\n" not in str(error.value) and "secret" not in str(error.value) and "SFUMATO_STORE" in str(error.value)


def test_a_store_of_another_version_is_refused(tmp_path):
    url = f"file://{tmp_path}/share"
    Remote.open(url, VERSION)
    assert json.loads((tmp_path / "share" / "store.json").read_text()) == {"version": VERSION}
    module._open.cache_clear()
    with pytest.raises(BadInput, match=f"was written by version {VERSION}, this program reads version {VERSION + 1}"):
        Remote.open(url, VERSION + 1)
