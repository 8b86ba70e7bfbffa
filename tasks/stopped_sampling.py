"""Sampling that stops at several noise levels, by the private records themselves and by a network that learnt from them; INTERNAL."""

from PIL.Image import Image

from artifacts.record import RunRecord
from sfumato.diffusion.edm import stopped_at
from sfumato.errors import BadInput
from sfumato.images import enlargement, grid
from sfumato.inventory import Stops
from sfumato.privacy.auditing import looks
from sfumato.settings import Settings
from sfumato.stored_parts import PartFolders, read_parts
from tasks.audit import released
from tasks.runtime.artifact import RunContext, device_of
from tasks.runtime.environment import where
from tasks.terms import Order


def stopped_sampling(record: RunRecord, settings: Settings, order: Order, context: RunContext, stops: Stops) -> Image:
    """Two rows for each stop: sampling by averages of the records, then by the run's network. `BadInput` where the run tuned none."""
    ancestors, place, facts = released(record), where(), record.plan.facts
    if ancestors.tuned is None:
        raise BadInput(f"run {record.run} trained no network on private images, which a picture of stops needs")
    store, device, levels = place.store(), device_of(settings.machine), stops.grid.levels().tolist()
    autoencoder = ancestors.public.autoencoder
    folders = PartFolders(
        public=store.folder(ancestors.public.model),
        autoencoder=store.folder(autoencoder) if autoencoder else None,
        tuned=store.folder(ancestors.tuned),
    )
    parts = read_parts(settings, facts, folders, device)
    assert parts.tuned
    with place.ledger() as ledger:
        access = order.access(ledger, context, stage="picture", purpose="sampling stopped at noise levels", code="0")
        shown, _ = looks.stopped(
            access,
            parts.tuned,
            parts.schedule,
            lambda denoise, like: stopped_at(denoise, like, levels, stops.places, seed=settings.seed),
            classes=len(facts.classes),
            device=device,
            codec=parts.codec,
        )
    rows = shown.reshape(-1, *shown.shape[3:])
    return grid(rows, len(facts.classes), enlargement(rows.shape[2]))
