"""Folders as `datasets.Dataset.save_to_disk` writes them: the same records as in Parquet, and every way in which they can be wrong."""

import json

import numpy as np
import pyarrow as pa
import pytest

from sfumato.errors import Unnamed
from sfumato.privacy.door import PrivateSet, identify
from sfumato.sources import Reading, describe, inspect, load, source_digest
from tests.sfumato.sources.test_embedded import NAMES, rows, write
from tests.sfumato.sources.writing import refused


def save(folder, table, shards=2):
    """What version 5.2 of `datasets` writes."""
    folder.mkdir(parents=True)
    features = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
    whole = pa.Table.from_pylist(table).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    names = [f"data-{at:05}-of-{shards:05}.arrow" for at in range(shards)]
    for at, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, whole.schema) as stream:
            stream.write_table(whole.slice(at * len(table) // shards, len(table) // shards), max_chunksize=4)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def in_splits(folder, **splits):
    for name, table in splits.items():
        save(folder / name, table, shards=1)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return folder


def test_a_saved_set_is_the_same_as_in_parquet(tmp_path):
    table = rows(80)
    saved, other = save(tmp_path / "saved", table), write(tmp_path / "pets.parquet", table)
    (saved / "data-00007-of-00009.arrow").write_bytes(b"left over from an earlier version")
    assert source_digest(saved, Reading(group="group")) == source_digest(other, Reading(group="group"))
    one, two = (load(place, Reading(part="all", group="")) for place in (saved, other))
    assert np.array_equal(one.pixels, two.pixels) and np.array_equal(one.groups, two.groups)
    assert (
        one.classes == two.classes == tuple(NAMES)
        and describe(saved, Reading(group="")).groups == describe(other, Reading(group="")).groups
    )
    assert len(load(saved)) + len(load(saved, Reading(part="test"))) == 80 and len(inspect(saved).where) == 80


def test_splits_are_the_parts(tmp_path):
    place = in_splits(tmp_path / "saved", train=rows(12), test=rows(6, first=12))
    assert {part: len(load(place, Reading(part=part))) for part in ("train", "test", "all")} == {
        "train": 12,
        "test": 6,
        "all": 18,
    }


def test_what_is_wrong_with_a_saved_set_is_one_line(tmp_path):
    place = in_splits(tmp_path / "saved", train=rows(12), test=rows(6))
    (place / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "dev"]}))
    with refused("dataset_dict.json' names the split 'dev'", "save_to_disk"):
        describe(place)
    (place / "dataset_dict.json").write_text("{")
    with refused("dataset_dict.json' cannot be read as JSON"):
        describe(place)
    (place / "dataset_dict.json").unlink()
    whole = save(tmp_path / "whole", rows(12))
    state = json.loads((whole / "state.json").read_text())
    (whole / "state.json").write_text(json.dumps(state | {"_indices_data_files": [{"filename": "indices.arrow"}]}))
    with refused("keeps a choice of rows apart"):
        describe(whole)
    for names in ([], [{"filename": "../saved/train/data-00000-of-00001.arrow"}], [{"filename": "state.json"}], 5):
        (whole / "state.json").write_text(json.dumps({"_data_files": names}))
        with refused("state.json'", "save_to_disk"):
            describe(whole)


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.95])
def test_cut_off_tables_are_named_and_private_ones_are_not(tmp_path, share):
    place = save(tmp_path / "saved", rows(40))
    path = place / "data-00001-of-00002.arrow"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with refused("data-00001-of-00002.arrow' is damaged or no arrow"):
        load(place, Reading(part="all"))
    with pytest.raises(Unnamed, match="^the private set 'scans' holds a table that is damaged"):
        identify(PrivateSet(name="scans", source=str(place)))


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    place, other = save(tmp_path / "saved", rows(12)), save(tmp_path / "other", rows(12))
    path = place / "data-00000-of-00002.arrow"
    path.unlink()
    path.symlink_to(other / path.name)
    with refused("is a link to", "cannot leave their folder"):
        load(place)
