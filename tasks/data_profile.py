"""The profile of a private collection: a look with an entry in the ledger, stored in the home and nowhere else."""

from dataclasses import dataclass
from pathlib import Path

from artifacts.publish import safe_name
from artifacts.reports.data_profile import profile_page
from artifacts.store import write_text
from sfumato.config import Data
from sfumato.errors import BadInput
from sfumato.privacy.auditing import looks
from sfumato.privacy.auditing.data_profile import DataProfile
from sfumato.privacy.door import Access, PrivateSet
from sfumato.sources import drawn_once
from tasks.public import inspect_public, read_public
from tasks.runtime.caching import code_version
from tasks.runtime.environment import where
from tasks.runtime.progress import progress

RUN = "check"
"""The name in the ledger in place of a run's."""


@dataclass(frozen=True)
class Intended:
    """The way in which a run on the collection would read the public images."""

    data: Data
    size: int
    """Side that they are brought to, 0 for none."""
    seed: int


def check_data(private: PrivateSet, data: Data | None, run: Intended | str) -> tuple[DataProfile, Path]:
    """Inspect a private collection, compare it with the public side of `data` if there is one, and store the profile.

    Also checks whether a `run` on both would begin; `run` may instead be the reason why none would, known beforehand.
    """
    place = where()
    public, learnt_from, unfit = None, None, run if isinstance(run, str) else ""
    with drawn_once():
        if data:
            with progress("public images") as show:
                public = inspect_public(data, run.size if isinstance(run, Intended) else data.size, show)
        if data and isinstance(run, Intended):
            try:
                with progress("public images of a run") as show:
                    learnt_from = read_public(run.data, run.size, run.seed, show)
            except BadInput as refusal:
                unfit = str(refusal)
    with place.ledger() as ledger, progress("private images (INTERNAL)") as show:
        access = Access(
            ledger=ledger,
            private=private,
            run=RUN,
            stage=RUN,
            purpose="data sheet",
            code_version=code_version(check_data),
            relation="add_remove",
            delta=0.0,
        )
        profile, _ = looks.profiled(access, public, learnt_from=learnt_from, whole=not unfit, progress=show)
        profile = profile.model_copy(update={"unfit": unfit or profile.unfit})
    path = place.home / "checks" / f"{safe_name(private.name)}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, profile_page(profile))
    return profile, path
