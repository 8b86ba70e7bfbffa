"""The tables and figures of the papers, a row each: what the paper shows there, its own numbers, and how they are had here, or why not.

A paper is one file in `sfumato/reproductions/`. A recipe is a list of lines; a line is a run of a method, whose score is compared, or a
formula of the paper's analysis, which trains nothing. Every number of a paper stands in these files and nowhere else.
"""

import difflib
import functools
import hashlib
import importlib
import shlex
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from sfumato.edm_levels import Levels
from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.named_settings import ENDING, known, names
from sfumato.section import Section

FOLDER = "reproductions"
ACCOUNTANT = "accountant"
"""Name of the accountant among the places of formulas; the others are methods."""
Size = Literal["small", "full"]
DATA_FOLDER, DATA_WORD, DATA_VARIABLE = "{data}", "SFUMATO_DATA_FOLDER", "$SFUMATO_DATA"
"""The data folder in a file of rows, in words that a shell takes as they are, and in a command that a person sees."""
DIGITS = 16
"""Hexadecimal digits of the digest of a recipe: too many for two of a paper's recipes to agree by chance."""
SECONDS = "seconds/"
"""Begins the score of a line whose number is the time of a stage, by its name: `seconds/build-knowledge-base`."""


class Formula(Section):
    """A public function of a method's file or of the accountant, and its arguments."""

    function: str
    """`METHOD/NAME`, or `accountant/NAME`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    gives: str = ""
    """The field of the result that is the number, or its place from 0, place in place with dots; empty takes the result itself."""

    def value(self) -> float:
        """The number; `math.inf` where the formula says so."""
        result = self.called(**self.arguments)
        for part in filter(None, self.gives.split(".")):
            result = result[int(part)] if part.isdecimal() else getattr(result, part)
        return float(result)

    @property
    def called(self) -> Callable[..., Any]:
        """The function; `BadInput` where there is none of that name."""
        place, _, name = self.function.partition("/")
        if place != ACCOUNTANT:
            known("method", place, METHODS)
        path = "sfumato.privacy.accounting.accountant" if place == ACCOUNTANT else METHODS[place].module
        function = getattr(importlib.import_module(path), name, None)
        if name.startswith("_") or not callable(function):
            raise BadInput(f"formula {self.function!r}: {path} has no public function {name!r}")
        return function  # type: ignore[no-any-return]


class Line(Section):
    """One number of a row, and how it is had: by a run, or by a formula."""

    what: str
    """What is compared, in a few words: data, budget, quantity."""
    paper: float | None = Field(default=None, allow_inf_nan=True)
    """The paper's number; None where it prints none for this."""
    other_features: bool = False
    """Whether the paper's number is a Frechet distance in features that are not at hand, so that the two do not compare."""
    method: str = ""
    """Of a run."""
    preset: str = ""
    changes: tuple[str, ...] = ()
    """Of a run, `section.field=value`; `{data}` stands for the folder where data sets lie."""
    score: str = ""
    """Of a run, the score that is compared; or `seconds/STAGE`, the time that it took to make a stage of that name."""
    per_cent: bool = False
    """Whether the paper prints the score in per cent."""
    minutes: float = Field(default=0.0, ge=0)
    """Of a run, about how long it takes on two cores, public stages included."""
    hours: float = Field(default=0.0, ge=0)
    """Of a run at the paper's size, what the program estimates for one GPU, public stages included (`benchmarks/planned.py` writes it)."""
    formula: Formula | None = None
    certificate: Formula | None = None
    """What a sound accountant says of the formula's settings; None where nothing certifies them."""
    sound: bool = False
    """Whether the formula is a sound price by itself, and so the certificate."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if bool(self.method) == bool(self.formula):
            raise ValueError(f"{self.what!r} must have a method or a formula, and not both")
        if bool(self.method) != bool(self.score):
            raise ValueError(f"{self.what!r} must name a score with its method, and none with a formula")
        if self.formula and (self.preset or self.changes or self.minutes or self.hours):
            raise ValueError(f"{self.what!r} is a formula, and takes no settings and no time")
        return self

    @property
    def command(self) -> str:
        """The command of the run; empty for a formula."""
        if not self.method:
            return ""
        preset = ["--preset", self.preset] if self.preset else []
        changes = self.changes_in(DATA_WORD)
        words = ["sfumato", "run", self.method, *preset, *(["--set", *changes] if changes else [])]
        return shlex.join(words).replace(DATA_WORD, DATA_VARIABLE)

    def changes_in(self, folder: str) -> tuple[str, ...]:
        """The settings, with the data folder in the place of `{data}`."""
        return tuple(change.replace(DATA_FOLDER, folder) for change in self.changes)


class Stops(Section):
    """Where sampling stops, in a picture of images denoised by averages of the records beside those of a network that learnt from them."""

    grid: Levels = Levels()
    """Noise levels that sampling passes."""
    at: tuple[float, ...]
    """The noise levels at which it stops, each the nearest one of the grid."""

    @property
    def places(self) -> tuple[int, ...]:
        """Their places in the levels of the grid, of which the first, where sampling begins, is none."""
        levels = self.grid.levels()[1:-1]
        return tuple(int(abs(levels - level).argmin()) + 1 for level in self.at)


class PaperRow(Section):
    """A table or a figure."""

    place: str
    """Its name in the paper."""
    shows: str
    """What is there, in our words."""
    reports: str = ""
    """The paper's own numbers."""
    stand_in: str = ""
    """The data that stand in for those of the paper."""
    small: tuple[Line, ...] = ()
    """For two cores."""
    full: tuple[Line, ...] = ()
    """For a GPU."""
    pictures: Literal["none", "samples", "continuations", "stops"] = "none"
    """What the page shows of each of its runs: samples, several continuations of a few noised queries, or where sampling is at `stops`."""
    stops: Stops | None = None
    lacking: str = ""
    """Why it, or the rest of it, cannot be had here, or which part of the program is missing."""

    @model_validator(mode="after")
    def _had_or_not(self) -> Self:
        if not (self.small or self.full or self.lacking):
            raise ValueError(f"{self.place} has neither a recipe nor a reason why it has none")
        if (self.pictures == "stops") != (self.stops is not None):
            raise ValueError(f"{self.place} needs pictures: stops together with the noise levels of stops")
        return self

    def recipe(self, size: Size) -> tuple[Line, ...]:
        """The lines of a size; none where there are none."""
        return self.small if size == "small" else self.full

    def minutes(self, size: Size) -> float:
        """About how long it takes on two cores; lines of one run count once."""
        return sum({line.command: line.minutes for line in self.recipe(size)}.values())

    @property
    def hours(self) -> float:
        """What the runs of the paper's size take on one GPU, each from nothing."""
        return sum({line.command: line.hours for line in self.full}.values())

    def digest(self, size: Size) -> str:
        """Of what the lines do: a result of other lines stands no more. Words and expected times do not count."""
        counted = [
            line.model_dump_json(exclude={"what", "minutes", "hours", "paper", "other_features"})
            for line in self.recipe(size)
        ]
        return hashlib.sha256("\n".join(counted).encode()).hexdigest()[:DIGITS]


class Quoted(Section):
    """A method that a paper compares with, whose numbers are quoted from it."""

    method: str
    """With authors and year."""
    idea: str
    """What it does, in a sentence of ours."""
    numbers: dict[str, str]
    """What the paper prints for it, by what it is printed of."""


class Paper(Section):
    """A paper and its rows."""

    title: str
    source: str
    """Authors and year."""
    rows: dict[str, PaperRow]
    """Name within the paper -> row, in the paper's order."""
    quoted: tuple[Quoted, ...] = ()
    """Methods that are not built, with numbers of the same things."""
    quoted_why: str = ""
    """Why they are not, and what else is to be known of their numbers."""

    @model_validator(mode="after")
    def _quoted_alike(self) -> Self:
        for one in self.quoted:
            if tuple(one.numbers) != tuple(self.quoted[0].numbers):
                raise ValueError(f"{one.method!r} is quoted with other numbers than {self.quoted[0].method!r}")
        return self


def papers() -> dict[str, Paper]:
    """Name -> paper in the order of the methods, read and checked; `BadInput` names the file and the place of a mistake."""
    return {name: read(name) for name in sorted(names(FOLDER), key=list(METHODS).index)}


@functools.cache
def read(name: str) -> Paper:
    """One paper's rows; `BadInput` for an unknown name or a file with a mistake."""
    known("paper", name, names(FOLDER))
    text = (resources.files("sfumato") / FOLDER / f"{name}{ENDING}").read_text(encoding="utf-8")
    return parsed(text, name)


def parsed(text: str, name: str) -> Paper:
    """The rows of a paper from YAML; `BadInput` with the place of the first mistake."""
    try:
        return Paper.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the top"
        raise BadInput(f"{FOLDER}/{name}{ENDING}, {place}: {first['msg']}") from None


def row_name(paper: str, row: str) -> str:
    """The name of a row among those of all papers, and of its file of results."""
    return f"{paper}-{row}"


def all_rows(every: dict[str, Paper]) -> dict[str, PaperRow]:
    """Name -> row over all papers."""
    return {row_name(name, key): row for name, paper in every.items() for key, row in paper.rows.items()}


def chosen(wanted: Sequence[str], every: dict[str, Paper]) -> dict[str, PaperRow]:
    """The rows that a person names by paper or by row, all without a name; `BadInput` for a name that is neither."""
    rows = all_rows(every)
    for name in wanted:
        if name not in every and name not in rows:
            raise BadInput(
                f"unknown paper or row {name!r}: {_near(name, [*every, *rows])}; sfumato reproduce --list shows all"
            )
    of_paper = {row_name(name, key) for name, paper in every.items() if name in wanted for key in paper.rows}
    return {name: row for name, row in rows.items() if not wanted or name in wanted or name in of_paper}


def _near(name: str, there: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, there, n=3)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"the papers are {', '.join(names(FOLDER))}"
