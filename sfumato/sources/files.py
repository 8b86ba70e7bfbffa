"""Sources in which every picture is a file of its own, or held like one: a list of them becomes a catalogue."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from sfumato.errors import BadInput
from sfumato.sources.catalogue import Catalogue, File, Record, Request, SourceFacts
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
    facts = SourceFacts(source, len(files), classes, *first_shape(lambda: files, asked), groups)

    def labels() -> Iterator[tuple[int, str]]:
        return ((numbers[file.label], file.group) for file in files)

    return Catalogue(facts, decoding(lambda: files, classes), has_parts=has_parts, files=lambda: files, labels=labels)


def decoding(files: Callable[[], Iterable[File]], classes: tuple[str, ...]) -> Callable[[], Iterator[Record]]:
    """What decodes one after the other."""
    numbers = {name: number for number, name in enumerate(classes)}

    def records() -> Iterator[Record]:
        for file in files():
            yield Record(str(file.path), decode(file.path), numbers[file.label], file.group)

    return records


def first_shape(files: Callable[[], Iterable[File]], asked: Request) -> tuple[int, int, int]:
    """Channels, height and width of the first one, of the asked classes if it has any; of the first that can be read if `asked` is forgiving."""
    fault: BadInput | None = None
    for file in itertools.chain((file for file in files() if asked.takes(file.label)), files()):
        try:
            return shape_of(file.path)
        except BadInput as error:
            fault = fault or error
            if not asked.forgiving:
                break
    raise fault or BadInput("no picture has a shape, for there is none")
