"""Prices that screens have shown, kept in the home: `plan` and `ledger show` say again at once what they said before.

What binds computes: a run, a payment, a card and every check of the ledger know nothing of this file. Of other code, by its digest,
no price is read; a file that is not whole holds none.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from artifacts.store import write_text
from sfumato.privacy import accounting
from sfumato.privacy.accounting import accountant
from sfumato.privacy.accounting.accountant import Priced
from tasks.runtime.environment import Where

FILE, MOST = "shown-prices.json", 1000
"""In the home; and how many prices it holds, the oldest of them forgotten first."""


@contextlib.contextmanager
def cached_prices(place: Where) -> Iterator[None]:
    """Prices of the home for a screen; new ones are kept where the home is there and can be written."""
    path, code = place.home / FILE, _code()
    prices = _read(path, code)
    before = len(prices)
    with accountant.cached_prices(prices):
        yield
    if len(prices) > before and path.parent.is_dir():
        with contextlib.suppress(OSError):
            write_text(path, json.dumps({"code": code, "prices": dict(list(prices.items())[-MOST:])}))


def _read(path: Path, code: str) -> dict[str, Priced]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        there = json.loads(path.read_text(encoding="utf-8"))
        if there["code"] == code:
            return {name: Priced(float(epsilon), str(by)) for name, (epsilon, by) in there["prices"].items()}
    return {}


def _code() -> str:
    """A digest of what computes prices."""
    files = sorted(Path(*accounting.__path__).glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
