"""The end of a rehearsal: it is shown, and where it misses the thresholds of the settings, a run stops before it pays."""

import shutil
from pathlib import Path

from prefect.artifacts import create_markdown_artifact

from artifacts.labels import Label
from artifacts.references import Rehearsal
from artifacts.reports import rehearsal
from artifacts.reports.page import inside, section_in_markdown
from sfumato import __version__, config
from sfumato.errors import Refused
from sfumato.privacy.door import PrivateSet
from sfumato.rehearsal import complaints
from tasks.runtime.environment import person, where
from tasks.runtime.progress import tell

ANYWAY = "--go-on"
UNTOLD = "it misses a threshold, by numbers that are INTERNAL and stand on the screen alone"


def show(ref: Rehearsal, wanted: config.RehearsalSettings, to: Path) -> tuple[str, ...]:
    """Write the picture of a rehearsal to `to`, show its numbers on the screen and in Prefect; returns the missed thresholds.

    One of what records chose without noise is INTERNAL, and stands on the screen alone.
    """
    store, internal = where().store(), ref.label == Label.INTERNAL
    findings = rehearsal.findings_of(store, ref.digest)
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(rehearsal.picture(store, ref.digest), to)
    for name, text in rehearsal.lines(findings, wanted):
        tell(f"rehearsal, {name}: {text}", internal=internal)
    tell(f"rehearsal, picture: {to}", internal=False)
    worse = complaints(findings, wanted)
    if internal:
        return (UNTOLD,) if worse else ()
    chosen = ref.label != Label.PUBLIC
    page = section_in_markdown(rehearsal.section(findings, wanted, chosen=chosen), inside(store.folder(ref)))
    create_markdown_artifact("\n".join(page), key="rehearsal", description=rehearsal.origin(chosen))
    return worse


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
