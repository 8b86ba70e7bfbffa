"""A cache of prices that bind nobody, stored in the home: of screens, so that `plan`, `status` and `ledger show` answer at once the second time,
and of comparisons, which pay nothing.

Binding prices are always computed: a run, a payment, a card and every check of the ledger know nothing of this file. Prices of other
code, by its digest, are not read; a damaged file counts as empty.
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
"""The file in the home, and its largest number of prices, of which the oldest are dropped first."""


@contextlib.contextmanager
def cached_prices(place: Where) -> Iterator[None]:
    """Inside the block a screen or a comparison uses the home's cache of prices; new ones are stored where the home exists and can be written."""
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
    """A digest of the code that computes prices."""
    files = sorted(Path(*accounting.__path__).glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
