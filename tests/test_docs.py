"""The pages say what the program says, and every command that they show exists and resolves."""

import ast
import contextlib
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import diffusers
import numpy as np
import pytest
import typer
from typer.core import TyperGroup

from flows import audit as auditing
from flows import rehearse as rehearsing
from flows import synthesize as flow
from flows.cli import main
from flows.cli.options import with_short
from flows.cli.setting_rows import listed
from flows.pairs import paired
from flows.variants import RunGrid, named_sweep, planned, sweep_over, variants_of
from sfumato.methods import METHODS
from sfumato.preflight import plan_for, preflight
from sfumato.settings import resolve
from tasks.checks import agreed_delta, known_constants
from tasks.planning import plan_run
from tasks.runtime.environment import where
from tasks.server import embedded
from tests import elsewhere
from tests.examples import UNCHOSEN, UNREHEARSED, answered, home_at, write_classes
from tests.hospital import write_dicom

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"]
PAGES += sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
LONGEST = {"README.md": 120, "benchmarks/README.md": 80}
"""Pages that must stay short, and their most lines."""
FOREIGN = {"source", "pip", "python", "ray", "moto_server", "export", "openssl", "docker", "kubectl", "helm"}
"""Programs of others that the pages show; what is said of them is not checked."""
PLANNED = {"run", "plan", "rehearse"}
COMPARED = {"compare", "sweep"}
NOTHING_TO_RUN = {"source", "export", "pip"}
TINY = [
    *UNCHOSEN,
    *UNREHEARSED,
    *("data.glyphs_per_class=10", "network.width=16", "network.blocks=1", "latent.width=8", "latent.steps=5"),
    *(
        "pretraining.steps=20",
        "pretraining.batch=32",
        "backbone.steps=5",
        "method.extractor.steps=3",
        "method.training.steps=3",
        "method.pretraining.steps=3",
        "fine_tuning.steps=3",
    ),
    *(
        "generation.images=60",
        "generation.steps=10",
        "generation.hamiltonian.iterations=3",
        "evaluation.images=60",
        "evaluation.resamples=20",
        "evaluation.baseline=false",
    ),
]
"""Put after the settings of every run of a page that is carried out."""


# --- reading the pages ------------------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """A command on a page."""

    page: str
    words: tuple[str, ...]
    """Without assignments of variables before it."""

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def read(page: str) -> str:
    """A page."""
    return (ROOT / page).read_text(encoding="utf-8")


def commands(page: str) -> Iterator[Shown]:
    """Every command of the blocks marked `sh`, joined where a line ends in a backslash, split where && joins two."""
    for block in re.findall(r"```sh\n(.*?)```", read(page), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words:
                end = words.index("&&") if "&&" in words else len(words)
                one, words = words[:end], words[end + 1 :]
                while one and re.fullmatch(r"[A-Z_]+=.*", one[0]):
                    del one[0]
                if one:
                    yield Shown(page, tuple(one))


def in_passing(page: str) -> Iterator[Shown]:
    """Every `sfumato ...` between backticks."""
    text = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
    for code in re.findall(r"`(sfumato [^`]+)`", text):
        yield Shown(page, tuple(shlex.split(code.replace("[", "").replace("]", ""))))


def own(shown: Shown) -> tuple[str, ...]:
    """The arguments of `sfumato`; none for another program."""
    words = shown.words
    if words[0] == "sfumato":
        return words[1:]
    return words[words.index("flows") + 1 :] if words[0] == "torchrun" else ()


SHOWN = list(dict.fromkeys(shown for page in PAGES for shown in commands(page)))
OURS = [shown for shown in SHOWN if own(shown)]


def parsed(arguments: Sequence[str]) -> typer.Context:
    """A command with its options, as the program reads them; nothing is carried out."""
    name, *rest = main.each_with_set(arguments)
    command = main.load(name)
    if isinstance(command, TyperGroup):
        name, *rest = rest
        command = command.commands[name]
    return command.make_context(name, rest)


# --- the tests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_the_page_on_privacy_holds_what_explain_prints(name):
    assert f"### {name}\n\n{METHODS[name].promise}\n" in read("docs/privacy.md")


@pytest.mark.parametrize("page", LONGEST)
def test_a_first_page_stays_short(page):
    assert len(read(page).splitlines()) <= LONGEST[page]


def test_every_link_leads_somewhere():
    broken = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
            path, _, anchor = "".join(target).partition("#")
            if path.startswith("http"):
                continue
            there = ((ROOT / page).parent / path).resolve() if path else ROOT / page
            if not there.is_file() or (anchor and anchor not in anchors(there.read_text(encoding="utf-8"))):
                broken.append(f"{page}: {path}#{anchor}")
    assert broken == []


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("shown", OURS, ids=str)
def test_a_command_has_the_options_that_it_is_shown_with(shown):
    with contextlib.suppress(typer.Exit):
        parsed(own(shown))


def test_a_command_in_passing_has_its_name_and_its_options():
    for page in PAGES:
        for shown in in_passing(page):
            name, *rest = own(shown)
            if name in ("COMMAND", "nosuch") or name.startswith("-"):
                continue
            command = main.load(name)
            if isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
                command = command.commands[rest[0]]
            parameters = command.params
            known = {"--help"} | {option for one in parameters for option in (*one.opts, *one.secondary_opts)}
            assert {word.split("=")[0] for word in rest if word.startswith("--")} <= known, shown


def test_every_setting_in_passing_is_there():
    known = {path for name in METHODS for path, *_ in listed(resolve(name))}
    sections = {path.split(".")[0] for path in known}
    named = {(page, path) for page in PAGES for path in settings_named(read(page)) if path.split(".")[0] in sections}
    assert len(named) > 80
    unknown = {(page, path) for page, path in named if not any(f"{one}.".startswith(f"{path}.") for one in known)}
    assert not {(page, path) for page, path in unknown if not path.endswith(".py")}


def settings_named(text: str) -> Iterator[str]:
    """Whatever stands between backticks like `section.field`, with a value or without."""
    for code in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        yield from re.findall(r"(?<![\w./-])([a-z_]+(?:\.[a-z_]+)+)(?=[=\s]|$)", code)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory) -> Path:
    """Folders of the names that the pages use."""
    place = tmp_path_factory.mktemp("stand-ins")
    write_classes(place / "scans", {"benign": 400, "malignant": 400}, 28, 28)
    write_classes(place / "textures", {f"texture-{number}": 40 for number in range(20)}, 28, 28, channels=3)
    for at in range(400):
        pixels = np.random.default_rng(at).integers(0, 4096, (28, 28), dtype=np.uint16)
        write_dicom(
            place / "exports" / ("healthy", "ill")[at % 2] / f"IM{at}",
            pixels,
            person=at // 2,
            BitsStored=12,
            HighBit=11,
        )
    elsewhere.save(place / "painter", elsewhere.unet(2), diffusers.DDPMScheduler(num_train_timesteps=50))
    elsewhere.save(place / "painter", elsewhere.autoencoder(), part="vae")
    write_classes(place / "objects", {f"object-{number:03}": 12 for number in range(100)}, 28, 28)
    return place


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(PLANNED & set(own(shown)[:1]) for shown in commands(page))]
)
def test_runs_of_a_page_can_be_planned_in_its_order_within_the_budgets_that_it_sets(
    page, stand_ins, tmp_path, monkeypatch
):
    monkeypatch.chdir(stand_ins)
    with home_at(tmp_path / "home"):
        for shown in dict.fromkeys(commands(page)):
            arguments = own(shown)
            if arguments[:2] == ("ledger", "budget"):
                context = parsed(arguments)
                context.command.callback(**context.params)
            elif arguments and arguments[0] in PLANNED:
                plan(parsed(arguments).params)


def plan(given: Mapping[str, Any]) -> None:
    """What a run would ask of the ledger, which bears it; the options are those of `sfumato run`."""
    changes = with_short(given["changes"], given.get("epsilon"), given["public_because"])
    requested = resolve(given["method"], given["preset"], changes)
    settings, facts, _ = preflight(requested, str(where().data), known_constants, agreed_delta)
    made = plan_for(settings, facts)
    with where().ledger() as ledger:
        events = [spend.event for spend in made.spends]
        ledger.check_budget(settings.data.name, events, made.privacy.relation, made.privacy.delta)


@pytest.mark.parametrize("shown", [shown for shown in OURS if own(shown)[0] in COMPARED], ids=str)
def test_a_comparison_can_be_planned(shown, tmp_path):
    given = parsed(own(shown)).params
    numbers = [float(text) for text in given["epsilons"].split(",") if text]
    changes = list(given["changes"] or [])
    variants = given.get("variants") or list(METHODS)
    if own(shown)[0] == "sweep":
        sweep = sweep_over(given["over"], given["name"]) if given["over"] else named_sweep(given["name"])
        variants, changes = variants_of(sweep.axes), [*sweep.changes, *changes]
    with home_at(tmp_path / "home"):
        grid = RunGrid(variants, given["preset"], numbers, [0], changes)
        parts = [part for part in given.get("pairs", "").split(",") if part]
        assert planned(paired(parts, grid) if parts else grid)


LISTED = {
    tuple(shlex.split(text))
    for text in re.findall(
        r"^\| `(.+?)` \| .+ \|$", read("docs/commands.md").partition("## What the tests do not run")[2], re.MULTILINE
    )
}
"""Commands that the table of the page on commands says no test runs as they stand."""


def test_the_table_of_commands_that_no_test_runs_names_those_that_there_are():
    assert {one.words for one in SHOWN} >= LISTED
    others = {one.words for one in SHOWN if not own(one) or own(one)[0] in COMPARED}
    assert {words for words in others if words[0] not in NOTHING_TO_RUN} <= LISTED


@pytest.fixture
def tiny_flows(no_servers, monkeypatch):
    """The commands start flows without servers, with tiny settings put after those that a person gives."""

    def tiny(run):
        return [*run.changes, *settable(run.method, run.changes)]

    def synthesize(run, wishes):
        return flow.run_changed(run.method, run.preset, tiny(run), wishes)

    def rehearse(run):
        rehearsing.rehearse_public(plan_run(run.method, run.preset, tiny(run)), "rehearsal-of-the-pages")

    monkeypatch.setattr(embedded, "begin_server", answered)
    monkeypatch.setattr(flow, "synthesize_planned", synthesize)
    monkeypatch.setattr(rehearsing, "rehearse_planned", rehearse)
    audit = auditing.audit_run.fn
    monkeypatch.setattr(auditing, "audit_run", lambda run, _, changes: audit(run, 40, changes))


def settable(method: str, changes: Sequence[str]) -> list[str]:
    """Those of the tiny settings that the method has and nobody has set, of no section that follows from a folder."""
    fields = METHODS[method].section.model_fields
    given = {change.partition("=")[0] for change in changes}
    brought = {path.partition(".")[0] for path in given if path.endswith(".from")}
    return [
        change
        for change in TINY
        if (path := change.partition("=")[0]) not in given
        and path.partition(".")[0] not in brought
        and (not path.startswith("method.") or path.split(".")[1] in fields)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(own(shown) for shown in commands(page))])
@pytest.mark.usefixtures("tiny_flows", "quick_judges")
def test_the_commands_of_a_page_run_in_its_order(page, stand_ins, tmp_path, monkeypatch, capsys):
    for folder in stand_ins.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    first = [("run", "rapid")] if page == "docs/privacy.md" else []
    run = [own(shown) for shown in commands(page) if own(shown) and shown.words not in LISTED]
    for arguments in [*first, *dict.fromkeys(run)]:
        monkeypatch.setattr(sys, "argv", ["sfumato", *arguments])
        code = 0
        try:
            main.main()
        except SystemExit as leave:
            code = leave.code or 0
        assert code == 0, (arguments, capsys.readouterr().err[-2000:])


def test_every_other_line_names_what_there_is():
    targets = set(re.findall(r"^([\w./$()-]+):", read("Makefile"), re.MULTILINE)) | {".venv/.ready"}
    extras = set(tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"])
    for shown in SHOWN:
        program, *rest = shown.words
        if own(shown):
            continue
        if program == "make":
            assert rest and set(rest) <= targets, shown
        elif program in (".venv/bin/python", "python") and rest[0].endswith(".py") and "verify_card" not in rest[0]:
            assert {word for word in rest if word.startswith("--")} <= options(rest[0]), shown
        elif rest[:2] == ["-m", "pytest"]:
            assert all((ROOT / word).exists() for word in rest[2:] if not word.startswith("-")), shown
        elif program.endswith(".sh"):
            assert (ROOT / program).is_file() and not rest, shown
        else:
            assert program in FOREIGN, shown
        for named in re.findall(r"\.\[([\w,-]+)\]", " ".join(rest)):
            assert set(named.split(",")) <= extras, shown


def options(script: str) -> set[str]:
    """The options that a benchmark adds to its parser."""
    tree = ast.parse(read(script))
    return {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
        if isinstance(node.args[0], ast.Constant)
    }
