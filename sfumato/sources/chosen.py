"""Some classes of a source, as if there were no others: the rest is neither counted nor decoded.

So one source can be the private side by some of its classes and the public side by others.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from sfumato.errors import BadInput, first_names
from sfumato.sources.catalogue import Catalogue, File, Reading, Record
from sfumato.sources.files import decoded


def resolve_names(known: tuple[str, ...], chosen: Collection[str], source: str, setting: str) -> tuple[str, ...]:
    """The names of the chosen classes: each is given by its name, or, where no class has that name, by its position from 0 on."""
    return tuple(dict.fromkeys(_resolve_name(known, one, source, setting) for one in chosen))


def _resolve_name(known: tuple[str, ...], one: str, source: str, setting: str) -> str:
    if one in known:
        return one
    if one.isascii() and one.isdigit() and int(one) < len(known):
        return known[int(one)]
    near = difflib.get_close_matches(one, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise BadInput(
        f"{setting} names {one!r}, which is no class of {source!r} ({first_names(known)}): {hint}give names, or positions from 0 to {len(known) - 1}",
        nameless=f"has no class {one!r}, which {setting} names",
    )


def narrowed(catalogue: Catalogue, reading: Reading) -> Catalogue:
    """The records of the classes `reading.only`, all where that is empty, without those of the classes `reading.without`."""
    facts = catalogue.facts
    for one in (*reading.only, *reading.without):
        if one not in facts.classes:
            raise BadInput(f"{facts.source!r} has no class {one!r}", nameless=f"has no class {one!r}")
    classes = tuple(filter(reading.takes, facts.classes))
    place = {facts.classes.index(name): number for number, name in enumerate(classes)}

    def labels() -> Iterator[tuple[int, str]]:
        pairs = catalogue.labels() if catalogue.labels else ((one.label, one.group) for one in catalogue.records())
        return ((place[label], group) for label, group in pairs if label in place)

    def files() -> Iterator[File]:
        assert catalogue.files
        return (file for file in catalogue.files() if file.label in names)

    def records() -> Iterable[Record]:
        return (one._replace(label=place[one.label]) for one in catalogue.records() if one.label in place)

    names, chosen = set(classes), list(labels())
    groups = None if facts.groups is None else len({group for _, group in chosen})
    facts = replace(facts, classes=classes, records=len(chosen), groups=groups)
    if not catalogue.files:
        return replace(catalogue, facts=facts, records=records, labels=labels)
    return replace(
        catalogue, facts=facts, records=decoded(files, classes, reading.decoding.window), files=files, labels=labels
    )
