"""Artifacts beyond this machine: a folder at any fsspec URL (`s3://bucket/sfumato`, `file:///mnt/share`, ...).

Artifacts lie there under their addresses, as in the local store, which is then a working copy. A manifest is written last, and
every file fetched is checked against its digest, so that a half-written or damaged artifact counts as missing. Beside the
artifacts lies an index from cache keys to addresses, so that another machine finds them too. INTERNAL artifacts lie there as
well: the place must be as well guarded as the machine itself.

Not covered: removing artifacts that nobody needs any more; encryption. Secrets come from the environment (AWS_ACCESS_KEY_ID, ...).
"""

import functools
import json
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import BadInput, first_line, without_passwords

MARK, MANIFEST = "store.json", "manifest.json"


@dataclass(frozen=True)
class Remote:
    """A folder of artifacts at a URL."""

    url: str

    @classmethod
    def open(cls, url: str, version: int) -> "Remote":
        """Open or create it; `BadInput` where it cannot be used or was written by another version."""
        return _open(url, version)

    @classmethod
    def migrate(cls, url: str, earlier: Container[int], new: int) -> bool:
        """Mark one of an earlier version as of version `new`; False where it is none."""
        remote = cls(url)
        try:
            if json.loads(remote._read(MARK) or b"")["version"] not in earlier:
                return False
        except (ValueError, KeyError, TypeError):
            return False
        with remote._spoken() as (files, root):
            files.pipe_file(f"{root}/{MARK}", json.dumps({"version": new}).encode())
        return True

    def push(self, digest: str, folder: Path) -> None:
        """Send an artifact, its manifest last; it replaces a damaged one."""
        with self._spoken() as (files, root):
            for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):
                files.pipe_file(f"{root}/objects/{digest}/{path.name}", path.read_bytes())

    def manifest(self, digest: str) -> bytes | None:
        """The stored manifest of an artifact, unchecked; None where there is none."""
        return self._read(f"objects/{digest}/{MANIFEST}")

    def fetch(self, digest: str, name: str, to: Path) -> None:
        """Fetch a file of an artifact, unchecked; nothing where there is none."""
        data = self._read(f"objects/{digest}/{name}")
        if data is not None:
            to.write_bytes(data)

    def remember(self, key: str, digest: str, effort: Mapping[str, float]) -> None:
        """Note which artifact was made under a cache key, and what that took."""
        with self._spoken() as (files, root):
            files.pipe_file(f"{root}/keys/{key}", json.dumps({"artifact": digest, **effort}).encode())

    def recall(self, key: str) -> tuple[str, dict[str, float]] | None:
        """The artifact that was made under a cache key, and what that took; None where none was, or the note is damaged."""
        try:
            note = json.loads(self._read(f"keys/{key}") or b"")
            return str(note.pop("artifact")), {name: float(value) for name, value in note.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def _read(self, path: str) -> bytes | None:
        with self._spoken() as (files, root):
            try:
                return files.cat_file(f"{root}/{path}")
            except FileNotFoundError:
                return None

    @contextmanager
    def _spoken(self) -> Iterator[tuple[Any, str]]:
        """The file system and the path on it; any error inside the block becomes one line."""
        try:
            yield _connected(self.url)
        except Exception as error:  # of a protocol, its library or the network
            cause = first_line(error)
            raise BadInput(
                without_passwords(
                    f"the store at {self.url} cannot be used ({type(error).__name__}: {cause}): set SFUMATO_STORE"
                )
            ) from error


@functools.cache
def _open(url: str, version: int) -> Remote:
    if "://" not in url:
        raise BadInput(f"SFUMATO_STORE={url!r} is no URL: write for example s3://bucket/folder or file:///mnt/share")
    remote = Remote(url)
    mark = remote._read(MARK)
    if mark is None:
        with remote._spoken() as (files, root):
            files.pipe_file(f"{root}/{MARK}", json.dumps({"version": version}).encode())
        return remote
    try:
        stored = json.loads(mark)["version"]
    except (ValueError, KeyError, TypeError):
        stored = "none that can be read"
    if stored != version:
        raise BadInput(
            without_passwords(
                f"the store at {url} was written by version {stored}, this program reads version {version}: set SFUMATO_STORE",
            )
        )
    return remote


@functools.cache
def _connected(url: str) -> tuple[Any, str]:
    import fsspec

    files, root = fsspec.core.url_to_fs(url, auto_mkdir=True) if url.startswith("file:") else fsspec.core.url_to_fs(url)
    return files, root.rstrip("/")
