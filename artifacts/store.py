"""The store: artifacts by content, written atomically, checked when read.

An artifact is a folder of files with a manifest (kind, files with their sha256, parents, ledger entries, label,
summary). Its address is the sha256 of the manifest. It is written under a temporary name and renamed, so nothing
half-written is ever read back; a damaged file is found by its digest. Weights and images are safetensors, the rest
JSON: nothing is ever unpickled.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from artifacts.labels import Label, combined
from artifacts.references import EFFORT, Ref
from artifacts.remote import MANIFEST, Remote
from sfumato.errors import SHOWN_DIGITS, BadInput, without_passwords

Kind = TypeVar("Kind", bound=Ref)
VERSION = 4
"""Layout of the store, and what cache keys are made of; any other version is refused. Manifests of version 1 name ledger entries by number;
cache keys of version 2 hold names of modules that have moved, those of version 3 names of parameters and fields."""
EARLIER = range(1, VERSION)
"""Versions that `Store.migrate` takes over."""


class Damaged(BadInput):
    """An artifact that is missing or does not match its address; a new run makes it again."""


@dataclass(frozen=True)
class Store:
    """A folder of artifacts."""

    root: Path
    remote: Remote | None = None
    """The place of artifacts for other machines too; then `root` holds working copies."""

    @classmethod
    def open(cls, root: Path, remote: str = "") -> "Store":
        """Open or create the store; `BadInput` where it was written by another version or cannot be written.

        `remote` is a URL, see `artifacts.remote`.
        """
        root = Path(root)
        mark = root / "store.json"
        try:
            (root / "objects").mkdir(parents=True, exist_ok=True)
            if not mark.exists():
                write_text(mark, json.dumps({"version": VERSION}))
            version = json.loads(mark.read_text(encoding="utf-8")).get("version")
        except PermissionError as error:
            raise BadInput(
                f"cannot write to the store {root}: {error.strerror}; set SFUMATO_HOME to a folder you own"
            ) from None
        except (NotADirectoryError, FileExistsError):
            raise BadInput(f"the store {root} is not a folder; set SFUMATO_HOME to another place") from None
        except (ValueError, AttributeError):
            raise BadInput(f"the store's mark {mark} is not readable; move {root} away or set SFUMATO_HOME") from None
        except OSError as error:
            raise BadInput(
                f"cannot use the store {root}: {error.strerror}; set SFUMATO_HOME to another place"
            ) from None
        if version in EARLIER:
            raise BadInput(
                f"the store {root} is of an earlier format, and runs would make every stage again, paying for the private ones: "
                "`sfumato migrate` takes it over, or set SFUMATO_HOME to a new folder"
            )
        if version != VERSION:
            raise BadInput(
                f"the store {root} was written by version {version}, this program reads version {VERSION}: "
                "set SFUMATO_HOME to a new folder, or use the program that wrote it"
            )
        if not os.access(root / "objects", os.W_OK):
            raise BadInput(f"cannot write to the store {root}: permission denied; set SFUMATO_HOME to a folder you own")
        return cls(root, Remote.open(remote, VERSION) if remote else None)

    @classmethod
    def migrate(cls, root: Path, remote: str = "") -> bool:
        """Take over a store of an earlier version; False where there is nothing to do.

        No artifact in it is bound again. Manifests of version 1 give numbers of ledger entries, and looking these up in the present ledger
        might accept an artifact that another ledger paid for: such an artifact can be shown, counts as missing, and cannot be published.
        Artifacts of versions 2 and 3 stay valid, but no run finds them again.
        """
        changed = Remote.migrate(remote, EARLIER, VERSION) if remote else False
        mark = Path(root) / "store.json"
        try:
            if json.loads(mark.read_text(encoding="utf-8")).get("version") not in EARLIER:
                return changed
        except (OSError, ValueError, AttributeError):
            return changed
        write_text(mark, json.dumps({"version": VERSION}))
        return True

    @contextlib.contextmanager
    def writing(self) -> Iterator[Path]:
        """A temporary folder on the store's disk, removed at the end in any case."""
        folder = None
        try:
            folder = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
            yield folder
        except OSError as error:
            raise full_disk(error, self.root) from error
        finally:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def keep(
        self,
        kind: type[Kind],
        folder: Path,
        *,
        parents: Sequence[Ref] = (),
        behind: Sequence[Ref] = (),
        entries: Mapping[str, str] | None = None,
        summary: Mapping[str, Any] | None = None,
        seconds: float = 0.0,
        tracked: str = "",
    ) -> Kind:
        """Move the files of `folder` into the store. `entries` maps the hashes of the ledger entries used to their labels.

        `behind` are artifacts that reached this one only through a mechanism that an entry pays for, as the private
        images themselves do; their labels are not handed on.

        Many parameters: each is a field of the manifest that it writes.
        """
        entries = dict(entries or {})
        if behind and not entries:
            raise ValueError("an artifact may stand behind another one only with a ledger entry between them")
        label = combined([*(self.manifest(parent)["label"] for parent in parents), *entries.values()])
        manifest = {
            "kind": kind.__name__,
            "files": {path.name: file_digest(path) for path in sorted(folder.iterdir())},
            "parents": [parent.digest for parent in parents],
            **({"behind": [other.digest for other in behind]} if behind else {}),
            "entries": dict(sorted(entries.items())),
            "label": label,
            "summary": dict(summary or {}),
        }
        text = json.dumps(manifest, sort_keys=True, indent=1)
        digest = hashlib.sha256(text.encode()).hexdigest()
        (folder / MANIFEST).write_text(text, encoding="utf-8")
        for path in folder.iterdir():
            synced(path)
        target = self.root / "objects" / digest
        if target.exists() and not self._whole(digest):
            shutil.rmtree(target)
        if not target.exists():
            try:
                os.rename(folder, target)
            except OSError:
                if not self._whole(digest):  # otherwise another writer of the same content was first
                    raise
        if self.remote:
            try:
                self.remote.push(digest, target)
            except BadInput as error:  # what was made, and perhaps paid for, is here: the next run sends it
                warnings.warn(f"artifact {digest[:SHOWN_DIGITS]} is on this machine only: {error}", stacklevel=2)
        return kind(digest=digest, label=label, seconds=seconds, tracked=tracked)

    def manifest(self, ref: Ref | str) -> dict[str, Any]:
        """The manifest at an address, checked against it; `Damaged` where it is gone or changed."""
        digest = ref if isinstance(ref, str) else ref.digest
        text: bytes | None
        try:
            text = (self.root / "objects" / digest / MANIFEST).read_bytes()
        except OSError:
            text = self.remote.manifest(digest) if self.remote else None
        if text is None:
            raise Damaged(f"artifact {digest[:SHOWN_DIGITS]} is not in the store {self.root}: run again")
        if hashlib.sha256(text).hexdigest() != digest:
            raise Damaged(
                f"the manifest of artifact {digest[:SHOWN_DIGITS]} in the store {self.root} was changed: run again"
            )
        return json.loads(text)

    def folder(self, ref: Ref | str) -> Path:
        """The folder of an artifact, every file checked; `Damaged` where one is gone or changed.

        Files that are missing or damaged here come from the remote store, if there is one.
        """
        digest = ref if isinstance(ref, str) else ref.digest
        if self.remote and not self._whole(digest):
            self._bring(digest, self.remote)
        return self._checked(digest)

    def _checked(self, digest: str) -> Path:
        folder = self.root / "objects" / digest
        for name, expected in self.manifest(digest)["files"].items():
            if not (folder / name).is_file() or file_digest(folder / name) != expected:
                raise Damaged(
                    f"file {name} of artifact {digest[:SHOWN_DIGITS]} in the store {self.root} is missing or damaged: run again"
                )
        return folder

    def _whole(self, digest: str) -> bool:
        """Whether the artifact is on this machine and unchanged."""
        with contextlib.suppress(Damaged):
            return (self._checked(digest) / MANIFEST).is_file()
        return False

    def _bring(self, digest: str, remote: Remote) -> None:
        """Fetch an artifact from the remote store, completely or not at all."""
        manifest = remote.manifest(digest)
        if manifest is None or hashlib.sha256(manifest).hexdigest() != digest:
            raise Damaged(
                f"artifact {digest[:SHOWN_DIGITS]} is missing or damaged at {without_passwords(remote.url)}: run again"
            )
        with self.writing() as folder:
            for name, expected in json.loads(manifest)["files"].items():
                if name != Path(name).name:
                    raise Damaged(
                        f"artifact {digest[:SHOWN_DIGITS]} names the file {name!r}, which leaves its folder: run again"
                    )
                remote.fetch(digest, name, folder / name)
                if not (folder / name).is_file() or file_digest(folder / name) != expected:
                    raise Damaged(
                        f"file {name} of artifact {digest[:SHOWN_DIGITS]} is missing or damaged at {without_passwords(remote.url)}: run again"
                    )
            (folder / MANIFEST).write_bytes(manifest)
            for path in folder.iterdir():
                synced(path)
            target = self.root / "objects" / digest
            shutil.rmtree(target, ignore_errors=True)
            try:
                os.rename(folder, target)
            except OSError:
                if not self._whole(digest):
                    raise

    def remember(self, key: str, ref: Ref) -> None:
        """Publish an artifact made here under a cache key for other machines; files that the remote store lacks are sent."""
        if self.remote and self.remote.recall(key) != (ref.digest, ref.effort):
            if self.remote.manifest(ref.digest) is None:
                self.remote.push(ref.digest, self.folder(ref))
            self.remote.remember(key, ref.digest, ref.effort)

    def recall(self, key: str) -> Ref | None:
        """An artifact that another machine made under a cache key, fetched and checked; None where there is no complete one."""
        note = self.remote.recall(key) if self.remote else None
        return self._known(*note) if note else None

    def note(self, key: str, ref: Ref) -> None:
        """Write down here under which cache key an artifact was made."""
        (self.root / "keys").mkdir(exist_ok=True)
        write_text(self.root / "keys" / f"{key}.json", json.dumps({"digest": ref.digest, **ref.effort}))

    def noted(self, key: str) -> Ref | None:
        """The artifact that was written down under a cache key; None where there is none, or it is missing or damaged."""
        try:
            note = json.loads((self.root / "keys" / f"{key}.json").read_text())
            return self._known(str(note.pop("digest")), {name: float(value) for name, value in note.items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _known(self, digest: str, effort: Mapping[str, float]) -> Ref | None:
        if not self.intact(digest):
            return None
        manifest = self.manifest(digest)
        kind = next((kind for kind in _kinds(Ref) if kind.__name__ == manifest["kind"]), None)
        known = {name: effort[name] for name in EFFORT if name in effort}
        return kind(digest=digest, label=manifest["label"]).model_copy(update=known) if kind else None

    def intact(self, ref: Ref | str) -> bool:
        """Whether the artifact is there and unchanged."""
        try:
            self.folder(ref)
        except Damaged:
            return False
        return True

    def ancestry(self, ref: Ref | str) -> list[tuple[str, dict[str, Any]]]:
        """The artifact and all its ancestors, each once, nearest first."""
        todo, seen = [ref if isinstance(ref, str) else ref.digest], {}
        while todo:
            digest = todo.pop(0)
            if digest not in seen:
                seen[digest] = self.manifest(digest)
                todo += seen[digest]["parents"]
        return list(seen.items())

    def entries(self, ref: Ref | str) -> list[str]:
        """The hash of every ledger entry that went into the artifact, itself and its ancestors."""
        return sorted({entry for _, manifest in self.ancestry(ref) for entry in manifest["entries"]})

    def label_of(self, ref: Ref | str) -> Label:
        """The label of an artifact by the present rule, from every ledger entry that went into it."""
        return combined(label for _, manifest in self.ancestry(ref) for label in manifest["entries"].values())

    def tainted_by(self, ref: Ref | str) -> str:
        """The kind and address of the ancestor that makes the artifact INTERNAL (its entries: `certify.missing`)."""
        for digest, manifest in reversed(self.ancestry(ref)):
            if Label.INTERNAL in manifest["entries"].values():
                return f"{manifest['kind']} {digest[:SHOWN_DIGITS]}"
        return "nothing"


def _kinds(base: type[Ref]) -> Iterator[type[Ref]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def file_digest(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def synced(path: Path) -> None:
    """Force a file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically: under a temporary name, then renamed."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".new-", delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def full_disk(error: OSError, place: Path) -> OSError | BadInput:
    """Turn the error of a full disk into one line; any other error passes unchanged."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BadInput(f"no space left on the disk of {place}: nothing was kept; free some space and run again")
    return error
