"""What is made again without paying may go; what counts, and all that it was made from, stays."""

import pytest

from artifacts.labels import Label
from artifacts.pruning import unneeded
from artifacts.references import Judgement, PublicImages, PublicModel, Rehearsal, Samples, TunedModel
from artifacts.store import Store


@pytest.fixture
def store(tmp_path) -> Store:
    return Store.open(tmp_path / "store")


def keep(store, text, kind, **facts):
    with store.writing() as folder:
        (folder / "facts.json").write_text(text)
        return store.keep(kind, folder, **facts)


def test_what_was_paid_for_what_is_named_and_all_behind_them_stay(store):
    images = keep(store, "images", PublicImages)
    model = keep(store, "model", PublicModel, parents=[images])
    tuned = keep(store, "tuned", TunedModel, parents=[model], entries={"a" * 64: Label.DP})
    drawn, beside = (keep(store, name, Samples, parents=[tuned]) for name in ("drawn", "beside"))
    member = keep(store, "member", TunedModel, entries={"b" * 64: Label.INTERNAL})
    priced = keep(store, "priced", Samples, behind=[member, model], entries={"c" * 64: Label.DP})
    scores = keep(store, "scores", Judgement, parents=[drawn, beside], entries={"d" * 64: Label.INTERNAL})
    other = keep(store, "other", PublicModel, parents=[images])
    rehearsal = keep(store, "rehearsal", Rehearsal, parents=[other])
    lists = unneeded(store, [drawn.digest, "e" * 64])
    assert [path.name for path in lists.judged] == [beside.digest]
    assert {path.name for path in lists.unended} == {other.digest, rehearsal.digest}
    lists = unneeded(store, [rehearsal.digest])
    assert {path.name for path in lists.judged} == {drawn.digest, beside.digest} and lists.unended == []
    assert all(store.intact(one) for one in (images, model, tuned, priced, member, scores))


def test_a_damaged_artifact_is_left_for_the_run_that_needs_it(store):
    model = keep(store, "model", PublicModel)
    (store.root / "objects" / model.digest / "manifest.json").write_text("{}")
    assert unneeded(store, []) == ([], [])
