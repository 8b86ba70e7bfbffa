"""`sfumato ledger`: totals, budgets and joined sets from the terminal."""

import json

import pytest
from PIL import Image

from artifacts.witness import note_in_run
from sfumato.privacy.accounting.events import Gaussian
from tasks.runtime.environment import where
from tests.examples import reserve, write_classes
from tests.sfumato.privacy.ledger.test_recovery import earlier
from tests.sfumato.privacy.ledger.test_signing import cut

QUICK = ["--set", "fine_tuning.steps=1", "--set", "fine_tuning.sample_rate=1", "--set", "method.votes=false"]
"""Settings with which a plan is calibrated in no time."""
WHO = {"stage": "s", "purpose": "p", "run": "r", "code_version": "v", "images": "any"}


def test_a_budget_takes_the_delta_of_what_was_spent(sfumato, spent):
    assert sfumato("ledger", "budget", "leaky", "--epsilon", "5").is_one_line("'leaky' has cost epsilon inf", code=3)
    with where().ledger() as ledger:
        reserve(ledger, [Gaussian(noise_multiplier=5.0)], "clean", delta=1e-4)
    done = sfumato("ledger", "budget", "clean", "--epsilon", "5")
    assert done.code == 0 and "delta 0.0001" in done.out
    assert sfumato("ledger", "budget", "glyphs", "--epsilon", "5").is_one_line("'glyphs' has no spends yet", "--delta")


def test_a_budget_for_a_name_that_nothing_has_is_refused_with_near_ones(sfumato, spent, images):
    for wrong, near in [
        ("scan", "did you mean 'scans'"),
        ("digitz", "'digits'"),
        ("scans/nowhere", "known: scans, leaky"),
    ]:
        assert sfumato("ledger", "budget", wrong, "--epsilon", "5", "--delta", "1e-5").is_one_line(wrong, near)
    with where().ledger() as ledger:
        assert {entry.dataset for entry in ledger.entries()} == {"scans", "leaky"}


def test_a_budget_binds_the_first_run_on_a_path_under_the_name_it_will_have(sfumato, folder, images, check):
    limit = ["--epsilon", "5", "--delta", "1e-5"]
    assert "'scans' may cost" in sfumato("ledger", "budget", f"{images}/../scans/", *limit).out
    assert "'mine' may cost" in sfumato("ledger", "budget", str(images), "--name", "mine", *limit).out
    assert "'digits' may cost" in sfumato("ledger", "budget", "digits", *limit).out
    check(f"data.private={images}")
    assert "nothing spent so far; 5.0000 left of 5" in sfumato("ledger", "show", "scans").out
    with where().ledger() as ledger:
        assert ledger.budget("scans").epsilon == 5 and ledger.version("scans") == 1
    shown = sfumato("plan", "dp-sgd", *QUICK[:4], "--set", "privacy.delta=1e-5")
    assert "budget: epsilon 5 left of 5 at delta 1e-05 for 'digits'; nothing spent so far" in shown.out


def test_a_budget_by_path_never_binds_another_collection_of_the_same_name(
    sfumato, folder, images, check, tmp_path, monkeypatch
):
    check(f"data.private={images}")
    limit = ["--epsilon", "5", "--delta", "1e-5"]
    assert "'scans' may cost" in sfumato("ledger", "budget", str(images), *limit).out, "the collection itself"
    other = write_classes(tmp_path / "elsewhere" / "scans", {"x": 12})
    refused = sfumato("ledger", "budget", str(other), "--epsilon", "9", "--delta", "1e-5")
    assert refused.is_one_line("'scans' stands in the ledger with", "12 images in 1 class", "--name NAME")
    assert "'theirs' may cost" in sfumato("ledger", "budget", str(other), "--name", "theirs", *limit).out
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "scans").symlink_to(write_classes(tmp_path / "wards", {"y": 12}))
    monkeypatch.chdir(tmp_path / "here")
    assert sfumato("ledger", "budget", "scans", *limit).is_one_line("'scans' is a set of the ledger", "'wards'")
    with where().ledger() as ledger:
        assert ledger.budget("scans").epsilon == 5 and ledger.budget("wards") is None


def test_a_plan_on_another_collection_of_a_known_name_says_so(sfumato, folder, images, check, tmp_path):
    check(f"data.private={images}")
    other = write_classes(tmp_path / "elsewhere" / "scans", {"x": 30, "y": 30})
    shown = sfumato("plan", "dp-sgd", *QUICK[:4], "--set", f"data.private={other}")
    assert "'scans' stands in the ledger with" in shown.err and "60 images in 2 classes" in shown.err
    assert "--set data.name=NAME" in shown.err and "--new-version" in shown.err
    same = sfumato("plan", "dp-sgd", *QUICK[:4], "--set", f"data.private={images}")
    assert same.code == 0 and "stands in the ledger" not in same.err


def test_a_plan_on_images_of_a_known_set_that_cannot_be_read_says_so(sfumato, images, check):
    check(f"data.private={images}")
    (images / "j. doe").mkdir()
    shown = sfumato("plan", "dp-sgd", *QUICK[:4], "--set", f"data.private={images}")
    assert (
        shown.code == 0 and "warning: the private data (data.private)" in shown.err and "holds no images" in shown.err
    )
    (images / "j. doe").rmdir()
    assert "holds no images" not in sfumato("plan", "dp-sgd", *QUICK[:4], "--set", f"data.private={images}").err
    for picture in (images / "ill").iterdir():
        picture.rename(picture.with_suffix(".txt"))
    budget = sfumato("ledger", "budget", str(images), "--epsilon", "5", "--delta", "1e-5")
    assert "'scans' may cost" in budget.out, "wherever its images are"


def test_a_delta_of_a_budget_that_is_none_is_named(sfumato, spent):
    for wrong in ("0", "1", "-1e-5"):
        assert sfumato("ledger", "budget", "scans", "--epsilon", "5", "--delta", wrong).is_one_line(
            "--delta", "above 0"
        )


def test_sets_are_joined_and_parted_from_the_command_line(sfumato, spent):
    with where().ledger() as ledger:
        reserve(ledger, [Gaussian(noise_multiplier=5.0)], "clean")
    joined = sfumato("ledger", "join", "clean", "scans", "--reason", "the same people")
    assert joined.code == 0 and "left of 50" in joined.out and "this counts together with 'scans'" in joined.out
    result = json.loads(sfumato("ledger", "show", "clean", "--json").out)
    assert (result["entries"][-1]["reason"], result["totals"]["clean"]["joined"]) == ("the same people", ["scans"])
    assert result["totals"]["clean"]["spends"] == 2
    assert sfumato("ledger", "join", "clean", "scan", "--reason", "x").is_one_line("'scan'", "did you mean 'scans'")
    assert sfumato("ledger", "join", "clean", "scans", "--reason", " ").is_one_line("needs a reason")
    parted = sfumato("ledger", "differ", "clean", "scans", "--reason", "no, namesakes")
    assert parted.code == 0 and "together" not in parted.out and "no budget set" in parted.out
    assert json.loads(sfumato("ledger", "show", "clean", "--json").out)["entries"][-1]["kind"] == "differ"


def test_a_budget_is_set_kept_and_cannot_be_set_below_what_is_spent(sfumato, folder, images):
    shown = sfumato("ledger", "budget", str(images), "--epsilon", "4", "--delta", "1e-5")
    assert shown.code == 0 and "'scans' may cost epsilon 4 at delta 1e-05; 4.0000 left" in shown.out
    with where().ledger() as ledger:
        ledger.reserve("scans", "d" * 64, [Gaussian(noise_multiplier=2.0)], "add_remove", 1e-5, **WHO)
    refused = sfumato("ledger", "budget", "scans", "--epsilon", "1", "--delta", "1e-5")
    assert refused.code == 3 and len(refused.err.splitlines()) == 1 and "scans" in refused.err
    assert sfumato("ledger", "budget", "scans", "--epsilon", "-1", "--delta", "1e-5").code == 2


def test_a_plan_beyond_the_budget_says_what_would_fit(sfumato, folder):
    with where().ledger() as ledger:
        ledger.set_budget("digits", 3.0, 1e-5)
    shown = sfumato("plan", "dp-sgd", "--epsilon", "5", "--set", "privacy.delta=1e-5", *QUICK[:4])
    plain = " ".join(shown.err.split())
    assert shown.code == 0 and "warning: epsilon 3 of 3 left for 'digits'" in plain and "would fit" in plain
    assert "(4.9" in sfumato("plan", "dp-sgd", "--epsilon", "5", *QUICK[:4]).out, "auto takes the budget's delta"
    other = sfumato("plan", "dp-sgd", "--set", "privacy.delta=1e-6", *QUICK[:4])
    assert other.is_one_line("privacy.delta=1e-05")


def test_the_key_that_checks_a_card_is_printed(sfumato, spent):
    with where().ledger() as ledger:
        public = ledger.signed_head()["public_key"]
    reported = sfumato("ledger", "key").out.split()
    assert reported[0] == public and reported[1] == "fingerprint" and len(reported[2]) == 64


def test_the_ledger_is_exported_with_a_picture(sfumato, spent, tmp_path):
    done = sfumato("ledger", "export", "scans", "--to", tmp_path / "books")
    assert done.code == 0
    assert {path.name for path in (tmp_path / "books").iterdir()} == {"ledger.json", "ledger.md", "spending.png"}
    assert Image.open(tmp_path / "books" / "spending.png").width > 400
    assert sfumato("ledger", "export", "scans", "--to", tmp_path / "books").is_one_line("not an empty folder")
    assert sfumato("ledger", "export", "scand").is_one_line("'scand'", "scans, leaky")


def test_both_relations_are_shown(sfumato, spent):
    shown = " ".join(sfumato("ledger", "show", "scans").out.split())
    assert "the same under replace_one: epsilon" in shown
    result = json.loads(sfumato("ledger", "show", "--json").out)["totals"]
    assert result["scans"]["both"]["replace_one"] > result["scans"]["both"]["add_remove"] == result["scans"]["epsilon"]
    assert result["leaky"]["both"] == {"add_remove": None, "replace_one": None}


def test_an_empty_ledger_says_so(sfumato):
    assert "holds nothing" in sfumato("ledger", "show").out
    assert sfumato("ledger", "show", "nobody").is_one_line("knows no private set 'nobody'", "known: none")


def test_the_ledger_is_shown_set_by_set_without_digests(sfumato, spent):
    shown = sfumato("ledger", "show")
    assert shown.code == 0 and "private set 'scans'" in shown.out and "private set 'leaky'" in shown.out
    assert "left of 50" in " ".join(shown.out.split()) and "digest-of" not in shown.out
    assert "leaky" not in sfumato("ledger", "show", "scans").out


def test_the_ledger_as_json_is_json_and_holds_no_digest(sfumato, spent):
    shown = sfumato("ledger", "show", "--json")
    result = json.loads(shown.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert [entry["kind"] for entry in result["entries"]] == ["budget", "reserve", "reserve"]
    assert result["totals"]["scans"]["epsilon"] > 0 and result["totals"]["scans"]["left"] > 0
    assert result["totals"]["leaky"]["epsilon"] is None and "digest-of" not in shown.out


def lose(home, keep=0):
    """Delete the ledger's file, or all entries after one."""
    if not keep:
        for file in home.glob("ledger.db*"):
            file.unlink()
    else:
        cut(f"sqlite:///{home / 'ledger.db'}", keep)


def test_a_lost_ledger_is_refused_and_recovered_from_what_runs_know(sfumato, spent, folder):
    with where().ledger() as ledger:
        before = ledger.total("scans").epsilon
        (where().runs / "one").mkdir(parents=True)
        note_in_run(where().runs / "one", ledger.statement())
    assert "nothing to recover" in sfumato("ledger", "recover").err
    lose(where().home)
    assert sfumato("ledger", "verify").is_one_line("seen before, and not in this ledger", code=3)
    assert "lacks entry" in sfumato("ledger", "show").err, "a screen that shows less than was spent says so"
    budget = ["ledger", "budget", "digits", "--epsilon", "900", "--delta", "1e-5"]
    assert sfumato(*budget).is_one_line("lacks entry", "sfumato ledger recover", code=3)
    done = sfumato("ledger", "recover")
    assert done.code == 0 and "'scans', entry" in done.out and "counts again" in done.out
    assert sfumato("ledger", "verify").code == 0
    shown = sfumato("ledger", "show")
    assert all(word in shown.out for word in ("the ledger itself", "recovery", "recovered"))
    assert "" not in json.loads(sfumato("ledger", "show", "--json").out)["totals"]
    with where().ledger() as ledger:
        assert ledger.total("scans").epsilon == pytest.approx(before)


def test_what_nobody_knows_is_declared_lost(sfumato, spent, folder):
    lose(where().home)
    assert sfumato("ledger", "recover").is_one_line("known by their heads alone", "--declare-loss REASON", code=3)
    done = sfumato("ledger", "recover", "--declare-loss", "the disk died")
    assert done.code == 0 and "unknown (the disk died)" in done.out
    assert "the disk died" in sfumato("ledger", "show").out and sfumato("ledger", "verify").code == 0


def test_a_witness_shows_what_the_owner_of_the_key_cut(sfumato, spent, folder, tmp_path):
    to = tmp_path / "outside.jsonl"
    done = sfumato("ledger", "witness", "--to", str(to))
    assert done.code == 0 and "head" in done.out
    assert sfumato("ledger", "verify", "--witness", str(to)).code == 0
    copy = tmp_path / "copy.db"
    with where().ledger() as ledger:
        copy.write_bytes((where().home / "ledger.db").read_bytes())
        last = ledger.signed_head()["seq"]
    lose(where().home, keep=1)
    for notes in where().keys.folder.glob("*.heads"):
        notes.unlink()
    assert sfumato("ledger", "verify").code == 0, "who has the key can hide a cut from himself"
    assert sfumato("ledger", "verify", "--witness", str(to)).is_one_line(f"lacks entry {last}", code=3)
    (tmp_path / "other").write_text("{}\n")
    assert sfumato("ledger", "verify", "--witness", str(tmp_path / "other")).is_one_line("holds no head")
    assert sfumato("ledger", "recover", "--from", str(tmp_path / "nowhere.db")).is_one_line("there is no ledger at")
    assert sfumato("ledger", "recover", "--from", str(copy)).code == 0


def test_a_lost_key_is_replaced_with_a_reason(sfumato, spent, folder):
    with where().ledger() as ledger:
        name = ledger.signed_head()["ledger"]
    (where().keys.folder / f"{name}.pem").unlink()
    budget = ["ledger", "budget", "scans", "--epsilon", "900", "--delta", "1e-5"]
    assert sfumato(*budget).is_one_line(f"{name}.pem cannot be read", "sfumato ledger recover --new-key")
    done = sfumato("ledger", "recover", "--new-key", "the laptop was stolen")
    assert done.code == 0 and "from here on" in done.out
    assert sfumato("ledger", "verify").code == 0 and sfumato(*budget).code == 0
    assert sfumato("ledger", "recover", "--new-key", "again").is_one_line("leave --new-key out")


def test_an_earlier_ledger_is_migrated_by_one_command(sfumato, folder):
    home = where().home
    home.mkdir(exist_ok=True)
    (home / "ledger.db").write_bytes(b"")
    earlier(f"sqlite:///{home / 'ledger.db'}")
    assert sfumato("ledger", "show").is_one_line("earlier format", "sfumato migrate")
    done = sfumato("migrate")
    assert done.code == 0 and "keeps its 2 entries as they were; heads are signed from entry 3 on" in done.out
    assert "of this format already" in sfumato("migrate").out and sfumato("ledger", "verify").code == 0
    assert all(word in sfumato("ledger", "show").out for word in ("the ledger itself", "migrate"))


def test_a_budget_below_nothing_is_named_as_such(sfumato, spent):
    assert sfumato("ledger", "budget", "scans", "--epsilon", "-3").is_one_line("--epsilon", "-3")


def test_a_set_that_the_ledger_does_not_know_is_a_mistake_and_what_was_spent_comes_first(sfumato, spent):
    assert sfumato("ledger", "show", "scan").is_one_line(
        "knows no private set 'scan'", "scans, leaky", "did you mean 'scans'?"
    )
    shown = sfumato("ledger", "show", "scans").out
    assert shown.index("spent in all") < shown.index("DP-SGD")
