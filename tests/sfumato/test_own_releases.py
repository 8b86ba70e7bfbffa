"""Published folders on the public side of a run: refused where the run's own private set is behind them, said where another one is."""

import json
import shutil

import pytest

import sfumato
from sfumato import sources
from sfumato.errors import BadInput
from sfumato.generate import from_folder, write_more
from sfumato.own_releases import drawn_from_others, refuse_own, releases_of
from sfumato.preflight import plan_for, preflight
from sfumato.settings import resolve
from tests.examples import write_classes


def asking(*changes):
    return resolve("dp-sgd", "digits", changes)


@pytest.mark.parametrize("below", ["", "data", "data/train"])
def test_images_that_were_drawn_from_the_private_set_are_no_public_ones(released, below):
    settings = asking(f"data.public={released / below}")
    (release,) = releases_of(settings)
    assert release.sets == {"digits"} and release.run and "differential privacy" in release.promise
    with pytest.raises(
        BadInput, match=r"^data.public=\S+ was drawn from the private set 'digits' itself \(run [^\n]*sfumato generate$"
    ):
        refuse_own(settings, ["digits"])
    refuse_own(settings, ["scans"])


def test_the_plan_refuses_them_and_so_it_does_in_a_mixture_and_for_weights(released):
    for change in (f"data.public=omniglot+{released}", f"data.public={released}"):
        with pytest.raises(BadInput, match="was drawn from the private set 'digits' itself"):
            preflight(asking(change))
    brought = asking(f"network.from={released / 'model'}", "privacy.public_because=it was published")
    with pytest.raises(BadInput, match=r"^network.from=\S+ was drawn from the private set 'digits' itself"):
        refuse_own(brought, ["digits"])


def test_a_set_that_counts_together_with_the_private_one_is_behind_them_too(released, tmp_path):
    again = shutil.copytree(released, tmp_path / "again")
    card = json.loads((again / "card.json").read_text())
    card["in_all"]["sets"] = ["digits", "wards"]
    (again / "card.json").write_text(json.dumps(card))
    with pytest.raises(BadInput, match="drawn from the private set 'wards' itself"):
        refuse_own(asking(f"data.public={again}"), ["wards"])


def test_a_release_is_known_through_another_one_that_began_with_it(released, tmp_path):
    """Of A to the public side of B, and of B to that of A again: the second release of A would leave out the first."""
    wards = write_classes(tmp_path / "wards", {"ill": 40, "well": 40})
    settings = resolve("dp-sgd", "auto", [f"data.private={wards}", f"data.public={released}"])
    plan = plan_for(*preflight(settings)[:2])
    assert plan.sets_behind == ("digits",)
    again = shutil.copytree(released, tmp_path / "again")
    card = json.loads((again / "card.json").read_text())
    card |= {"name": "wards-synthetic", "in_all": {"sets": ["wards"]}, "sets_behind": list(plan.sets_behind)}
    (again / "card.json").write_text(json.dumps(card))
    with pytest.raises(BadInput, match="drawn from the private set 'digits' itself"):
        preflight(asking(f"data.public={again}"))
    assert set(from_folder(again).sets) == {"wards", "digits"}, "images that are drawn later say so too"


def test_weights_beside_the_model_are_a_part_of_the_release_too(released, tmp_path):
    """A denoiser in diffusers' form lies in a folder of its own, which is what `network.from` takes."""
    again = shutil.copytree(released, tmp_path / "again")
    card = json.loads((again / "card.json").read_text())
    (again / "denoiser" / "unet").mkdir(parents=True)
    card["files"]["denoiser/unet/config.json"] = "0" * 64
    (again / "card.json").write_text(json.dumps(card))
    for place in ("denoiser", "denoiser/unet", "denoiser/unet/config.json"):
        (release,) = releases_of(asking(f"network.from={again / place}"))
        assert release.setting == "network.from" and release.sets == {"digits"}


def test_images_that_were_drawn_from_the_model_later_are_known_too(released, tmp_path):
    model = sfumato.load(released)
    more = write_more(model, 12, tmp_path / "more", from_folder(released), seed=1)
    for place in (more, more / "data", more / "data" / "train"):
        (release,) = releases_of(asking(f"data.public={place}"))
        assert release.sets == {"digits"} and release.promise == model.certificate.sentence() and release.run
    with pytest.raises(BadInput, match=r"^data.public=\S+ was drawn from the private set 'digits' itself"):
        preflight(asking(f"data.public={more}"))
    assert len(sources.describe(str(more)).classes) == 10, "they are read like any class folders"


def test_another_set_behind_them_is_said_without_the_place_of_the_folder(released):
    (line,) = drawn_from_others(asking(f"data.public={released}"))
    assert line.startswith(f"data.public={released.name} was drawn from private records of digits (")
    assert "protected by that promise and this run's together" in line and str(released.parent) not in line


def test_a_source_by_name_or_a_folder_beside_the_images_is_no_part_of_a_release(released, tmp_path, monkeypatch):
    again = shutil.copytree(released, tmp_path / "again")
    (again / "photographs").mkdir()
    monkeypatch.chdir(again)
    assert not [
        *releases_of(asking("data.public=glyphs")),
        *releases_of(asking(f"data.public={again / 'photographs'}")),
    ]


@pytest.mark.parametrize("card", ["not JSON", "[]", '{"name": "somebody-elses"}'])
def test_other_folders_have_no_card_that_says_so(tmp_path, card):
    (tmp_path / "card.json").write_text(card)
    assert list(releases_of(asking(f"data.public={tmp_path}"))) == list(releases_of(asking())) == []
