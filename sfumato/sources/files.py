"""Sources in which every picture is a file of its own: a list of files becomes a catalogue."""

from collections.abc import Iterator, Sequence

from sfumato.errors import BadInput
from sfumato.sources.catalogue import Catalogue, Facts, File, Record, Request
from sfumato.sources.pictures import decode, shape_of


def of_files(
    source: str,
    files: Sequence[File],
    classes: tuple[str, ...],
    asked: Request,
    *,
    has_parts: bool = False,
    grouped: bool = False,
) -> Catalogue:
    """The catalogue of one or more files; the first one's header gives the shape.

    Where `asked` is forgiving, it is the first that can be read.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    groups = len({file.group for file in files}) if grouped else None
    facts = Facts(source, len(files), classes, *_shape(files if asked.forgiving else files[:1]), groups)

    def records() -> Iterator[Record]:
        for file in files:
            yield Record(str(file.path), decode(file.path), numbers[file.label], file.group)

    return Catalogue(facts, records, has_parts=has_parts, files=tuple(files))


def _shape(files: Sequence[File]) -> tuple[int, int, int]:
    fault = BadInput("no picture has a shape, for there is none")
    for number, file in enumerate(files):
        try:
            return shape_of(file.path)
        except BadInput as error:
            fault = fault if number else error
    raise fault
