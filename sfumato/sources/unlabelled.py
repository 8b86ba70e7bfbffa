"""A source with its labels left aside: all pictures are one class."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sfumato.sources.catalogue import UNLABELLED, Catalogue, File, Reading, Record
from sfumato.sources.files import decoded


def without_labels(catalogue: Catalogue, reading: Reading) -> Catalogue:
    """The same records, and groups, of the one class `UNLABELLED`."""
    facts, classes = replace(catalogue.facts, classes=(UNLABELLED,)), (UNLABELLED,)
    if facts == catalogue.facts:
        return catalogue

    def records() -> Iterable[Record]:
        return (record._replace(label=0) for record in catalogue.records())

    def labels() -> Iterator[tuple[int, str]]:
        assert catalogue.labels
        return ((0, group) for _, group in catalogue.labels())

    def files() -> Iterator[File]:
        assert catalogue.files
        return (file._replace(label=UNLABELLED) for file in catalogue.files())

    whole = replace(catalogue, facts=facts, records=records, labels=labels if catalogue.labels else None)
    if not catalogue.files:
        return whole
    return replace(whole, files=files, records=decoded(files, classes, reading.decoding.window))
