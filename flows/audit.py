"""The flow that tries to break a finished run: games, a second training with canaries, attacks, a report beside the run."""

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from artifacts.record import RunRecord, load_record
from flows.private_half import pay, terms
from sfumato.errors import BadInput
from sfumato.methods.plan import (
    SHARED_STAGES,
    STAGE_DRAWING,
    STAGE_EMBEDDING,
    STAGE_PHASE_ONE,
    STAGE_RATES,
    STAGE_TUNING,
    STAGE_VOTES,
    UNCLAIMED,
)
from sfumato.preflight import private_set
from sfumato.privacy.accounting.events import SubsampledGaussian
from sfumato.settings import Settings, resolve
from tasks import audit, checks
from tasks.inputs import Inputs
from tasks.runtime.artifact import RunContext, device_of
from tasks.runtime.environment import configure, now
from tasks.runtime.heartbeat import attended, named
from tasks.runtime.run import Journal
from tasks.server.events import tell_refuted
from tasks.terms import Order

QUERIED = (*SHARED_STAGES, STAGE_VOTES, STAGE_EMBEDDING, STAGE_RATES, STAGE_PHASE_ONE)
"""Stages that query the records once."""


@flow(name="audit", flow_run_name=named("audit-{run}"), persist_result=False, validate_parameters=True)
@attended
def audit_run(run: str = "latest", canaries: int = 200, changes: list[str] | None = None) -> RunRecord:
    """Try to break a finished run: play its mechanisms, train again with canaries where it was trained by DP-SGD, attack the rest.

    Args:
        run: Name of the run, or `latest`.
        canaries: How many made-up images to guess by.
        changes: Settings of the machine as `machine.field=value`.
    """
    place = configure()
    record = load_record(place.runs, run)
    settings, plan = audited_settings(record, changes or []), record.plan
    if plan.claim == UNCLAIMED:
        raise BadInput(
            f"run {record.run} is without noise (privacy.epsilon=inf): it promises nothing that an audit could refute"
        )
    limit = int(1 / (2 * plan.privacy.delta))
    if not 2 <= canaries <= limit:
        raise BadInput(
            f"{canaries} canaries: at delta {plan.privacy.delta:g} an audit takes 2 to {limit}; choose with --canaries"
        )
    device = device_of(settings.machine)
    journal = Journal(RunContext(run=record.run, parents=record.tracking), private_set(settings), device)
    order = Order(private=journal.private, terms=terms(plan, comparison=True), machine=settings.machine)
    order = order.model_copy(update={"private": checks.check_private(order, journal.context)})
    parts = audit.released(record)

    # A name of its own, so that no audit finds another one's coins.
    own_name = f"{record.run} {now()}"
    paid = audit.Mechanisms(
        tuning=next(iter(plan.events_of(SubsampledGaussian, STAGE_TUNING)), None),
        drawing=plan.events(STAGE_DRAWING),
        queried={name: events for name in QUERIED if (events := plan.events(name))},
        judge=plan.judge,
    )
    inputs = Inputs(settings=settings, facts=plan.facts, public=parts.public)
    played = journal.stage(audit.play)(own_name, inputs, paid, order.terms, order.machine)
    trial = None
    if plan.fine_tuning:
        coins = journal.stage(audit.make_canaries)(own_name, canaries, plan.facts)
        trained = pay(settings, plan, parts.public, order.model_copy(update={"canaries": coins}), journal)
        trial = audit.Trial(canaries=coins, trained=trained)
    released = inputs.model_copy(update={"tuned": parts.tuned, "moments": parts.moments})
    findings = journal.stage(audit.attack)(order, released, parts.samples, played, trial)
    copies = journal.stage(audit.check_copies)(order, parts.samples)
    record = audit.conclude(record, findings, copies)
    tell_refuted(record)
    create_markdown_artifact(f"Audit of {record.run}: INTERNAL, in the folder of the run.", key="audit")
    return record


def audited_settings(record: RunRecord, changes: list[str]) -> Settings:
    """The settings of a finished run, on the machine of its preset with `changes`."""
    if foreign := [change for change in changes if not change.startswith("machine.")]:
        raise BadInput(f"--set {foreign[0]}: an audit repeats the settings of its run; only machine.* may differ")
    machine = resolve(record.method, record.preset, changes).machine
    return Settings.model_validate({**record.settings, "machine": machine})
