"""The site builds strictly and without a network, leaves no page out, and asks no other host for anything."""

import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOOKS = runpy.run_path(str(ROOT / "docs" / "site_pages.py"))
KINDS = ["Start", "Tutorial", "How-to", "Explanation", "Reference", "Results"]
OFFLINE = """
import socket, sys
def refused(*address):
    raise OSError(f"the site asked for {address}")
socket.socket.connect = socket.getaddrinfo = refused
from mkdocs.__main__ import cli
cli(sys.argv[1:])
"""
"""mkdocs in a process that can reach no other."""


class Page(HTMLParser):
    """What a built page fetches, where its links lead, its headings' ids, and its paragraphs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.paragraphs: list[str] = []
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values["id"]} if "id" in values else set()
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif values.get("rel") not in ("canonical", "next", "prev"):
            self.fetched += [values[name] for name in ("src", "href", "srcset", "data", "poster") if name in values]
        if tag == "p":
            self._open = True
            self.paragraphs.append("")

    def handle_endtag(self, tag):
        self._open = self._open and tag != "p"

    def handle_data(self, data):
        if self._open:
            self.paragraphs[-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-c", OFFLINE, "build", "--strict", "--site-dir", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return place


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    files = [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
    return {path: Page(path.read_text(encoding="utf-8")) for path in files}


def configured() -> dict:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def named() -> list[str]:
    """Every page that the nav names."""
    entries = [entry for kind in configured()["nav"] for entry in kind.values()]
    return [
        page
        for entry in entries
        for page in ([entry] if isinstance(entry, str) else [next(iter(one.values())) for one in entry])
    ]


def test_every_page_of_docs_stands_in_the_nav_once():
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    listed = named()
    assert [next(iter(kind)) for kind in configured()["nav"]] == KINDS
    left_out = sorted(there - set(listed))
    assert not left_out, (
        f"name {left_out} under one of {KINDS[1:]} in the nav of mkdocs.yml, and say on docs/index.md to whom it is of use"
    )
    assert len(listed) == len(set(listed))
    assert there | {HOOKS["ITS_PAGE"]} >= {page for page in listed if not page.startswith(HOOKS["OUTSIDE"])}


def test_the_first_page_leads_to_every_page_but_results():
    start = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    links = {HOOKS["at"](HOOKS["target"]("docs/index.md", link)) for _, link in HOOKS["LINK"].findall(start)}
    away = {"index.md", "repository/SECURITY.md"}
    assert {page for page in named() if "results/" not in page} - away <= links


def test_no_page_fetches_anything_from_elsewhere(pages):
    assert len(pages) > 20
    remote = {(path.name, url) for path, page in pages.items() for url in page.fetched if "//" in url}
    assert not remote


def test_no_stylesheet_fetches_anything_from_elsewhere(site):
    sheets = list(site.rglob("*.css"))
    assert sheets and not [
        sheet.name for sheet in sheets if "url(http" in sheet.read_text(encoding="utf-8").replace('"', "")
    ]


def test_every_link_and_picture_leads_to_a_file_and_an_anchor_of_the_site(pages):
    broken = set()
    for path, page in pages.items():
        for url in [*page.links, *page.fetched]:
            if url.startswith(("http://", "https://", "data:", "mailto:")):
                continue
            place, _, anchor = url.partition("#")
            there = (path.parent / place).resolve() if place else path
            whole = there.is_file() and (not anchor or there not in pages or anchor in pages[there].ids | {"__top"})
            broken |= set() if whole else {(path.name, url)}
    assert not broken


def test_lists_and_tables_are_not_read_as_text(pages):
    lines = (
        (path.name, line) for path, page in pages.items() for text in page.paragraphs for line in text.splitlines()
    )
    assert not [(name, line) for name, line in lines if line.lstrip().startswith(("- ", "| ", "```"))]


def test_no_page_has_a_block_that_a_script_from_elsewhere_would_draw():
    """Material fetches Mermaid from another host where a page has such a block; a picture takes its place."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / page for page in HOOKS["STARTS"])]
    assert not [path.name for path in pages if "```mermaid" in path.read_text(encoding="utf-8")]


def test_the_notebook_is_a_page_with_its_cells_and_links(site):
    text = (site / "first-hour.html").read_text(encoding="utf-8")
    assert "A budget that can refuse" in text and "load_digits" in text and "sfumato check scans" in text
    assert (
        'href="first-hour.ipynb"' in text and 'href="own-images.html"' in text and (site / "first-hour.ipynb").is_file()
    )


def test_a_link_out_of_the_folder_leads_into_the_site(tmp_path):
    text = "[a](../CHANGELOG.md#unreleased) [b](own-images.md) ![c](samples.png)\n\n```sh\n[a](../CHANGELOG.md)\n```\n"
    there = "[a](repository/CHANGELOG.md#unreleased) [b](own-images.md) ![c](samples.png)\n\n```sh\n[a](../CHANGELOG.md)\n```\n"
    assert HOOKS["relinked"](text, "docs/reports.md") == there
    readme = '[a](docs/privacy.md) [b](docs/first-hour.ipynb) <img src="docs/samples.png"> [c](https://example.org)'
    moved = '[a](../privacy.md) [b](../first-hour.md) <img src="../samples.png"> [c](https://example.org)'
    assert HOOKS["relinked"](readme, "README.md") == moved
    assert HOOKS["relinked"]("[d](results/dppm.json)", "benchmarks/README.md") == "[d](results/dppm.json)"


def test_what_is_linked_to_is_followed_to_its_end():
    outside = HOOKS["outside"](["docs/models.md"])
    assert "benchmarks/README.md" in outside and "benchmarks/results/dppm.json" in outside
    assert not [path for path in outside if path.startswith("docs/") or not (ROOT / path).is_file()]


def test_lists_get_the_blank_lines_and_the_depth_that_the_site_wants():
    written = "Text:\n- one\n  more\n- two\n  - below\n<!-- x -->\n| a |\n| --- |\n"
    assert HOOKS["spaced"](written) == "Text:\n\n- one\n  more\n- two\n    - below\n<!-- x -->\n\n| a |\n| --- |\n"


def test_a_page_that_nobody_names_or_a_link_that_leads_nowhere_fails_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# x\n\n[y](nowhere.md)\n")
    (tmp_path / "docs" / "other.md").write_text("# other\n")
    rules = {key: value for key, value in configured().items() if key in ("strict", "validation")}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump({"site_name": "x", "nav": ["index.md"], **rules}))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode != 0 and "nowhere.md" in done.stderr and "other.md" in done.stderr
