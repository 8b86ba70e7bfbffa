"""The key of a ledger, its signatures, and the heads seen before, which reveal that a ledger was cut or rewritten.

A ledger has an id and an Ed25519 key (RFC 8032), made when the ledger is and kept in a folder outside of it, readable by
its owner alone, or given from outside. Every head, which is the hash of the last entry and with it says everything
before, is signed; so nobody without the key writes an entry or chains the old ones anew. The end of a ledger can be cut
off without a key: therefore each head is also noted beside the key once its entry is on disk, and a ledger that lacks
one of these is found out, also where a new one stands in its place.

A head noted is never ahead of the database, and one that a crash kept from being noted is made good by the next entry.

Not covered: who holds the key can sign anything, and may remove the notes too. A head written elsewhere (`sfumato ledger
witness`) binds the owner of the key as well.
"""

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from sfumato.errors import BadInput

OWNER_ONLY, OWNERS_FOLDER = 0o600, 0o700
ID_BYTES, HASH_LETTERS = 16, 64
SHOWN_LETTERS = 16
"""Letters of a fingerprint in messages."""
PEM = "-----BEGIN"
NOTHING, UNKNOWN = "-", "?"
"""Stand for the hash before the first entry, and before an entry of which only its own hash is known."""


class Head(NamedTuple):
    """An entry that was the last one at some time: its number and hash, and the hash before it where that is known."""

    seq: int
    hash: str
    previous: str = UNKNOWN


def canonical(value: Any) -> str:
    """The one JSON text of a value; `ValueError` for what JSON cannot say (NaN, infinity)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Signer:
    """A private key."""

    private: Ed25519PrivateKey = field(repr=False)

    @property
    def public_key(self) -> str:
        """The public key: base64 of 32 bytes."""
        return _text(self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    @property
    def fingerprint(self) -> str:
        """Sha256 of the public key's 32 bytes, 64 hex digits."""
        return fingerprint(self.public_key)

    def sign(self, message: bytes) -> str:
        """The signature, base64 of 64 bytes."""
        return _text(self.private.sign(message))


def fingerprint(public_key: str) -> str:
    """Sha256 of a public key's 32 bytes, 64 hex digits: what people compare."""
    return hashlib.sha256(base64.b64decode(public_key)).hexdigest()


def is_signed(public_key: str, message: bytes, signature: str) -> bool:
    """Whether this key signed this message; False for anything that is no key or no signature."""
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
        key.verify(base64.b64decode(signature, validate=True), message)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def signed(value: Mapping[str, Any], signer: Signer) -> dict[str, Any]:
    """The value with the field `signature`, which covers every other one in canonical JSON."""
    plain = _unsigned(value)
    return {**plain, "signature": signer.sign(canonical(plain).encode())}


def is_signed_value(value: Mapping[str, Any], public_key: str) -> bool:
    """Whether this key signed a value as `signed` does."""
    signature = value.get("signature")
    return isinstance(signature, str) and is_signed(public_key, canonical(_unsigned(value)).encode(), signature)


def head_of(ledger: str, seq: int, hash: str, public_key: str) -> dict[str, Any]:
    """The signed content of a head: the ledger, the number of entries, the last one's hash, and the signer's key."""
    return {"ledger": ledger, "seq": seq, "hash": hash, "public_key": public_key}


@dataclass(frozen=True)
class Keys:
    """The folder of the keys and of the heads seen; `outside_key` is a key from outside, as PEM text or a path to it."""

    folder: Path
    outside_key: str = field(default="", repr=False)

    def new_ledger(self, place: str) -> tuple[str, Signer]:
        """Id and signer of a ledger that begins at a place: the one that was there before while its key is, or else new ones."""
        for before in self.at(place)[-1:]:
            with suppress(BadInput):  # its key is lost, but what was seen of it is still asked for
                return before, self.signer(before)
        ledger = secrets.token_hex(ID_BYTES)
        if not self.outside_key:
            return ledger, self._make(ledger)
        signer = self.signer(ledger)
        self._append(self._public(ledger), [signer.public_key])
        return ledger, signer

    def new_key(self, ledger: str, public_key: str) -> Signer:
        """The key from outside, or else a new one, for a ledger whose key is lost; `BadInput` where its key exists."""
        try:
            self.signer(ledger, public_key)
        except BadInput:
            if self.outside_key:
                return self.signer(ledger)
            with suppress(FileNotFoundError):  # what cannot be read may still be of use to somebody
                self._key(ledger).replace(self._key(ledger).with_suffix(f".{secrets.token_hex(4)}.lost"))
            return self._make(ledger)
        raise BadInput("the key of the ledger is there and is its own: leave --new-key out")

    def signer(self, ledger: str, public_key: str = "") -> Signer:
        """The signer of a ledger; `BadInput` where its key is not there, cannot be read, or is not the one of `public_key`."""
        ways = (
            "bring it back from a backup, give it by SFUMATO_LEDGER_KEY, or go on under a new one with "
            "sfumato ledger recover --new-key REASON"
        )
        where = "SFUMATO_LEDGER_KEY" if self.outside_key else str(self._key(ledger))
        try:
            text = (
                self.outside_key
                if self.outside_key.startswith(PEM)
                else Path(self.outside_key or where).expanduser().read_text()
            )
            private = load_pem_private_key(text.encode(), password=None)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            cause = getattr(error, "strerror", None) or "it holds no key in PEM that can be read"
            raise BadInput(f"the key of the ledger at {where} cannot be read ({cause}): {ways}") from None
        if not isinstance(private, Ed25519PrivateKey):
            raise BadInput(f"the key at {where} is no Ed25519 key: {ways}")
        signer = Signer(private)
        if public_key and signer.public_key != public_key:
            raise BadInput(
                f"the key at {where} ({signer.fingerprint[:SHOWN_LETTERS]}) is not the one of this ledger: {ways}"
            )
        return signer

    def remember_place(self, place: str, ledger: str) -> None:
        """Note which ledger lies at a place, so that a new one in its stead is found out."""
        if ledger and ledger not in self.at(place):
            self._append(self._place(place), [ledger])

    def seen(self, place: str, ledger: str) -> list[Head]:
        """The heads that were noted of a ledger, and of others that lay at its place, each once, in the order of notes.

        One that was also noted by itself, as a run or a witness knows it, keeps the hash before it.
        """
        heads: dict[str, Head] = {}
        for head in (head for one in dict.fromkeys([*self.at(place), ledger]) for head in self._heads_of(one)):
            if head.hash not in heads or heads[head.hash].previous == UNKNOWN:
                heads[head.hash] = head
        return list(heads.values())

    def public_keys(self, place: str, ledger: str) -> set[str]:
        """The public keys that were noted of a ledger, and of others that lay at its place."""
        return {key for one in [*self.at(place), ledger] for key in self._lines(self._public(one)) if key}

    def remember(self, ledger: str, heads: Sequence[Head]) -> None:
        """Note heads; call once their entries are on disk."""
        self._append(self._heads(ledger), [f"{one.seq} {one.hash} {one.previous or NOTHING}" for one in heads])

    def _make(self, ledger: str) -> Signer:
        private = Ed25519PrivateKey.generate()
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self._write(self._key(ledger), pem, os.O_EXCL)
        self._append(self._public(ledger), [Signer(private).public_key])
        return Signer(private)

    def _heads_of(self, ledger: str) -> list[Head]:
        lines = (line.split() for line in self._lines(self._heads(ledger)))
        whole = (line for line in lines if len(line) == 3 and line[0].isdigit() and len(line[1]) == HASH_LETTERS)
        return [Head(int(seq), hash, "" if previous == NOTHING else previous) for seq, hash, previous in whole]

    def at(self, place: str) -> list[str]:
        """The ids of the ledgers that were at a place, the last one last."""
        return [one for one in self._lines(self._place(place)) if one]

    def _lines(self, path: Path) -> list[str]:
        try:
            return path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise self._unusable(error) from None

    def _append(self, path: Path, lines: Sequence[str]) -> None:
        """One write at the end of the file, which several processes may do at once; a torn line before it stays alone."""
        if lines:
            self._write(path, "".join(f"\n{line}" for line in lines).encode() + b"\n", os.O_APPEND)

    def _write(self, path: Path, data: bytes, how: int) -> None:
        try:
            self.folder.mkdir(mode=OWNERS_FOLDER, parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | how, OWNER_ONLY)
            try:
                os.write(file, data)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: Exception) -> BadInput:
        cause = getattr(error, "strerror", None) or type(error).__name__
        return BadInput(
            f"the folder of the ledger's keys {self.folder} cannot be used ({cause}): set SFUMATO_KEYS to a folder that you own"
        )

    def _key(self, ledger: str) -> Path:
        return self.folder / f"{ledger}.pem"

    def _heads(self, ledger: str) -> Path:
        return self.folder / f"{ledger}.heads"

    def _public(self, ledger: str) -> Path:
        return self.folder / f"{ledger}.pub"

    def _place(self, place: str) -> Path:
        return self.folder / f"{hashlib.sha256(place.encode()).hexdigest()[: 2 * ID_BYTES]}.place"


def missing_heads(seen: Iterable[Head], present: Iterable[str]) -> list[Head]:
    """The heads seen that are not among the hashes `present`, each once, the latest first."""
    there = set(present)
    return sorted({head.hash: head for head in seen if head.hash not in there}.values(), reverse=True)


def _unsigned(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in value.items() if name != "signature"}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
