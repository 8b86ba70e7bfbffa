"""Stages that pay: what goes into which experiment."""

import pytest

from artifacts import contents
from artifacts.kinds import TunedModel, WatchedSteps
from sfumato.privacy.mechanisms import Watched
from sfumato.privacy.watching import Seen
from tasks.private import keep_watched
from tests.tasks.test_making import CONTEXT, place, told  # noqa: F401 (fixtures)


@pytest.fixture
def watched():
    row = Seen(step=1, records=9, not_finite=1, clipped=4, median_norm=0.5, loss=2.0)
    empty = Seen(step=2, records=0, not_finite=0, clipped=0, median_norm=None, loss=None)
    return Watched([row, empty], {7: "INTERNAL"})


def test_what_steps_saw_is_internal_whatever_the_model_is(place, told, watched, capsys):  # noqa: F811
    store = place.store()
    with store.writing() as folder:
        contents.save(folder, {}, {"a": "model"})
        model = store.keep(TunedModel, folder, parents=[], entries={3: "DP"})
    keep_watched(watched, model, "DP fine-tuning", CONTEXT)
    (call,) = told
    assert call["label"] == "INTERNAL" and call["parent"] == "hidden" and model.label == "DP"
    assert call["series"]["loss"] == [2.0, 0.0] and call["series"]["not_finite"] == [1, 0]
    kept = WatchedSteps(digest=call["tags"]["artifact"], label="INTERNAL")
    assert contents.load(store.folder(kept))[1]["steps"][0]["median_norm"] == 0.5
    assert "2.0" not in capsys.readouterr().err, "the screen says where they are, not what they are"
