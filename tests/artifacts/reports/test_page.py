"""A page is one HTML file that fetches and runs nothing, and the same in Markdown and CSV."""

import csv
import io
import re

import pytest
from PIL import Image
from rich.console import Console
from rich.markdown import Markdown

from artifacts.reports.page import (
    Page,
    PageSection,
    Picture,
    Table,
    Text,
    in_html,
    in_markdown,
    inside,
    plain,
    table,
    write_tables,
)
from tests.markup import Tags

NASTY = '<script>alert("x")</script> & <b onclick=run()>| [a](https://example.org)'


@pytest.fixture
def page():
    blocks = [Text(NASTY, "Lead."), Table("one", ["a", "b"], [[NASTY, 3], ["x, y", 0.5]]), Picture("dot.png", NASTY)]
    return Page(NASTY, "DP", NASTY, [PageSection("First", blocks), PageSection("More", [Text("inside")], folded=True)])


@pytest.fixture
def folder(tmp_path):
    Image.new("L", (3, 2)).save(tmp_path / "dot.png")
    return tmp_path


def test_the_page_is_one_file_without_script_or_outside_address(page, folder):
    text = in_html(page, inside(folder))
    result = Tags(text)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form", "b onclick"} & set(result.counts)
    assert result.counts["img"] == 1 and result.counts["b"] == 1, "the label in the band alone"
    assert not [name for name, _ in result.attributes if name.startswith("on")]
    addresses = [value for name, value in result.attributes if name in ("src", "href", "srcset", "action")]
    assert len(addresses) == 1 and addresses[0].startswith("data:image/png;base64,")
    assert not re.search(r"url\(|@import", text) and "default-src 'none'" in text
    assert result.text.count(NASTY) == 6, "title, band, heading, paragraph, cell and caption show it as it is"


def test_it_is_made_for_phones_paper_and_dark_screens(page):
    text = in_html(page, str)
    assert "width=device-width" in text and "@media print" in text and "prefers-color-scheme: dark" in text
    assert '<div class="scroll"><table>' in text and text.count("<details>") == 1


def test_a_picture_that_is_not_there_leaves_no_hole(page, tmp_path):
    assert "<figure" not in in_html(page, inside(tmp_path)) and "![" not in in_markdown(page, inside(tmp_path))


def test_markdown_says_the_same_and_starts_no_tag(page):
    text = in_markdown(page)
    assert text.startswith("# ") and text.splitlines()[2].startswith("> DP. ") and "## More" in text
    assert not re.search(r"<\w", text) and "](https" not in text.replace("\\](https", "")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [3] * 4


@pytest.mark.parametrize(
    ("value", "shown"), [("a\nb", "a b"), (3, "3"), ("a > b", "a > b"), ("x[1]", "x\\[1\\]"), ("\\]", "\\\\\\]")]
)
def test_text_stays_text(value, shown):
    assert plain(value) == shown


def test_each_table_is_a_csv_file_of_its_name(page, tmp_path):
    write_tables(tmp_path / "tables", page)
    (path,) = (tmp_path / "tables").iterdir()
    with path.open(encoding="utf-8", newline="") as file:
        assert path.name == "one.csv" and list(csv.reader(file)) == [["a", "b"], [NASTY, "3"], ["x, y", "0.5"]]


def test_a_name_in_code_is_shown_as_it_is():
    page = table(["image"], [["`scans.parquet[7]`"], ["scans[8]"], ["`a`[b](c)`"]])

    console = Console(width=60, file=io.StringIO())
    console.print(Markdown(page))

    shown = console.file.getvalue()
    assert "scans.parquet[7]" in shown
    assert "scans[8]" in shown
    assert "[b](c)" in shown  # no link
