"""More images of a run whose models are paid for: nothing is trained, judged or paid again."""

from collections.abc import Sequence

from artifacts import approval, gate
from artifacts.model import lacking, write_parts
from artifacts.packaging import terms_of
from artifacts.record import RunRecord
from sfumato import __version__
from sfumato.errors import Refused
from sfumato.generate import Origin
from sfumato.image_folder import OF_SET
from sfumato.preflight import plan_for, refuse_few_images
from sfumato.released import MODEL, ReleasedModel, read_model
from sfumato.settings import Settings, resolve
from tasks.checks import counted_with
from tasks.planning import PlannedRun
from tasks.runtime.artifact import device_of
from tasks.runtime.environment import where

STAGE = "more images"


def model_of(record: RunRecord, *, classes: Sequence[str] = (), seed: int | None = None) -> ReleasedModel:
    """The model of a run of this home, through the gate that published ones pass; the ledger notes the reuse, which costs nothing.

    `classes` and `seed` are those of the drawing, checked before the ledger hears of it. `Refused` where nothing of the run may leave,
    `BadInput` where it needs an approval that it has not, or for a class or seed that cannot be.
    """
    place = where()
    store = place.store()
    with place.ledger() as ledger, store.writing() as folder:
        released = gate.passed(store, ledger, record)
        decided = record.model_copy(update={"decisions": released.decisions})
        if approval.check(released, terms_of(released, terms_of(decided))) is None:
            approval.refuse_kin(released, ledger.entries())
        if released.certificate is None or (why := lacking(released)):
            raise Refused(f"no more images of run {record.run} can be drawn at no cost: {why}")
        write_parts(folder, store, released)
        device = device_of(resolve(record.method, record.preset).machine)
        model = read_model(folder / MODEL, released.certificate, device)
        model.checked_shares(1, classes=classes, seed=seed)
        ledger.reuse(
            record.settings["data"]["name"],
            record.samples_artifact,
            spends=store.entries(record.samples_artifact),
            stage=STAGE,
            run=record.run,
            code_version=__version__,
        )
    return model


def plan_more(record: RunRecord, images: int) -> PlannedRun:
    """The run that would pay for this many more images, by the same settings; its edition is yet to be chosen. `BadInput` for too few."""
    machine = resolve(record.method, record.preset).machine
    settings = Settings.model_validate({**record.settings, "machine": machine})
    generation = settings.generation.model_copy(update={"images": images})
    settings = settings.model_copy(update={"generation": generation})
    refuse_few_images(settings)
    return PlannedRun(settings=settings, plan=plan_for(settings, record.plan.facts), preset=record.preset)


def origin_of(record: RunRecord) -> Origin:
    """The run, and the private sets that count together with its own."""
    name = record.settings["data"]["name"]
    sentence = f"Drawn from the models of run `{record.run}`."
    return Origin(sentence, f"{name}{OF_SET}", record.run, (*counted_with(name), *record.plan.sets_behind))
