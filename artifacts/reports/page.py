"""A page of sections, written once and shown in three ways: HTML in one file, Markdown, and its tables as CSV.

Everything on a page is plain text, a table or a picture, so that no text from data can become markup: the template escapes HTML,
this file Markdown. The HTML needs no script and no other address: pictures are inside it, and its content policy forbids the
browser to fetch or run anything.
"""

import base64
import csv
import html
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from artifacts.store import write_text

TEMPLATE = "page.html"
CODE = re.compile(r"`[^`\n]+`")
"""Text between backquotes, in which Markdown reads no markup."""
Address = Callable[[str], str]
"""The name of a picture -> where a reader finds it; empty where there is none."""


class Text(NamedTuple):
    """A paragraph, the first words of which may be set off, and which may end with a link to a section by its title."""

    text: str
    lead: str = ""
    further: str = ""


class Table(NamedTuple):
    """Rows of cells; `name` is that of its CSV file."""

    name: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Picture(NamedTuple):
    """A PNG file beside the page, and what it shows in words."""

    file: str
    shows: str


class Blanks(NamedTuple):
    """Lines to be filled in by hand, by what stands before each."""

    labels: Sequence[str]


Block = Text | Table | Picture | Blanks


class PageSection(NamedTuple):
    """A title and what stands below it; a folded one opens on a click, and is open on paper."""

    title: str
    blocks: Sequence[Block]
    folded: bool = False
    sheet: bool = False
    """Stands on one sheet of paper by itself when printed."""


class Page(NamedTuple):
    """A page: its label and notice, then its sections."""

    title: str
    label: str
    notice: str
    """The meaning of the label for this page, in a sentence."""
    sections: Sequence[PageSection]


def in_html(page: Page, address: Address) -> str:
    """The page as one HTML file."""
    folder = FileSystemLoader(Path(__file__).parent)
    template = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    kinds = {kind.__name__: kind for kind in (Text, Table, Picture, Blanks)}
    template.filters["slug"] = slug
    template.tests["kind"] = lambda block, name: isinstance(block, kinds[name])
    blocks = (block for section in page.sections for block in section.blocks)
    linked = {block.further for block in blocks if isinstance(block, Text)}
    return template.get_template(TEMPLATE).render(page=page, address=address, linked=linked)


def in_markdown(page: Page, address: Address = str, links: Mapping[str, str] = MappingProxyType({})) -> str:
    """The page in Markdown; `links`, addresses by what they lead to, stand at its head."""
    head = [f"# {plain(page.title)}", "", f"> {page.label}. {plain(page.notice)}", ""]
    if links:
        head += [" · ".join(f"[{plain(title)}](<{at}>)" for title, at in links.items()), ""]
    return "\n".join(head + [line for section in page.sections for line in section_in_markdown(section, address)])


def section_in_markdown(section: PageSection, address: Address = str) -> Iterator[str]:
    """The lines of a section in Markdown."""
    yield from (f"## {plain(section.title)}", "")
    for block in section.blocks:
        match block:
            case Text(text, lead, further):
                written = f"**{plain(lead)}** {plain(text)}".strip() if lead else plain(text)
                yield f'{written} More below: "{plain(further)}".' if further else written
            case Blanks(labels):
                yield " · ".join(f"{plain(label)}: ________" for label in labels)
            case Table(_, head, rows):
                yield table(head, rows)
            case Picture(file, shows):
                yield f"![{plain(shows)}]({address(file)})" if address(file) else ""
        yield ""


def slug(title: str) -> str:
    """A title as the name of a place on the page: letters and digits joined by dashes."""
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as a Markdown table; a cell that is code as a whole stays as it is, since Markdown undoes no escapes in code."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    text = str(value)
    return text if CODE.fullmatch(text) else plain(text)


def plain(value: Any) -> str:
    """A value as Markdown text that starts no tag, no link and no line of its own."""
    text = html.escape(" ".join(str(value).split()), quote=False).replace("&gt;", ">")
    return re.sub(r"([\\\[\]])", r"\\\1", text)


def write_tables(folder: Path, page: Page) -> None:
    """Write each table of the page as a CSV file into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for block in (block for section in page.sections for block in section.blocks if isinstance(block, Table)):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([block.head, *block.rows])
        write_text(folder / f"{block.name}.csv", text.getvalue())


def inside(folder: Path) -> Address:
    """Pictures of this folder as data addresses, which need no file beside the page."""

    def address(file: str) -> str:
        path = folder / file
        return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode() if path.is_file() else ""

    return address
