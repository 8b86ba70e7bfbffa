"""The end of a rehearsal: it is shown, and where it misses the thresholds of the settings, a run stops before it pays."""

import shutil
from pathlib import Path

from prefect.artifacts import create_markdown_artifact

from artifacts.references import Rehearsal
from artifacts.reports import rehearsal
from artifacts.reports.page import inside, section_in_markdown
from sfumato import __version__, config
from sfumato.errors import Refused
from sfumato.privacy.door import PrivateSet
from sfumato.rehearsal import complaints
from tasks.runtime.environment import person, where
from tasks.runtime.progress import CONSOLE

ANYWAY = "--go-on"


def show(ref: Rehearsal, wanted: config.RehearsalSettings, to: Path) -> tuple[str, ...]:
    """Write the picture of a rehearsal to `to`, show its numbers on the screen and in Prefect; returns the missed thresholds."""
    store = where().store()
    findings = rehearsal.findings_of(store, ref.digest)
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(rehearsal.picture(store, ref.digest), to)
    for name, text in rehearsal.lines(findings, wanted):
        CONSOLE.print(f"rehearsal, {name}: {text}", soft_wrap=True, markup=False, highlight=False)
    CONSOLE.print(f"rehearsal, picture: {to}", soft_wrap=True, markup=False, highlight=False)
    page = section_in_markdown(rehearsal.section(findings, wanted), inside(store.folder(ref)))
    create_markdown_artifact("\n".join(page), key="rehearsal", description="public images alone")
    return complaints(findings, wanted)


def refusal(worse: tuple[str, ...], picture: Path, paid: str = "nothing was") -> Refused:
    """The one line that stops a run; `paid` is what was spent before."""
    return Refused(
        f"the rehearsal with public images failed, and {paid} spent: {'; '.join(worse)}. Look at {picture}; sfumato run ... {ANYWAY} goes on all the same"
    )


def note_that_it_goes_on(ref: Rehearsal, worse: tuple[str, ...], private: PrivateSet, run: str) -> None:
    """Write into the ledger, before anything is paid, that a person goes on after a failed rehearsal, with the name where it is given."""
    with where().ledger() as ledger:
        ledger.override(
            private.name,
            f"{person() or 'whoever ran it'} went on with {ANYWAY}",
            what="rehearsal",
            artifact=ref.digest,
            claim=None,
            missing="; ".join(worse),
            spends=(),
            run=run,
            code_version=__version__,
        )
