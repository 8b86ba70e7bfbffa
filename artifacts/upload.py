"""Uploads a folder to a URL (`s3://bucket/folder`, any that fsspec knows), so that its last file marks it as complete.

Files are sent under a temporary name and moved when all are there, the mark last: an object store moves one object after
the other, so that a folder there is complete once it holds its mark. Existing files at the place are never touched.

Not covered: two uploads to one URL at the same moment; a place that is open to others, who see the temporary name too. Secrets
come from the environment (AWS_ACCESS_KEY_ID, ...).
"""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sfumato.errors import BadInput, first_line, without_passwords


def is_url(to: str | Path) -> bool:
    """Whether a destination is a URL and not a folder."""
    return isinstance(to, str) and "://" in to


def shown(url: str) -> str:
    """A URL without user, password and other secrets."""
    return without_passwords(url)


def free_place(url: str) -> str:
    """The URL, without a slash at its end; `BadInput` where the place is taken already, or cannot be written."""
    with _spoken(url) as (files, root):
        if "/" not in root.strip("/"):
            raise BadInput(f"{shown(url)} names no folder: write for example s3://bucket/folder")
        occupied = _is_occupied(files, root)
    if occupied:
        raise BadInput(f"there is something at {shown(url)} already: choose another place with --to")
    return url.rstrip("/")


def upload(folder: Path, url: str, *, mark: str) -> None:
    """Send all files of `folder` to a free place, the file `mark` last; `BadInput` where that fails."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    rest = [name for name in names if name != mark]
    free_place(url)
    with _spoken(url) as (files, root):
        above, _, last = root.rpartition("/")
        draft = f"{above}/.{last}-{uuid.uuid4().hex}"
        try:
            files.put([str(folder / name) for name in rest], [f"{draft}/{name}" for name in rest])
            if _is_occupied(files, root):
                raise BadInput(f"there is something at {shown(url)} now: choose another place with --to")
            _move(files, draft, root, rest)
            files.put_file(str(folder / mark), f"{root}/{mark}")
        finally:
            with contextlib.suppress(Exception):  # the first error is the one that a person must see
                files.invalidate_cache()
                if files.exists(draft):
                    files.rm(draft, recursive=True)
        files.invalidate_cache()
        there = {path.removeprefix(root.lstrip("/")).strip("/") for path in (p.lstrip("/") for p in files.find(root))}
        if lacking := set(names) - there:
            raise BadInput(
                f"{len(lacking)} of {len(names)} files are not at {shown(url)} after the upload: publish again, to another place"
            )


def _move(files: Any, draft: str, root: str, names: list[str]) -> None:
    """Move the files at `draft` to their place: by one rename, or on an object store, which has no folders, one by one."""
    if not files.async_impl:
        if files.exists(root):
            files.rmdir(root)  # empty, or it would be taken: a folder that is there would be moved into
        files.mv(draft, root, recursive=True)
        return
    files.copy([f"{draft}/{name}" for name in names], [f"{root}/{name}" for name in names])


def _is_occupied(files: Any, root: str) -> bool:
    files.invalidate_cache()
    if not files.exists(root):
        return False
    return files.isfile(root) or bool(files.find(root))


@contextlib.contextmanager
def _spoken(url: str) -> Iterator[tuple[Any, str]]:
    """The file system and the path on it; any error inside the block becomes one line."""
    try:
        import fsspec

        options = {"auto_mkdir": True} if url.startswith("file:") else {}
        files, root = fsspec.core.url_to_fs(url, **options)
        yield files, root.rstrip("/")
    except BadInput:
        raise
    except Exception as error:  # of a protocol, its library or the network
        cause = first_line(error)
        fault = without_passwords(f"{url} cannot be published to ({type(error).__name__}: {cause})")
        raise BadInput(f"{fault}: choose another place with --to") from error
