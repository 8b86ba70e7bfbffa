"""Sources in which every picture is a file of its own: a list of files becomes a catalogue."""

from collections.abc import Iterator, Sequence

from sfumato.sources.catalogue import Catalogue, Facts, File, Record
from sfumato.sources.pictures import decode, shape_of


def of_files(
    source: str, files: Sequence[File], classes: tuple[str, ...], *, has_parts: bool = False, grouped: bool = False
) -> Catalogue:
    """The catalogue of one or more files; the first one's header gives the shape."""
    numbers = {name: number for number, name in enumerate(classes)}
    groups = len({file.group for file in files}) if grouped else None
    facts = Facts(source, len(files), classes, *shape_of(files[0].path), groups)

    def records() -> Iterator[Record]:
        for file in files:
            yield Record(str(file.path), decode(file.path), numbers[file.label], file.group)

    return Catalogue(facts, records, has_parts=has_parts, files=tuple(files))
