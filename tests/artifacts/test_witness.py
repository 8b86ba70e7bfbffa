"""Heads that are kept outside the ledger: in runs, beside private images, at a witness."""

import json
import os

import pytest

from artifacts.witness import (
    beside,
    note_beside,
    note_in_run,
    read_witness,
    texts_beside,
    texts_in_runs,
    write_witness,
)
from sfumato.errors import BadInput

HEAD = {"ledger": "a" * 32, "seq": 3, "hash": "b" * 64, "public_key": "k", "signature": "s"}
LATER, OTHER = {**HEAD, "seq": 4}, {**HEAD, "ledger": "c" * 32}


@pytest.mark.parametrize("url", [False, True])
def test_a_witness_keeps_every_head_that_it_was_given(tmp_path, url):
    to = f"file://{tmp_path}/deep/heads.jsonl" if url else str(tmp_path / "heads.jsonl")
    write_witness(HEAD, to)
    write_witness(LATER, to)
    assert [json.loads(line) for line in read_witness(to)] == [HEAD, LATER]


def test_a_witness_that_cannot_be_is_one_line(tmp_path):
    (tmp_path / "file").write_bytes(b"\xff")
    for use in (
        lambda: write_witness(HEAD, str(tmp_path / "nowhere" / "heads")),
        lambda: write_witness(HEAD, "nonsense://me:secret@place/heads"),
        lambda: read_witness(str(tmp_path / "nowhere")),
        lambda: read_witness(str(tmp_path / "file")),
        lambda: read_witness(f"file://{tmp_path}/nowhere"),
    ):
        with pytest.raises(BadInput) as reported:
            use()
        assert "\n" not in str(reported.value) and "secret" not in str(reported.value)


def test_heads_lie_beside_the_private_images_and_never_among_them(tmp_path):
    scans, table = tmp_path / "rooms" / "scans", tmp_path / "tables" / "faces" / "list.csv"
    for folder in (scans, table.parent):
        folder.mkdir(parents=True)
    table.write_text("")
    source = f"{scans}+{table}+digits"
    places = [tmp_path / "rooms" / ".sfumato-scans-heads.json", tmp_path / "tables" / ".sfumato-faces-heads.json"]
    assert beside(source) == places and beside("digits") == [] and beside(str(tmp_path / "gone")) == []
    for head in (HEAD, OTHER, LATER):
        note_beside(source, head)
    assert [json.loads(text) for text in texts_beside(source)] == [OTHER, LATER] * 2
    assert list(scans.iterdir()) == [] and sorted(path.name for path in scans.parent.iterdir()) == [
        ".sfumato-scans-heads.json",
        "scans",
    ]


def test_a_place_that_cannot_be_written_fails_nothing(tmp_path, monkeypatch):
    scans = tmp_path / "scans"
    scans.mkdir()
    beside(str(scans))[0].mkdir()
    note_beside(str(scans), HEAD)
    assert list(texts_beside(str(scans))) == [] and len(os.listdir(tmp_path)) == 2


def test_statements_and_cards_of_runs_are_found(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        note_in_run(tmp_path / name, {**HEAD, "run": name})
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "card.json").write_text('{"run": "a card"}')
    (tmp_path / "two" / "run.json").write_text(json.dumps({"published": str(tmp_path / "published")}))
    (tmp_path / "one" / "run.json").write_text(json.dumps({"published": "s3://bucket/one"}))
    (tmp_path / "latest").symlink_to("nowhere")
    result = [json.loads(text) for text in texts_in_runs(tmp_path)]
    assert [one["run"] for one in result] == ["one", "two", "a card"]
