"""Heads of a ledger stored outside of it: in each run's folder, beside the private images, and at any place that a person chooses.

A statement (INTERNAL) in a run's folder holds the signed head and all spends up to it; beside the private folder, and at
a witness, lies the head alone, one line of JSON each. All are signed: lines without a valid signature are ignored.

Not covered: a place that many can write to loses its heads with its files; two processes that write one witness at a URL at once.
"""

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from artifacts.store import write_text
from artifacts.upload import is_url, shown
from sfumato.errors import BadInput, first_line, without_passwords

STATEMENT = "ledger-head.json"
"""A run's statement, in its folder."""
CARD, RECORD = "card.json", "run.json"


def note_in_run(folder: Path, statement: Mapping[str, Any]) -> None:
    """Write the ledger's statement into the folder of a run."""
    write_text(folder / STATEMENT, json.dumps(statement, indent=1))


def texts_in_runs(runs: Path) -> Iterator[str]:
    """Statements in the folders of runs, and cards where these were published to a folder, unchecked."""
    for path in sorted(runs.glob(f"*/{STATEMENT}")):
        yield from _text(path)
    for path in sorted(runs.glob(f"*/{RECORD}")):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            for text in _text(path):
                published = json.loads(text)["published"]
                yield from _text(runs.parent / published / CARD) if published and not is_url(published) else ()


def beside(source: str) -> list[Path]:
    """The files beside the private images of a source for the heads; none for sources by name, whose place is shared."""
    from sfumato import sources  # which reads pictures: nothing that checks a ledger needs it

    named = [part for part in sources.parts_of(source) if part not in sources.NAMES and os.path.lexists(part)]
    places = [Path(os.path.realpath(part)) for part in named]
    folders = [place if place.is_dir() else place.parent for place in places]
    return [folder.parent / f".sfumato-{folder.name}-heads.json" for folder in folders if folder.name]


def texts_beside(source: str) -> Iterator[str]:
    """The heads that were noted beside the private images, unchecked."""
    for path in beside(source):
        yield from _lines(path)


def note_beside(source: str, head: Mapping[str, Any]) -> None:
    """Note a head beside the private images in place of the same ledger's last one; where that cannot be written, nothing."""
    for path in beside(source):
        others = [line for line in _lines(path) if f'"{head["ledger"]}"' not in line]
        draft = path.with_name(f"{path.name}-{uuid.uuid4().hex}")
        with contextlib.suppress(OSError):
            try:
                draft.write_text("".join(f"{line}\n" for line in [*others, json.dumps(head)]), encoding="utf-8")
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)


def write_witness(head: Mapping[str, Any], to: str) -> None:
    """Append a head to a file, or to one at any URL that fsspec knows; `BadInput` where that fails."""
    line = json.dumps(head) + "\n"
    if not is_url(to):
        try:
            with open(to, "a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise BadInput(f"{to} cannot be written ({error.strerror}): choose another file with --to") from None
        return
    with _spoken(to, "--to") as (files, path):
        before = files.cat_file(path) if files.exists(path) else b""
        files.pipe_file(path, before + line.encode())


def read_witness(at: str) -> list[str]:
    """The lines of a witness, unchecked; `BadInput` where there is none."""
    if not is_url(at):
        try:
            return Path(at).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{at} cannot be read ({getattr(error, 'strerror', None) or 'it is no text'}): name a file that sfumato ledger "
                "witness wrote"
            ) from None
    with _spoken(at, "--witness") as (files, path):
        return files.cat_file(path).decode().splitlines()


def _text(path: Path) -> Iterator[str]:
    with contextlib.suppress(OSError, ValueError):
        yield path.read_text(encoding="utf-8")


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, ValueError):
        return []


@contextlib.contextmanager
def _spoken(url: str, option: str) -> Iterator[tuple[Any, str]]:
    """The file system and the path on it; any error inside the block becomes one line."""
    try:
        import fsspec

        options = {"auto_mkdir": True} if url.startswith("file:") else {}
        yield fsspec.core.url_to_fs(url, **options)
    except Exception as error:  # of a protocol, its library or the network
        cause = first_line(error)
        fault = without_passwords(f"{shown(url)} cannot be used ({type(error).__name__}: {cause})")
        raise BadInput(f"{fault}: choose another place with {option}") from error
