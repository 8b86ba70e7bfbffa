"""The store: whole or not at all, found by content, every change noticed, labels computed from what went in."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from artifacts import serialization
from artifacts import store as store_module
from artifacts.labels import ORDER, Label
from artifacts.references import ChosenImages, PublicImages, PublicModel, Samples, TunedModel
from artifacts.store import VERSION, Damaged, Store, full_disk, write_text
from sfumato import formats
from sfumato.errors import BadInput


@pytest.fixture
def store(tmp_path) -> Store:
    return Store.open(tmp_path / "deep" / "store")


def keep(store, text="one", kind=PublicModel, **facts):
    with store.writing() as folder:
        (folder / "facts.json").write_text(text)
        (folder / "more.json").write_text("more")
        return store.keep(kind, folder, **facts)


def retained(store) -> list[str]:
    return sorted(path.name for path in (store.root / "objects").iterdir())


def drafts(store) -> list[str]:
    return [path.name for path in store.root.iterdir() if path.name not in ("store.json", "objects")]


def refused(*words: str):
    """Expects a BadInput in one line that holds all words."""
    return pytest.raises(BadInput, match="^" + "".join(f"(?=.*{word})" for word in words) + r"[^\n]*$")


# Content addresses


def test_the_address_is_the_digest_of_the_manifest_and_that_holds_the_digest_of_every_file(store):
    ref = keep(store, "content", summary={"images": 3})
    text = (store.folder(ref) / "manifest.json").read_text()
    assert hashlib.sha256(text.encode()).hexdigest() == ref.digest
    files = json.loads(text)["files"]
    assert files == {
        name: hashlib.sha256(body).hexdigest() for name, body in (("facts.json", b"content"), ("more.json", b"more"))
    }
    assert store.manifest(ref)["summary"] == {"images": 3} and store.manifest(ref)["kind"] == "PublicModel"


def test_the_same_content_has_one_address_however_long_it_took(store):
    first, second = keep(store, seconds=1.0, tracked="run-a"), keep(store, seconds=9.0, tracked="run-b")
    assert first.digest == second.digest and retained(store) == [first.digest]
    assert (second.seconds, second.tracked) == (9.0, "run-b")
    assert type(first) is PublicModel


def test_what_it_took_to_make_an_artifact_is_noted_beside_it(store):
    ref = keep(store, seconds=2.0).model_copy(update={"memory": 1.25, "gpu_memory": 0.5})
    store.note("key", ref)
    assert store.noted("key") == ref
    (store.root / "keys" / "key.json").write_text(json.dumps({"digest": ref.digest, "seconds": 2.0}))
    assert store.noted("key") == ref.model_copy(update={"memory": 0.0, "gpu_memory": 0.0}), "of an earlier version"
    for damaged in ("[]", "3", '{"digest": 1, "seconds": "long"}'):
        (store.root / "keys" / "key.json").write_text(damaged)
        assert store.noted("key") is None


def test_what_stands_behind_a_spend_does_not_hand_its_label_on(store):
    member = keep(store, "member", entries={"1": "INTERNAL"})
    drawn = keep(store, "drawn", kind=Samples, behind=[member], entries={"2": "DP"})
    assert drawn.label == Label.DP and store.manifest(drawn)["behind"] == [member.digest]
    assert store.entries(drawn) == ["2"] and store.tainted_by(drawn) == "nothing"
    assert keep(store, "of a look", kind=Samples, behind=[member], entries={"3": "INTERNAL"}).label == Label.INTERNAL
    with pytest.raises(ValueError, match="only with a ledger entry"):
        keep(store, "free", kind=Samples, behind=[member])


def test_what_was_made_is_found_under_its_key_with_its_kind_until_it_is_damaged(store):
    ref = keep(store, kind=ChosenImages)
    store.note("key", ref)
    assert store.noted("key") == ref and type(store.noted("key")) is ChosenImages and store.noted("other") is None
    (store.root / "keys" / "half.json").write_text('{"digest": ')
    assert store.noted("half") is None
    (store.folder(ref) / "facts.json").write_text("two")
    assert store.noted("key") is None


def test_whatever_differs_has_another_address(store):
    parent = keep(store, "parent")
    refs = [
        keep(store),
        keep(store, "two"),
        keep(store, kind=TunedModel),
        keep(store, parents=[parent]),
        keep(store, entries={"1": "DP"}),
        keep(store, entries={"2": "DP"}),
        keep(store, summary={"a": 1}),
    ]
    assert len({ref.digest for ref in refs}) == len(refs)
    assert keep(store, entries={"2": "DP", "10": "DP"}) == keep(store, entries={"10": "DP", "2": "DP"})


# Whole or not at all


def test_an_error_while_writing_leaves_nothing(store):
    with pytest.raises(RuntimeError, match="broke"), store.writing() as folder:
        (folder / "facts.json").write_text("half")
        raise RuntimeError("it broke")
    assert retained(store) == drafts(store) == []


def test_a_process_that_dies_while_writing_leaves_nothing_to_read(store):
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException), store.writing() as folder:
            (folder / "facts.json").write_text("one")
            (folder / "more.json").write_text("more")
            os.rename = lambda *_: os._exit(9)
            store.keep(PublicModel, folder)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert retained(store) == []
    assert store.intact(keep(Store.open(store.root)))


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
RUST = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
"""What safetensors 0.8 raises when the disk is full (seen on a 64 KB tmpfs)."""


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize(
    ("place", "name", "error"),
    [
        (formats, "save_file", RUST),
        (formats, "save_file", FULL),
        (Path, "write_text", FULL),
        (os, "fsync", FULL),
        (os, "rename", FULL),
        (os, "rename", OSError(errno.EDQUOT, "Disk quota exceeded")),
        (tempfile, "mkdtemp", FULL),
    ],
    ids=["weights", "weights-os", "facts", "sync", "rename", "quota", "draft"],
)
def test_a_full_disk_is_one_line_and_nothing_is_kept(store, monkeypatch, place, name, error):
    monkeypatch.setattr(place, name, failing(error))
    with refused("no space left", str(store.root), "free some space"), store.writing() as folder:
        serialization.save(folder, {"a": torch.zeros(3)}, {})
        store.keep(PublicModel, folder)
    monkeypatch.undo()
    assert retained(store) == drafts(store) == []
    assert store.intact(keep(store))


def test_another_failure_of_the_disk_is_not_called_a_full_one(store, monkeypatch):
    broken = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(os, "fsync", failing(broken))
    with pytest.raises(OSError, match="Input/output error"):
        keep(store)
    assert full_disk(broken, store.root) is broken and retained(store) == []


def test_a_damaged_safetensors_file_is_not_called_a_full_disk(store, monkeypatch):
    monkeypatch.setattr(formats, "save_file", failing(SafetensorError("Error while serializing: InvalidTensorView")))
    with pytest.raises(SafetensorError, match="InvalidTensorView"), store.writing() as folder:
        serialization.save(folder, {"a": torch.zeros(3)}, {})


def test_a_text_is_replaced_whole_or_stays(tmp_path, monkeypatch):
    write_text(tmp_path / "run.json", "old")
    monkeypatch.setattr(os, "fsync", failing(FULL))
    with pytest.raises(OSError, match="No space"):
        write_text(tmp_path / "run.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_text() == "old"


# Two writers


def test_two_drafts_of_the_same_content_become_one_artifact(store):
    with store.writing() as one, store.writing() as two:
        for folder in (one, two):
            (folder / "facts.json").write_text("same")
        first, second = store.keep(PublicModel, one), store.keep(PublicModel, two)
    assert first == second and retained(store) == [first.digest] and store.intact(first)
    assert drafts(store) == []


def test_a_writer_that_loses_the_race_to_the_name_uses_what_is_there(store, monkeypatch):
    rename = os.rename

    def beaten(source, target):
        shutil.copytree(source, target)  # the other process is done between our look and our rename
        rename(source, target)

    monkeypatch.setattr(os, "rename", beaten)
    ref = keep(store)
    assert retained(store) == [ref.digest] and store.intact(ref) and drafts(store) == []


# Damage


@pytest.fixture
def victim(store):
    return keep(store, "some content")


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(bytes(body))


@pytest.mark.parametrize("name", ["facts.json", "more.json", "manifest.json"])
@pytest.mark.parametrize("harm", [flip, Path.unlink], ids=["flipped", "missing"])
def test_one_flipped_byte_or_a_missing_file_is_noticed(store, victim, harm, name):
    assert store.intact(victim)
    harm(store.root / "objects" / victim.digest / name)
    assert not store.intact(victim)
    with pytest.raises(Damaged, match=rf"^[^\n]*{victim.digest[:12]}[^\n]*$"):
        store.folder(victim)


def test_an_artifact_that_is_gone_is_damaged_too(store, victim):
    shutil.rmtree(store.root / "objects" / victim.digest)
    assert not store.intact(victim) and not store.intact("f" * 64)
    with pytest.raises(Damaged, match="is not in the store"):
        store.manifest(victim)
    with pytest.raises(Damaged, match="is not in the store"):
        keep(store, parents=[victim])


def test_a_manifest_written_anew_does_not_launder_a_label(store):
    tainted = keep(store, entries={"1": "INTERNAL"})
    path = store.root / "objects" / tainted.digest / "manifest.json"
    path.write_text(path.read_text().replace("INTERNAL", "PUBLIC"))
    with pytest.raises(Damaged, match="was changed"):
        keep(store, "child", parents=[tainted])


def test_making_a_damaged_artifact_again_heals_it(store, victim):
    flip(store.root / "objects" / victim.digest / "facts.json")
    assert keep(store, "some content").digest == victim.digest
    assert store.intact(victim)


# Labels


@st.composite
def graphs(draw):
    """Parents and entries of each node; parents come before their children."""
    nodes = []
    for number in range(draw(st.integers(1, 6))):
        parents = draw(st.sets(st.integers(0, number - 1))) if number else set()
        entries = draw(st.dictionaries(st.integers(1, 30).map(str), st.sampled_from(ORDER), max_size=2))
        nodes.append((sorted(parents), entries))
    return nodes


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_a_label_is_the_tightest_entry_of_all_ancestors(graph):
    with tempfile.TemporaryDirectory() as root:
        store, refs, ancestors = Store.open(Path(root)), [], []
        for number, (parents, entries) in enumerate(graph):
            ref = keep(store, f"node {number}", parents=[refs[parent] for parent in parents], entries=entries)
            refs.append(ref)
            ancestors.append({number}.union(*(ancestors[parent] for parent in parents)))
            result = [(at, seq, label) for at in ancestors[-1] for seq, label in graph[at][1].items()]
            expected = max((label for _, _, label in result), key=ORDER.index, default=Label.PUBLIC)
            assert ref.label == store.manifest(ref)["label"] == expected
            assert store.entries(ref) == sorted({seq for _, seq, _ in result})
            assert {digest for digest, _ in store.ancestry(ref)} == {refs[at].digest for at in ancestors[-1]}
            guilty = {refs[at].digest[:12] for at, _, label in result if label == Label.INTERNAL}
            named = store.tainted_by(ref)
            if guilty:
                assert named.split()[1] in guilty
            else:
                assert named == "nothing" and expected != Label.INTERNAL


def test_the_parent_that_tainted_is_named_not_its_children(store):
    clean = keep(store, "images", kind=PublicImages)
    tuned = keep(store, "tuned", kind=TunedModel, parents=[clean], entries={"4": "INTERNAL", "3": "DP"})
    samples = keep(store, "samples", kind=Samples, parents=[clean, tuned], entries={"5": "DP"})
    assert samples.label == "INTERNAL" and clean.label == "PUBLIC"
    assert store.tainted_by(samples) == f"TunedModel {tuned.digest[:12]}"


# A store that cannot be used


def test_an_open_store_opens_again_with_what_is_in_it(store, victim):
    assert Store.open(store.root).intact(victim)


def test_a_store_of_another_version_is_refused_naming_both(store, victim):
    (store.root / "store.json").write_text(json.dumps({"version": 7}))
    with refused(f"version {VERSION}", "version 7", str(store.root), "SFUMATO_HOME"):
        Store.open(store.root)
    assert store.intact(victim)


@pytest.mark.parametrize("mark", [b"not json", b"\xff\xfe\x00", b"[1]", b"", b"3"])
def test_a_garbled_mark_is_refused_by_name(store, mark):
    (store.root / "store.json").write_bytes(mark)
    with refused(str(store.root / "store.json"), "SFUMATO_HOME"):
        Store.open(store.root)


def test_a_mark_that_is_a_folder_is_refused(tmp_path):
    (tmp_path / "store.json").mkdir()
    with refused(str(tmp_path), "SFUMATO_HOME"):
        Store.open(tmp_path)


@pytest.mark.parametrize("below", [".", "store", "deep/store"])
def test_a_store_that_is_a_file_is_refused(tmp_path, below):
    (tmp_path / "file").write_text("")
    with refused("not a folder", str(tmp_path / "file"), "SFUMATO_HOME"):
        Store.open(tmp_path / "file" / below)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENOENT])
def test_a_store_that_cannot_be_made_is_refused_with_the_reason(tmp_path, monkeypatch, code):
    monkeypatch.setattr(Path, "mkdir", failing(OSError(code, os.strerror(code))))
    with refused(str(tmp_path / "store"), os.strerror(code), "SFUMATO_HOME"):
        Store.open(tmp_path / "store")


def test_a_store_without_write_permission_is_refused_before_any_work(store, monkeypatch):
    monkeypatch.setattr(store_module.os, "access", lambda path, mode: not mode & os.W_OK)
    with refused("cannot write", str(store.root), "permission denied"):
        Store.open(store.root)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_store_of_an_earlier_format_is_refused_in_one_line_until_it_is_migrated(tmp_path, version):
    root = tmp_path / "home" / "store"
    store = Store.open(root)
    retained = keep(store, "images", kind=PublicImages)
    (root / "store.json").write_text(json.dumps({"version": version}))
    with pytest.raises(BadInput, match=r"earlier format, .*`sfumato migrate` .* or set SFUMATO_HOME to a new folder$"):
        Store.open(root)
    assert Store.migrate(root) and not Store.migrate(root)
    assert Store.open(root).intact(retained)
    assert not Store.migrate(tmp_path / "none")
