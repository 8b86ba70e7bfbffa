"""The command line: what a person may get wrong ends with one line and the right exit code, before any work starts."""

import errno
import json
import math
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from artifacts.record import load_record, save_record
from artifacts.references import TunedModel
from artifacts.store import VERSION
from flows.cli import main
from sfumato import __version__, sources
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.preflight import plan_for
from sfumato.privacy.accounting.events import Gaussian, Uncertified
from sfumato.privacy.ledger.ledger import Ledger
from sfumato.sources import held_out_by_hash
from tasks import planning
from tasks.runtime.environment import where
from tests.examples import PRIVATE_PATH, keep_samples, make_plan, make_record, paid_record, write_classes

QUICK = ["--set", "fine_tuning.steps=1", "--set", "fine_tuning.sample_rate=1", "--set", "method.votes=false"]
"""Settings with which a plan is calibrated in no time."""


def changed(*changes: object) -> list[str]:
    return [part for change in changes for part in ("--set", str(change))]


# Settings


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rapdi"], ["unknown method", "'rapdi'", "did you mean 'rapid'?"]),
        (["zzz"], ["unknown method", "'zzz'", "known: rapid"]),
        (["--preset", "digit"], ["unknown preset", "'digit'", "did you mean 'digits'?"]),
        (changed("fine_tuning.step=5"), ["'fine_tuning.step'", "value 5", "did you mean 'fine_tuning.steps'?"]),
        (changed("nonsense=5"), ["'nonsense'", "value 5"]),
        (changed("rapid=5"), ["'rapid'", "value 5"]),
        (changed("method.extractor.step=5"), ["'method.extractor.step'", "did you mean 'method.extractor.steps'?"]),
        (changed("steps"), ["'steps'", "section.field=value"]),
        (changed("=5"), ["'=5'", "section.field=value"]),
        (["--epsilon", "0"], ["'privacy.epsilon'", "0", "greater than 0"]),
        (["--epsilon", "-1"], ["'privacy.epsilon'", "-1", "greater than 0"]),
        (["--epsilon", "nan"], ["'privacy.epsilon'", "NaN"]),
        (["--epsilon", "inf"], ["epsilon", "inf"]),
        (["--epsilon", "ten"], ["--epsilon", "number"]),
        (changed("privacy.epsilon=much"), ["'privacy.epsilon'", '"much"', "number"]),
        (changed("privacy.delta=1"), ["'privacy.delta'", "1", "below 1"]),
        (changed("privacy.delta=2.5"), ["'privacy.delta'", "2.5"]),
        (changed("privacy.delta=-1e-5"), ["'privacy.delta'", "-1e-05"]),
        (changed("method.k=0.3", "method.v=0.4"), ["method.v=0.4", "method.k=0.3"]),
        (changed("method.k=0.4", "method.v=0.4"), ["method.v=0.4", "method.k=0.4"]),
        (changed("method.k=1.5"), ["'method.k'", "1.5"]),
        (changed("fine_tuning.batch=5000"), ["fine_tuning.batch=5000", "1437"]),
        (changed("fine_tuning.steps=0"), ["'fine_tuning.steps'", "0"]),
        (changed("generation.images=5"), ["generation.images=5", "6 or more"]),
        (changed("evaluation.images=2"), ["evaluation.images=2", "6 or more"]),
        (changed("data.limit=144"), ["data.limit=144", "--set data.share=0.1,"]),
        (changed("data.share=0.001"), ["data.share=0.001", "1 private"]),
        (changed("data.crop=left"), ["'data.crop'", '"left"', "'centre'"]),
        (changed("data.private=mnsit"), ["'mnsit' does not exist", "did you mean 'mnist'?"]),
        (changed("data.public=glyphs+digits"), ["data.public='glyphs+digits'", "private data 'digits'"]),
        (changed("data.private=digits+glyphs"), ["data.public='glyphs'", "private data 'digits+glyphs'"]),
        (changed("data.shares=[1]"), ["data.shares=[1.0]", "one source"]),
        (changed("machine.device=gpu7"), ["machine.device='gpu7'"]),
        (changed("machine.device=cuda:99"), ["machine.device='cuda:99'"]),
    ],
    ids=lambda value: "-".join(value).replace("--set", "").strip("-") if isinstance(value, list) else None,
)
def test_a_bad_setting_is_named_with_its_value(sfumato, arguments, words):
    assert sfumato("plan", *arguments).is_one_line(*words)


@pytest.mark.parametrize("command", ["plan", "run", "rehearse"])
def test_every_command_that_takes_settings_refuses_a_bad_one(sfumato, command):
    assert sfumato(command, *changed("fine_tuning.step=5")).is_one_line("'fine_tuning.step'", "value 5")


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["plan", "--bogus"],
        ["show", "a", "b"],
        ["run", "--epsilon"],
        ["serve", "--port", "99999"],
        ["serve", "--port", "0"],
        ["ledger", "bogus"],
    ],
    ids=" ".join,
)
def test_a_command_that_is_not_there_is_named(sfumato, arguments):
    assert sfumato(*arguments).is_one_line("sfumato --help")


def test_a_start_of_nothing_is_refused(sfumato):
    assert sfumato("serve", "--no-servers", "--no-worker").is_one_line("--no-servers and --no-worker")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("plan rapid --set seed=1 method.k=.5", "plan rapid --set seed=1 --set method.k=.5"),
        ("plan --set=seed=1 method.k=.5 --epsilon 1", "plan --set=seed=1 --set method.k=.5 --epsilon 1"),
        ("plan --set seed=1 rapid method.k=.5", "plan --set seed=1 rapid method.k=.5"),
        ("plan --set seed=1 --set method.k=.5 seed=2", "plan --set seed=1 --set method.k=.5 --set seed=2"),
        ("publish --to a=1 b=2", "publish --to a=1 b=2"),
        ("plan --set", "plan --set"),
    ],
)
def test_several_settings_may_follow_one_set(given, meant):
    assert main.each_with_set(given.split()) == meant.split()


def test_settings_after_one_set_are_all_heard(sfumato):
    assert sfumato("plan", "--set", "seed=1", "fine_tuning.step=5").is_one_line("'fine_tuning.step'", "value 5")


@pytest.mark.parametrize("text", ["[/bold]", "[bold]x", "a[red]b[/red]"])
def test_brackets_in_what_a_person_types_are_printed_as_they_are(sfumato, tmp_path, text):
    assert sfumato("plan", *changed(f'data.private="{tmp_path}/{text}"')).is_one_line(f"{tmp_path}/{text}")
    shown = sfumato("plan", *QUICK, *changed(f'data.name="{text}"'))
    assert shown.code == 0 and text in shown.out


# Data


@pytest.fixture
def public(tmp_path) -> Path:
    return write_classes(tmp_path / "textures", {"bark": 4, "sand": 4})


def test_a_path_that_does_not_exist_is_named(sfumato, tmp_path, public):
    for side, nowhere in dict.fromkeys(("private", "public"), tmp_path / "nowhere").items():
        refused = sfumato("run", *changed(f"data.{side}={nowhere}"))
        assert refused.is_one_line(f"(data.{side}) {str(nowhere)!r} does not exist", "is it mounted?")


def test_an_empty_folder_is_named(sfumato, tmp_path):
    (tmp_path / "empty").mkdir()
    refused = sfumato("run", *changed(f"data.private={tmp_path / 'empty'}"))
    assert refused.is_one_line(str(tmp_path / "empty"), "no images")


def test_a_class_folder_without_images_is_named(sfumato, images):
    (images / "empty").mkdir()
    assert sfumato("run", *changed(f"data.private={images}")).is_one_line(str(images), "'empty'", "no images")


def test_one_class_is_enough_and_said(sfumato, tmp_path):
    one = write_classes(tmp_path / "one", {"only": 5})
    shown = sfumato("plan", "dp-sgd", *changed(f"data.private={one}"))
    assert shown.code == 0 and "1 class" in shown.out, shown.err


def test_private_images_cannot_be_public_too(sfumato, images, tmp_path):
    (tmp_path / "link").symlink_to(images)
    for public in (images, images / "ill", images.parent, tmp_path / "link"):
        refused = sfumato("run", *changed(f"data.private={images}", f"data.public={public}"))
        assert refused.is_one_line(str(images), "private")
    assert sfumato("run", *changed("data.public=digits")).is_one_line("data.public='digits'")


def test_public_images_of_another_size_or_colour_take_those_of_the_private_ones(sfumato, tmp_path, images):
    large = write_classes(tmp_path / "large", {"a": 3, "b": 3}, height=12, width=12, channels=3)
    shown = sfumato("plan", "dp-sgd", *changed(f"data.private={images}", f"data.public={large}"))
    assert shown.code == 0 and "8x8, 1 channel(s)" in shown.out, shown.err


def test_a_first_image_that_is_no_image_is_refused_and_named_elsewhere(sfumato, images):
    (images / "ill" / "000.png").write_bytes(b"not a picture")
    reported = sfumato("run", *changed(f"data.private={images}"))
    assert reported.is_one_line("data.private", str(images), "corrupt", "(INTERNAL)") and "000.png" not in reported.err


def test_a_place_to_publish_to_that_is_taken_is_named_before_the_flow_starts(sfumato, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "mine.txt", tmp_path / "mine.txt" / "below"):
        assert sfumato("run", *QUICK, "--publish-to", place).is_one_line(str(place), "--to")
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["mine.txt"]


@pytest.mark.parametrize("how", [["--publish"], ["--publish-to", "out"], ["--publish", "--dry-run"]], ids=" ".join)
def test_images_that_could_not_be_published_are_refused_before_the_flow_starts(sfumato, how):
    refused = sfumato("run", "dppm", *how)
    assert refused.code == 3 and refused.err.count("\n") == 1
    assert "INTERNAL" in refused.err and "nothing was begun" in refused.err and "--accept-claim" in refused.err


# Places


@pytest.mark.parametrize("command", [["run"], ["plan"], ["show"], ["publish"], ["ledger", "show"]], ids=" ".join)
def test_a_home_without_write_permission_is_named(sfumato, folder, monkeypatch, command):
    def fail(*_, **__):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", fail)
    assert sfumato(*command).is_one_line("cannot write", str(folder), "SFUMATO_HOME")


def test_a_store_of_another_version_is_named_before_the_flow_starts(sfumato, folder):
    where().store()
    (folder / "store" / "store.json").write_text('{"version": 9}')
    assert sfumato("run", *QUICK).is_one_line("version 9", f"version {VERSION}", str(folder / "store"), "SFUMATO_HOME")


@pytest.mark.parametrize("command", [["run", *QUICK], ["ledger", "show"]], ids=["run", "show"])
def test_a_ledger_that_is_garbage_is_named(sfumato, folder, command):
    folder.mkdir()
    (folder / "ledger.db").write_text("not a ledger " * 100)
    assert sfumato(*command).is_one_line(str(folder / "ledger.db"), "not a database")
    assert (folder / "ledger.db").read_text().startswith("not a ledger")


def test_a_ledger_that_was_edited_is_refused(sfumato, folder):
    with where().ledger() as ledger:
        ledger.look("scans", "digest", "judge", stage="evaluation", run="run-1", code_version="1")
    with sqlite3.connect(folder / "ledger.db") as database:
        database.execute("UPDATE entries SET body = replace(body, 'judge', 'nobody')")
    database.close()
    assert sfumato("ledger", "show").is_one_line("tampered", str(folder / "ledger.db"), code=3)


def test_a_ledger_address_that_is_none_is_refused_without_repeating_it(sfumato, monkeypatch):
    monkeypatch.setenv("SFUMATO_LEDGER", "user:password at host")
    refused = sfumato("ledger", "show")
    assert refused.is_one_line("ledger URL") and "password" not in refused.err


# What works


def test_a_plan_shows_noise_certificate_claim_and_estimate_and_opens_nothing(sfumato, folder, monkeypatch):
    monkeypatch.setattr(sources, "load", lambda *_, **__: pytest.fail("an image was opened"))
    shown = sfumato("plan", "--epsilon", "3", *QUICK)
    assert shown.code == 0 and shown.err == ""
    plain = " ".join(shown.out.replace("│", " ").split())
    assert "noise multiplier" in plain and "certificate if it runs" in plain and "accountant: closed-form GDP" in plain
    certified = float(plain.split("if it runs: (")[1].split(",")[0])
    assert 2.9 < certified <= 3.0
    assert (
        "1437 private records, 10 classes" in plain
        and "estimate" in plain
        and "claim" in plain
        and "GB of memory" in plain
    )
    assert not (folder / "ledger.db").exists() and not (folder / "store").exists()


def test_a_plan_in_latents_names_the_autoencoder_and_a_latent_that_does_not_fit_is_one_line(sfumato):
    shown = sfumato("plan", *QUICK, *changed("latent.kind=kl"))
    plain = " ".join(shown.out.replace("│", " ").split())
    assert shown.code == 0 and "autoencoder to 4x4 with 3 channel(s) (97,271 parameters), 1000 steps; denoiser" in plain
    refused = sfumato("run", *QUICK, *changed("latent.kind=kl", "latent.multipliers=[1,1,1,1]"))
    assert refused.is_one_line("latent.multipliers=[1, 1, 1, 1]", "8x8", "latents of 4x4 (2 multipliers)")


def test_a_delta_above_one_over_n_is_only_warned_of(sfumato):
    shown = sfumato("plan", *QUICK, *changed("privacy.delta=0.01"))
    assert shown.code == 0 and shown.err.count("\n") == 1
    assert shown.err.startswith("warning: privacy.delta=0.01") and "1/records" in shown.err
    assert "certificate if it runs" in shown.out


def test_a_dry_run_stops_after_the_plan(sfumato):
    shown = sfumato("run", "--dry-run", *QUICK)
    assert shown.code == 0 and "certificate if it runs" in shown.out


@pytest.fixture
def begun(sfumato, folder, monkeypatch):
    """The runs that the flow was handed, and the wishes for each; it makes a record without any work."""
    handed = []
    flow = sys.modules["flows.synthesize"]
    monkeypatch.setattr(flow, "synthesize_planned", lambda *given: handed.append(given) or make_record(folder))
    return handed


def test_a_run_is_planned_once_and_the_flow_is_handed_the_plan(sfumato, begun, monkeypatch):
    made = []
    monkeypatch.setattr(planning, "plan_for", lambda *given: made.append(plan_for(*given)) or made[-1])
    done = sfumato(
        "run",
        "dp-sgd",
        "--epsilon",
        "3",
        "--publish-to",
        "out",
        "--set",
        "fine_tuning.steps=1",
        "--set",
        "fine_tuning.sample_rate=1",
    )
    assert done.code == 0 and "differential privacy" in done.out
    ((run, wishes),) = begun
    assert [run.plan] == made and run.plan.privacy.epsilon == run.settings.privacy.epsilon == 3
    assert (run.method, run.preset, wishes) == ("dp-sgd", "digits", planning.Wishes(publish_to="out"))
    assert run.changes == ("fine_tuning.steps=1", "fine_tuning.sample_rate=1", "privacy.epsilon=3.0")


def test_a_plan_shows_the_parts_that_learn_and_what_cannot_be_certified(sfumato):
    shown = sfumato("plan", "dp-sgd", "--preset", "lora", *QUICK[:4])
    text = " ".join(shown.out.replace("│", " ").split())
    assert shown.code == 0 and "through adapters of rank 4" in text and "film (3,584)" in text
    shown = sfumato("plan", "dp-promise", "--set", "method.phase_one=paper", *QUICK[:4])
    text = " ".join(shown.out.replace("│", " ").split())
    assert shown.code == 0 and "no certificate, the images stay INTERNAL" in text and "one step can show" in text
    assert "all on the images themselves, 135 steps; then rows" in text


HEAVY = {"torch", "numpy", "prefect", "mlflow", "sqlalchemy", "sklearn", "matplotlib", "diffusers"}
"""What help and mistakes of typing do without."""


@pytest.mark.parametrize(
    "command", ["--help", "--version", "run --help", "ledger --help", "compare --help", "nosuch", "explain rapid"]
)
def test_help_and_typos_import_nothing_heavy(command, folder):
    lines = [
        "import sys",
        "from flows.cli.main import main",
        f"sys.argv[1:] = {command.split()!r}",
        "try:",
        "    main()",
    ]
    lines += ["except SystemExit:", f"    print('heavy:', *sorted({HEAVY!r} & set(sys.modules)))"]
    lines += ["else:", f"    print('heavy:', *sorted({HEAVY!r} & set(sys.modules)))"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy:", done.stdout


@pytest.mark.parametrize(
    "commands",
    [
        *(["ledger show"], ["ledger verify"], ["show"], ["show --json"], ["status"], ["presets"], ["settings"]),
        [f"settings {method}" for method in METHODS],
    ],
    ids=lambda commands: f"{commands[0]} and so on" if len(commands) > 1 else commands[0],
)
def test_what_shows_settings_a_run_or_the_ledger_loads_nothing_that_measures_or_runs(commands, folder):
    save(folder)
    with where().ledger() as ledger:
        ledger.look("scans", None, "to compare with", stage="a test", run="run", code_version="1")
    lines = [
        "import sys",
        "from flows.cli.main import main",
        f"for command in {commands!r}:",
        "    sys.argv[1:] = command.split()",
        "    try:",
        "        main()",
        "    except SystemExit as ended:",
        "        assert not ended.code, command",
    ]
    lines += [f"print('heavy:', *sorted({SLOW!r} & set(sys.modules)))"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy:", done.stdout


SLOW = {"torch", "prefect", "mlflow", "sklearn", "matplotlib", "opacus", "lightly", "faiss", "diffusers"}
"""What the screens of settings and of finished work do without: each takes a second or more to load."""


def test_the_version_is_printed(sfumato):
    shown = sfumato("--version")
    assert (shown.code, shown.out) == (0, f"sfumato {__version__}\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["compare", "--method", "rapidd"], "did you mean 'rapid'"),
        (["compare", "--method", ""], "--method '' names no method"),
        (["compare", "--epsilons", "1,x"], "--epsilons '1,x' is not a list of numbers"),
        (["compare", "--seeds", "one"], "--seeds 'one'"),
        (["sweep", "rapid", "--over", "method.k"], "--over 'method.k' is not of the form"),
        (["sweep", "rapid", "--over", "method.kk=1,2"], "unknown setting 'method.kk'"),
        (["sweep", "rapids"], "unknown sweep 'rapids': did you mean 'rapid'"),
        (["sweep", "rapids", "--over", "method.k=0.5"], "unknown method 'rapids': did you mean 'rapid'"),
        (["sweep"], "nothing to vary: name a sweep (dp-ensemble, "),
        (["sweep", "rapid", "--set", "fine_tuning.step=1"], "did you mean 'fine_tuning.steps'"),
    ],
)
def test_a_comparison_that_cannot_work_is_refused_before_any_run(sfumato, command, words):
    shown = sfumato(*command)
    assert shown.code == 2 and words in shown.err and "Traceback" not in shown.err


@pytest.fixture
def compared(monkeypatch):
    """What the flow that compares was asked for."""
    requested = []
    flow = ModuleType("flows.compare")
    flow.compare_planned = lambda *given, **how: requested.append(given)
    monkeypatch.setitem(sys.modules, "flows.compare", flow)
    monkeypatch.setattr("flows.cli.compare.show", lambda result: None)
    return requested


SEVERAL = ["compare", "--method", "dp-sgd", "--method", "dppm", "--epsilons", "1,2", "--seeds", "0,1"]
SEVERAL += changed("fine_tuning.steps=1", "fine_tuning.sample_rate=1")


@pytest.mark.parametrize(("answer", "begun"), [(True, 1), (False, 0)])
def test_a_terminal_is_asked_once_it_has_seen_runs_time_and_epsilon(sfumato, compared, monkeypatch, answer, begun):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text: answer)
    shown = sfumato(*SEVERAL)
    assert shown.code == 0 and len(compared) == begun and ("nothing was begun" in shown.out) is not answer
    assert shown.out.startswith("8 runs: 2 variants, epsilon 1,2, seeds 0,1") and " min at most" in shown.out
    (cost,) = [line for line in shown.out.splitlines() if line.startswith("cost:")]
    total = float(cost.split("epsilon ")[1].split()[0])
    assert 2 < total < 6, "two runs at 1 and two at 2, composed"
    assert "'digits'" in cost and "4 runs without a certificate" in cost


@pytest.mark.parametrize("more", [["--yes"], []], ids=["--yes", "no terminal"])
def test_neither_yes_nor_a_schedule_is_asked(sfumato, compared, monkeypatch, more):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: bool(more))
    monkeypatch.setattr("typer.confirm", lambda text: pytest.fail("asked"))
    shown = sfumato(*SEVERAL, *more)
    assert shown.code == 0 and len(compared) == 1 and "cost: epsilon" in shown.out


@pytest.mark.parametrize("command", [[], ["ledger"]], ids=["sfumato", "ledger"])
def test_nothing_at_all_is_answered_with_help_alone(sfumato, command):
    shown = sfumato(*command)
    assert "Usage:" in shown.out + shown.err and "Traceback" not in shown.err
    assert "sfumato:  (" not in shown.err


# Runs


def save(folder, record=None, **changes):
    record = record or make_record(folder / "runs" / "one", **changes)
    (folder / "runs" / record.run).mkdir(parents=True)
    save_record(folder / "runs" / record.run, record)
    return record


def test_the_report_is_written_anew_and_found(sfumato, folder):
    record = save(folder, report=str(folder / "runs" / "20260101-120000-rapid-scans-eps10" / "report.html"))
    reported = sfumato("report")
    assert reported.code == 0 and reported.err == ""
    public, internal = (line.split(maxsplit=1)[-1].removeprefix("report").strip() for line in reported.out.splitlines())
    assert public == record.report and internal == record.report.replace("report.html", "report-internal.html")
    assert '<body class="DP">' in Path(public).read_text(encoding="utf-8")
    assert '<body class="INTERNAL">' in Path(internal).read_text(encoding="utf-8")


def test_no_library_complains_after_a_command_has_ended():
    pytest.importorskip("triton")
    program = """
import sys
from triton._C.libtriton import ir
context = ir.context()
ir.load_dialects(context)
sys.held = [context, ir.builder(context)]
import triton
from flows.cli import main
sys.argv = ["sfumato", "nosuch"]
main.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "nosuch" in done.stderr and "leaked" not in done.stderr


def test_without_a_run_the_way_to_one_is_shown(sfumato, folder):
    for command in (["show"], ["publish"], ["report"], ["generate", "latest", "--images", "3"]):
        assert sfumato(*command).is_one_line("no run yet", str(folder / "runs"), "sfumato run")


def test_an_unknown_run_is_named_with_those_there_are(sfumato, folder, tmp_path):
    record = save(folder)
    for command in (["show"], ["publish"], ["report"], ["generate", "--images", "3"]):
        assert sfumato(*command, "tomorrow").is_one_line("'tomorrow'", record.run, "latest")
    (tmp_path / "mine").mkdir()
    assert sfumato("generate", str(tmp_path / "mine"), "--images", "3").is_one_line("is no published folder")
    assert sfumato("generate", "latest", "--images", "0").is_one_line("--images 0", "1 or more")
    assert sfumato("generate", "latest", "--images", "7", "--continuations", "3").is_one_line("7 images", "6 or 9")


def test_a_run_as_json_has_everything_a_script_needs(sfumato, folder):
    record = save(folder, published="/out/set")
    shown = sfumato("show", "latest", "--json")
    assert shown.code == 0 and shown.err == ""
    result = json.loads(shown.out)
    assert result["method"] == "rapid" and result["settings"]["privacy"]["epsilon"] == 10.0
    certificate = {"epsilon": 9.876, "relation": "add_remove", "accountant": "dp-accounting 0.6.0 PLD", "images": "any"}
    assert result["certificate"].items() >= certificate.items() and result["certificate"]["delta"] > 0
    assert result["claim"] == {"epsilon": 76.38, "source": "Proposition 1"}
    assert result["spent_total"]["epsilon"] == 12.5 and result["INTERNAL"]["metrics"] == record.metrics
    assert [set(stage) >= {"name", "seconds", "cached"} for stage in result["stages"]] == [True, True]
    assert result["stages"][0]["name"] == "pretrain" and result["stages"][0]["cached"] is True
    assert (result["report"], result["samples"], result["published"]) == (record.report, record.samples, "/out/set")


def test_what_is_internal_of_a_run_stands_under_that_name_and_nowhere_else(sfumato, folder):
    row = {"frechet": 7.25, "readable": 0.875, "missing": {"cnn": "all images are labelled as class 3"}}
    secret = "a-path-that-is-secret"
    settings = make_record(folder).settings
    save(
        folder,
        metrics={"synthetic": row},
        account="login-of-grace",
        settings={**settings, "data": {**settings["data"], "private": secret}},
    )
    result = json.loads(sfumato("show", "--json").out)
    inside = result.pop("INTERNAL")
    assert inside["metrics"]["synthetic"] == row and inside["account"] == "login-of-grace"
    assert inside["settings"]["data"]["private"] == secret and {"copies", "audit", "stages"} <= set(inside)
    left = json.dumps(result)
    assert not [one for one in ("7.25", "login-of-grace", secret, "report-internal") if one in left]
    reported, heading, below = sfumato("show").out.partition("INTERNAL: what follows must not leave")
    assert heading and "differential privacy" in reported and "7.25" in below and "labelled as class 3" in below
    assert "7.25" not in reported and "report-internal" not in reported and "report-internal" in below


def test_a_run_is_summed_up_for_a_person(sfumato, folder):
    record = save(folder)
    shown = sfumato("show")
    plain = " ".join(shown.out.replace("│", " ").split())
    assert shown.code == 0 and record.certificate.sentence() in plain and "76.380" in plain
    assert "INTERNAL" in plain and "2 stages, 1 from the cache" in plain and "epsilon 12.500" in plain
    assert record.report in shown.out and f"sfumato publish {record.run}" in plain


def test_a_run_without_certificate_and_without_a_finite_total_says_so(sfumato, folder):
    total = {"epsilon": math.inf, "delta": 1e-5, "relation": "add_remove", "spends": 1, "left": None}
    save(folder, certificate=None, label="INTERNAL", spent_total=total)
    shown = sfumato("show")
    plain = " ".join(shown.out.replace("│", " ").split())
    assert shown.code == 0 and "No certificate" in plain and "epsilon inf" in plain


@pytest.mark.parametrize(("name", "value"), [("NVIDIA_TF32_OVERRIDE", "1"), ("SFUMATO_HOME", "~nobody-of-that-name/x")])
def test_an_environment_that_cannot_be_used_is_one_line(sfumato, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert sfumato("plan", "dp-sgd").is_one_line(name)


def test_internal_samples_are_not_published(sfumato, folder, tmp_path):
    store = where().store()
    with where().ledger() as ledger:
        look = ledger.look("scans", None, "to compare with", stage="a test", run="run", code_version="1")
    with store.writing() as draft:
        (draft / "facts.json").write_text("{}")
        model = store.keep(TunedModel, draft, entries={look.hash: "INTERNAL"})
    record = save(folder, samples_artifact=keep_samples(store, parents=[model], plan=make_plan()).digest)
    refused = sfumato("publish", "latest", "--to", tmp_path / "out")
    names = (
        "INTERNAL",
        record.run,
        f"TunedModel {model.digest[:12]}",
        f"entry {look.seq}: private images were looked at",
    )
    assert refused.is_one_line(*names, code=3)
    assert not (tmp_path / "out").exists() and load_record(folder / "runs").published == ""


def test_samples_that_are_gone_from_the_store_are_named(sfumato, folder, tmp_path):
    record = save(folder)
    assert sfumato("publish", "--to", tmp_path / "out").is_one_line(record.samples_artifact[:12], str(folder / "store"))


def test_published_samples_are_noted_in_the_record(sfumato, folder, tmp_path):
    record = save(folder, record=paid_record(where(), folder / "runs" / "one"))
    done = sfumato("publish", record.run, "--to", tmp_path / "out")
    assert done.code == 0 and str(tmp_path / "out") in done.out
    bars = ("published images", "reports, MLflow, model")
    lines = [line for line in done.err.splitlines() if line.strip() and not line.startswith(bars)]
    assert lines == [f"{record.run}: stored, but not written to MLflow (BadInput)"], "which knows no such run"
    assert all(bar in done.err for bar in bars)
    assert load_record(folder / "runs").published == str(tmp_path / "out")
    assert PRIVATE_PATH not in (tmp_path / "out" / "card.json").read_text()
    assert sfumato("publish", record.run, "--to", tmp_path / "out").is_one_line(str(tmp_path / "out"), "--to")


# What only the images themselves show


def refused(*words: str):
    """Expects a BadInput in one line that holds all words."""
    return pytest.raises(BadInput, match="^" + "".join(f"(?=.*{re.escape(word)})" for word in words) + r"[^\n]*$")


def cut(path):
    path.write_bytes(path.read_bytes()[:-30])


def garble(path):
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 60)


@pytest.fixture
def first_header_alone(monkeypatch):
    """The headers of other files are not looked at before the door opens, as where there are many files."""
    monkeypatch.setattr("sfumato.sources.files.PEEKED", 1)


@pytest.mark.usefixtures("first_header_alone")
@pytest.mark.parametrize("harm", [cut, garble], ids=["cut", "garbled"])
def test_a_corrupt_private_image_is_refused_without_its_name_and_nothing_is_written(check, images, harm):
    harm(images / "well" / "004.png")
    with refused("'scans'", "corrupt") as reported:
        check(f"data.private={images}")
    assert "004" not in str(reported.value) and str(images / "well" / "004.png") in reported.value.internal
    with where().ledger() as ledger:
        assert ledger.entries() == []


@pytest.mark.usefixtures("first_header_alone")
@pytest.mark.parametrize("held_out", [True, False])
@pytest.mark.parametrize(
    ("mode", "shape", "words"),
    [("L", (8, 9, 1), ["8x8", "9x8", "data.size"]), ("RGB", (8, 8, 3), ["grey", "colour", "data.channels"])],
    ids=["size", "channels"],
)
def test_one_private_image_of_another_shape_is_refused_on_whichever_side_it_falls(
    check, images, held_out, mode, shape, words
):
    odd = images / "well" / "004.png"
    pixels = next(
        flat for grey in range(256) if held_out_by_hash(flat := np.full(shape, grey, np.uint8), "well", 0.2) == held_out
    )
    Image.fromarray(pixels.squeeze(), mode).save(odd)
    with refused("'scans'", *words) as reported:
        check(f"data.private={images}")
    assert "004" not in str(reported.value) and str(odd) in reported.value.internal


@pytest.mark.parametrize("side", ["train-", "t10k-"])
def test_parts_of_two_sizes_are_refused_before_anything_is_paid(check, tmp_path, side):
    def write(name, values):
        head = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
        (tmp_path / name).write_bytes(head + values.astype(np.uint8).tobytes())

    private = tmp_path / "idx"
    private.mkdir()
    for part in ("train-", "t10k-"):
        write(f"idx/{part}images-idx3-ubyte", np.arange(640).reshape(10, 8, 8)[:, :, : 6 if part == side else 8])
        write(f"idx/{part}labels-idx1-ubyte", np.arange(10) % 2)
    public = write_classes(tmp_path / "open", {"a": 3, "b": 3}, width=6 if side == "train-" else 8)
    with refused("'idx'", "training and held-out", "6", "8", "data.size"):
        check(f"data.private={private}", f"data.public={public}")


@pytest.mark.parametrize(
    ("counts", "changes", "words"),
    [
        ({"a": 12, "b": 12}, ["data.held_out=0.2"], ["held-out images", "too few", "data.held_out=0.2"]),
        ({"a": 15, "b": 15}, ["data.held_out=0.9"], ["training images", "too few", "data.held_out=0.9"]),
        ({"a": 30, "b": 30}, ["data.share=0.1"], ["training", "too few", "data.share=0.1"]),
    ],
    ids=["held-out", "training", "share"],
)
def test_too_little_to_judge_by_is_refused_before_anything_is_paid(check, tmp_path, counts, changes, words):
    private = write_classes(tmp_path / "few", counts)
    with refused("few", *words):
        check(f"data.private={private}", *changes)
    with where().ledger() as ledger:
        assert ledger.entries() == []


def test_a_set_without_anything_held_out_is_refused_before_anything_is_paid(check, tmp_path):
    tiny = write_classes(tmp_path / "tiny", {"a": 2, "b": 2})
    with refused("'tiny'", "test part", "data.held_out"):
        check(f"data.private={tiny}", "data.held_out=0.001")


def test_images_that_can_be_read_leave_one_look_in_the_ledger(check, images):
    check(f"data.private={images}")
    with where().ledger() as ledger:
        (entry,) = ledger.entries()
        assert (entry.kind, entry.dataset, ledger.total("scans").spends) == ("look", "scans", 0)


WHO = {"stage": "s", "purpose": "p", "run": "r", "code_version": "v", "images": "any"}


def test_verify_finds_an_edited_entry(sfumato, folder):
    with where().ledger() as ledger:
        ledger.reserve("scans", "d" * 64, [Gaussian(noise_multiplier=2.0)], "add_remove", 1e-5, **WHO)
    assert sfumato("ledger", "verify").code == 0
    with sqlite3.connect(folder / "ledger.db") as connection:
        connection.execute("UPDATE entries SET body = replace(body, '2.0', '9.0')")
    result = sfumato("ledger", "verify")
    assert result.code == 3 and len(result.err.splitlines()) == 1


def test_replay_finds_every_certificate_or_says_which_not(sfumato, spent, monkeypatch):
    assert "2 certificates, all reproduced" in sfumato("ledger", "replay").out
    slow = sfumato("ledger", "replay", "--slow")
    assert slow.code == 0 and "2 certificates, all reproduced" in slow.out
    monkeypatch.setattr("artifacts.card.slow_price", lambda *terms: 0.5)
    slow = sfumato("ledger", "replay", "--slow")
    assert slow.code == 0 and "2 above dp-accounting's price, none below" in slow.out
    monkeypatch.setattr("artifacts.card.slow_price", lambda *terms: 5.0)
    assert sfumato("ledger", "replay", "--slow").code == 3
    monkeypatch.setattr(Ledger, "_epsilon", lambda self, events, delta, relation, price=None: 0.5)
    reported = sfumato("ledger", "replay")
    assert (
        reported.code == 3
        and "entry 2 of 'scans' (add_remove): recorded" in reported.out
        and "replayed 0.5" in reported.out
    )
    assert "cannot be reproduced" in reported.err


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_explained(sfumato, name):
    shown = sfumato("explain", name)
    words = " ".join(shown.out.split())
    assert shown.code == 0 and "certif" in words and " ".join(METHODS[name].promise.split())[:60] in words


def test_an_unknown_method_is_not_explained(sfumato):
    assert sfumato("explain", "dp-promised").is_one_line("'dp-promised'", "dp-promise")


def test_a_version_is_started_with_a_warning(sfumato, begun):
    done = sfumato("run", "dp-sgd", "--new-version", *QUICK[:4])
    assert done.code == 0 and begun[0][1].new_version is True
    assert "paid for in both" in " ".join(done.err.split())


def test_internal_images_leave_only_with_a_reason(sfumato, folder, tmp_path):
    leak = Uncertified(reason="one step leaks")
    record = save(folder, record=paid_record(where(), folder / "runs" / "one", events=[leak]))
    assert sfumato("publish", "--to", tmp_path / "out").is_one_line("INTERNAL", "--accept-claim", code=3)
    assert sfumato("publish", "--to", tmp_path / "out", "--accept-claim", " ").is_one_line("needs a reason")
    assert not (tmp_path / "out").exists()
    assert sfumato("publish", record.run, "--to", tmp_path / "out", "--accept-claim", "the board agreed").code == 0
    assert "No certificate" in (tmp_path / "out" / "README.md").read_text()
