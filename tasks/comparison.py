"""The end of a comparison: its folder, its pictures, and its entries in MLflow."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp

from artifacts import serialization
from artifacts.labels import Label
from artifacts.publish import safe_name
from artifacts.record import RunRecord, load_record
from artifacts.references import Samples
from artifacts.reports import comparison, comparison_plots
from artifacts.reports.comparison import Comparison, Row
from artifacts.reports.differences import PAIRS, PairRow
from artifacts.reports.page import in_html, inside, write_tables
from artifacts.reports.run import INTERNAL_TABLES
from artifacts.store import write_text
from sfumato.images import ImageSet, save_png
from tasks.runtime.environment import where
from tasks.runtime.run import begin_parents, until_the_end

COMPARED = "comparison"
"""Tag of the parent run of a comparison or sweep: its title."""


@contextlib.contextmanager
def comparing(title: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A name for the comparison, and a parent run in each experiment, which end with the block: name, label -> MLflow run.

    Its folder is removed where an error ends the comparison before anything was written into it.
    """
    place = where()
    folders = place.home / "comparisons"
    folders.mkdir(exist_ok=True)
    # The end of the name is drawn, since two comparisons may begin in the same second.
    folder = Path(mkdtemp(prefix=f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{safe_name(title)}-", dir=folders))
    name = folder.name
    try:
        parents = begin_parents(name, {COMPARED: title})
    except BaseException:
        folder.rmdir()
        raise
    with until_the_end(parents, folder):
        yield name, parents


def conclude(
    name: str,
    parents: dict[str, str],
    rows: Sequence[Row],
    *,
    axes: Mapping[str, Mapping[str, str]],
    pairs: Sequence[PairRow] = (),
) -> Comparison:
    """Write table, page and plots, and show them in MLflow's internal experiment; `axes` are what a sweep varied."""
    place = where()
    folder = place.home / "comparisons" / name
    result = Comparison(name=name, folder=str(folder), rows=tuple(rows), axes=axes, pairs=tuple(pairs))
    samples = [samples_of(load_record(place.runs, line.row.runs[0])) for line in comparison.lines(result)]
    save_png(folder / comparison.PICTURES, comparison.pictures(samples))
    comparison_plots.draw(folder, result)
    page = comparison.comparison_page(result)
    write_text(folder / comparison.REPORT, in_html(page, inside(folder)))
    write_tables(folder / INTERNAL_TABLES, page)
    write_text(folder / comparison.COMPARISON, result.model_dump_json(indent=1))
    drawn = (result.plot, comparison.PICTURES, *([PAIRS] if pairs else []))
    shown = [folder / file for file in (comparison.REPORT, INTERNAL_TABLES, *drawn)]
    place.tracker().log(name, label=Label.INTERNAL, run=parents[str(Label.INTERNAL)], files=shown)
    return result


def samples_of(record: RunRecord) -> ImageSet:
    """The images of a run."""
    ref = Samples(digest=record.samples_artifact, label=Label(record.label))
    return serialization.load_images(where().store().folder(ref))
