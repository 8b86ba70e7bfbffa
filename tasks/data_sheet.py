"""The data sheet of a private collection: a look with an entry in the ledger, kept in the home and told to nobody else."""

from pathlib import Path

from artifacts.publish import safe_name
from artifacts.reports.data_sheet import sheet_page
from artifacts.store import write_text
from sfumato.config import Data
from sfumato.privacy.auditing import looks
from sfumato.privacy.auditing.data_sheet import DataSheet
from sfumato.privacy.door import Access, PrivateSet
from tasks.public import inspect_public
from tasks.runtime.caching import code_version
from tasks.runtime.environment import where
from tasks.runtime.progress import progress

RUN = "check"
"""What the ledger has in the place of a run's name."""


def check_data(private: PrivateSet, data: Data | None) -> tuple[DataSheet, Path]:
    """Look through a private collection, compare it with the public side of `data` if there is one, and keep the sheet."""
    place = where()
    public = None
    if data:
        with progress("public images") as show:
            public = inspect_public(data, show)
    with place.ledger() as ledger, progress("private images (INTERNAL)") as show:
        asked = Access(
            ledger=ledger,
            private=private,
            run=RUN,
            stage=RUN,
            purpose="data sheet",
            code_version=code_version(check_data),
            relation="add_remove",
            delta=0.0,
        )
        sheet, _ = looks.sheet_of(asked, public, progress=show)
    path = place.home / "checks" / f"{safe_name(private.name)}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, sheet_page(sheet))
    return sheet, path
