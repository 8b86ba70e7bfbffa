"""The flow that asks whether a finished run's images may leave: a form in Prefect's UI, whose answer goes into the ledger.

A run of a deployment is suspended while it waits, so that its worker is free; where there is no worker, this process waits. The form is
shown anew where what it is about has changed before the answer.

Not covered: who types. The decision says "name as typed, not verified"; `sfumato approve` signs.
"""

from typing import Literal

from prefect import flow, pause_flow_run, suspend_flow_run
from prefect.artifacts import create_markdown_artifact
from prefect.context import FlowRunContext
from prefect.input import RunInput
from pydantic import Field, create_model

from artifacts.approval import digests_of
from artifacts.record import RunRecord, load_record
from artifacts.reports.in_short import statement
from sfumato.errors import BadInput
from sfumato.privacy.ledger.decisions import APPROVED
from sfumato.privacy.ledger.vetoes import REFUSED
from sfumato.settings import release_from, release_of
from tasks.approval import Ruling, decide, releasable
from tasks.reporting import report_for_prefect
from tasks.runtime.environment import configure
from tasks.runtime.heartbeat import attended, named

DAY_SECONDS = 24 * 60 * 60
ANSWERED_WITHIN_SECONDS = 5
"""How often a waiting process looks for the answer."""
LATEST = "latest"
ANYTHING = r"\S"
"""Pattern of a text that says something."""
SHOWN_LETTERS = 16


class ReleaseForm(RunInput):
    """The decision on a release, as somebody types it."""

    decision: Literal["approve", "refuse"] = Field(title="Decision", description="Whether the images may leave.")
    name: str = Field(title="Name", description="Who decides. Recorded as typed, not verified.", pattern=ANYTHING)
    role: str = Field(title="Role", description="In which office.", pattern=ANYTHING)
    reason: str = Field(title="Reason", description="Why. It goes into the ledger and the card.", pattern=ANYTHING)
    licence: str = Field(
        title="Licence",
        description="Of the images, as SPDX calls it: CC-BY-4.0, CC0-1.0, LicenseRef-NAME for your own terms.",
    )


@flow(name="release", flow_run_name=named("release-{run}"), persist_result=False, validate_parameters=True)
@attended
def release(run: str, days: float = 14) -> str:
    """Ask somebody whether the images of a finished run may leave. Opens no private image, and publishes nothing.

    Args:
        run: Name of the run, as `sfumato show` prints it.
        days: How long the form waits for an answer.
    """
    place = configure()
    if run == LATEST:
        raise BadInput(
            "run='latest' may be another run when the answer comes: give the name of the run, as sfumato show prints it"
        )
    record = load_record(place.runs, run)
    attempt, mistake = 0, ""
    while True:
        released = releasable(record)
        shown = digests_of(released)
        about = "-".join(digest[:SHOWN_LETTERS] for digest in shown.values())
        create_markdown_artifact(
            report_for_prefect(record, {}), key="release", description=f"What of {run} would leave."
        )
        form = ask(
            form_of(released, release_of(record.settings).licence, mistake),
            f"{about}-{attempt}",
            round(days * DAY_SECONDS),
        )
        try:
            return decide(record, ruling_of(form), shown=shown).in_words()
        except BadInput as error:
            attempt, mistake = attempt + 1, str(error)


def ruling_of(form: ReleaseForm) -> Ruling:
    """The answer in a form; `BadInput` for a licence that SPDX does not know."""
    licence = release_from([f"release.licence={form.licence.strip()}"]).licence
    return Ruling(APPROVED if form.decision == "approve" else REFUSED, form.name, form.role, form.reason, licence)


def ask(form: type[ReleaseForm], key: str, seconds: int) -> ReleaseForm:
    """The answer; suspends a run of a deployment, whose worker begins it again when the answer is there, and waits in any other."""
    context = FlowRunContext.get()
    if context and context.flow_run and context.flow_run.deployment_id:
        return suspend_flow_run(wait_for_input=form, timeout=seconds, key=key)
    return pause_flow_run(wait_for_input=form, timeout=seconds, key=key, poll_interval=ANSWERED_WITHIN_SECONDS)


def form_of(record: RunRecord, licence: str, mistake: str = "") -> type[ReleaseForm]:
    """The form for a run: what is decided on in words, the licence filled in, and what was wrong with the last answer."""
    field = ReleaseForm.model_fields["licence"]
    filled = Field(default=licence, title=field.title, description=field.description)
    form = create_model(ReleaseForm.__name__, __base__=ReleaseForm, licence=(str, filled))
    about = [f"**{mistake}**"] if mistake else []
    about += [
        f"May the images of run `{record.run}` leave?",
        statement(record),
        "The artifact `release` of this run shows all that would leave. What you type is recorded as typed, not verified; "
        f"`sfumato approve {record.run} --key FILE` signs instead.",
    ]
    form._description = "\n\n".join(about)
    return form
