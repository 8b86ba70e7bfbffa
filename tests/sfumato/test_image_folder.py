"""A folder that is handed over appears complete or not at all."""

import pytest

from sfumato.image_folder import whole_folder


def test_a_folder_appears_when_all_of_it_is_written(tmp_path):
    to = tmp_path / "new" / "released"
    with whole_folder(to) as draft:
        (draft / "card.json").write_text("{}")
        assert not to.exists()
    assert [path.name for path in to.iterdir()] == ["card.json"] and to.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in to.parent.iterdir()] == ["released"]


def test_it_takes_the_place_of_an_empty_folder(tmp_path):
    (tmp_path / "released").mkdir()
    with whole_folder(tmp_path / "released") as draft:
        (draft / "card.json").write_text("{}")
    assert (tmp_path / "released" / "card.json").exists()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_nothing_of_it(tmp_path, error):
    with pytest.raises(error), whole_folder(tmp_path / "released") as draft:
        (draft / "card.json").write_text("{}")
        raise error
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_filled_meanwhile_stays_as_it_is(tmp_path):
    to = tmp_path / "released"
    with pytest.raises(OSError), whole_folder(to) as draft:
        (draft / "card.json").write_text("mine")
        to.mkdir()
        (to / "card.json").write_text("another's")
    assert (to / "card.json").read_text() == "another's" and list(tmp_path.iterdir()) == [to]
