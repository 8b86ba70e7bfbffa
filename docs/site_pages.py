"""What mkdocs must know to make a site of pages that are written to be read in the repository too (`hooks` in mkdocs.yml).

A link may lead out of `docs/`: the file that it leads to becomes part of the site, below `repository/`, and so do those that this file
links to. Nothing is fetched. The notebook becomes a page. Not covered: links inside code, and links to folders.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK, ITS_PAGE = "first-hour.ipynb", "first-hour.md"
OUTSIDE = "repository/"
"""Folder of the site for what lies outside `docs/`."""
STARTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benchmarks/README.md")
"""Pages outside `docs/` that the site holds, whoever links to them."""
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\(|src=\")(?!https?:|mailto:|#)([^)\s\"#]+)")
OPENED_BY = re.compile(r"( *)([-*]|\d+\.) |\|")
"""Beginning of a line of a list or a table."""


def on_files(files: Files, config: Any) -> Files:
    """The files of the site: also the page of the notebook, and what is linked to outside `docs/`."""
    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    files.append(File.generated(config, ITS_PAGE, content=notebook_page((ROOT / "docs" / NOTEBOOK).read_text("utf-8"))))
    for path in outside([*pages, *STARTS]):
        files.append(File.generated(config, at(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The text of a page with the links of the site, as Python-Markdown reads it."""
    text = relinked(markdown, source_of(page.file.src_uri))
    if page.file.src_uri == ITS_PAGE:
        text = text.replace(
            "\n\n", f"\n\n*The notebook [{NOTEBOOK}]({NOTEBOOK}) as a page, without its output.*\n\n", 1
        )
    return outside_code(spaced, text)


def outside(pages: list[str]) -> list[str]:
    """Files outside `docs/` among these pages, those that they link to, and so on, by their paths in the repository."""
    seen, waiting = set(pages), list(pages)
    while waiting:
        page = waiting.pop()
        if page.endswith(".md"):
            new = {
                target(page, link) for _, link in LINK.findall(FENCE.sub("", (ROOT / page).read_text("utf-8")))
            } - seen
            seen |= new
            waiting += new
    return sorted(path for path in seen if not path.startswith("docs/"))


def target(page: str, link: str) -> str:
    """Where a relative link of a page leads, in the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def at(path: str) -> str:
    """The place of a file of the repository on the site."""
    inside = path.removeprefix("docs/") if path.startswith("docs/") else OUTSIDE + path
    return ITS_PAGE if inside == NOTEBOOK else inside


def source_of(place: str) -> str:
    """The file of the repository that lies at this place of the site."""
    return place.removeprefix(OUTSIDE) if place.startswith(OUTSIDE) else f"docs/{place}"


def relinked(markdown: str, page: str) -> str:
    """The text of this page of the repository with links that lead to the same files on the site."""
    here = posixpath.dirname(at(page))

    def moved(link: re.Match[str]) -> str:
        return link[1] + posixpath.relpath(at(target(page, link[2])), here or ".")

    return outside_code(lambda text: LINK.sub(moved, text), markdown)


def outside_code(change: Any, markdown: str) -> str:
    """The text with everything but its blocks of code changed."""
    done, last = [], 0
    for block in FENCE.finditer(markdown):
        done += [change(markdown[last : block.start()]), block[0]]
        last = block.end()
    return "".join([*done, change(markdown[last:])])


def spaced(markdown: str) -> str:
    """The text with what Python-Markdown asks for and the repository does not: a blank line before lists and tables, four spaces below an item."""
    lines: list[str] = []
    for line in markdown.split("\n"):
        before = lines[-1] if lines else ""
        opened = OPENED_BY.match(line)
        if opened and before.strip() and not before.startswith(" ") and not OPENED_BY.match(before):
            lines.append("")
        lines.append(" " * len(opened[1]) + line if opened and opened[1] else line)
    return "\n".join(lines)


def notebook_page(notebook: str) -> str:
    """The cells of a notebook (JSON) one below the other: text as it is, code as blocks."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(notebook)["cells"]]
    return "\n\n".join(code(text) if kind == "code" else text for kind, text in cells) + "\n"


def code(cell: str) -> str:
    """A cell as a block; one with a line for the shell is no Python."""
    return f"```{'text' if re.search('^!', cell, re.MULTILINE) else 'python'}\n{cell}\n```"
