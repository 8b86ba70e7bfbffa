"""Values that several tests need: a record made by hand, artifacts in a store, image folders, a home of its own."""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from artifacts import gate, serialization
from artifacts.certify import certificate_of, numbers_of
from artifacts.record import RunRecord, StageRecord
from artifacts.references import Ref, Samples
from artifacts.store import Store
from sfumato.images import ImageSet, grid, save_png
from sfumato.methods.plan import Certificate, Claim, Facts, Plan, Spend
from sfumato.privacy.accounting.events import Event, Gaussian, SubsampledGaussian
from sfumato.privacy.ledger.ledger import Ledger, Reservation, entry_label
from sfumato.settings import resolve
from tasks.runtime.environment import Where

PRIVATE_PATH, PUBLIC_PATH = "/vault/ward-7/scans", "/open/textures"
"""Where the images of the example record are said to lie."""
DELTA = 3.4e-4
SCORE_KEYS = ("frechet", "coverage", "readable", "logistic", "cnn")
SCORES = dict(zip(SCORE_KEYS, (7.4193, 0.6183, 0.5527, 0.8317, 0.7919), strict=True))
"""Scores whose digits occur nowhere else."""
UNREHEARSED = ("rehearsal.images=20", "rehearsal.nearer=1e9", "rehearsal.survives=0")
"""Lets models of a few public steps through the rehearsal, which would rightly stop such runs."""
UNCHOSEN = (
    "recipe.kind=none",
    "network.kind=mlp",
    "evaluation.features=cnn",
    "machine.threads=1",
    "release.licence=CC0-1.0",
    "release.public_licence=CC0-1.0",
)
"""With the preset `auto`: what a test of other data than the digits leaves open stays at its default, and costs seconds."""
LEFTOVERS = ("SFUMATO_HOME", "SFUMATO_LEDGER", "MLFLOW_TRACKING_URI")


def picture_set(count: int = 6, classes: Sequence[str] = ("cat", "dog"), side: int = 8, channels: int = 1) -> ImageSet:
    """Random pictures, their classes in turn."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, channels, side, side), dtype=np.uint8)
    return ImageSet(pixels, np.arange(count, dtype=np.int64) % len(classes), tuple(classes))


def keep_samples(
    store: Store,
    images: ImageSet | None = None,
    entries: Mapping[str, str] | None = None,
    parents: Sequence[Ref] = (),
    plan: Plan | None = None,
) -> Samples:
    """Samples in the store as `generate` leaves them."""
    images = images or picture_set()
    with store.writing() as folder:
        serialization.save_images(folder, images)
        save_png(folder / "samples.png", grid(images.pixels, 3, 2))
        if plan:
            gate.save_how(folder, stored_settings(), plan)
        return store.keep(Samples, folder, parents=parents, entries=entries)


def keep_made_up(store: Store, *kinds: type[Ref]) -> list[Ref]:
    """Public artifacts of these kinds, with nothing in them that a network could be read from."""
    refs = []
    for kind in kinds:
        with store.writing() as folder:
            serialization.save(folder, {"x": torch.zeros(3)}, {"of": kind.__name__})
            (folder / "curve.json").write_text("[1.0]")
            refs.append(store.keep(kind, folder))
    return refs


def stored_settings() -> dict[str, Any]:
    """The settings that samples hold."""
    return {**resolve("rapid").what(), "data": {"name": "scans"}, "seed": 0}


def make_plan() -> Plan:
    """A plan with votes and DP-SGD, written by hand: nothing is calibrated."""
    settings = resolve("rapid")
    steps = SubsampledGaussian(noise_multiplier=2.7243, sample_rate=0.5, steps=150)
    votes = Gaussian(noise_multiplier=6.0)
    return Plan(
        method="rapid",
        facts=Facts(records=1437, classes=("cat", "dog"), public_classes=52, shape=(1, 8, 8)),
        fine_tuning=settings.fine_tuning,
        noise_multiplier=2.7243,
        generation=settings.generation,
        evaluations=131,
        spends=(
            Spend(stage="votes", what="votes for public classes", event=votes),
            Spend(stage="fine_tuning", what="DP-SGD with retrieved trajectories", event=steps),
        ),
        privacy=settings.privacy.model_copy(update={"delta": DELTA}),
        certificate=make_certificate(),
        claim=Claim(epsilon=76.38, source="Proposition 1"),
    )


def make_certificate(**changes: Any) -> Certificate:
    """The certificate of the example record."""
    usual = {"epsilon": 9.876, "delta": DELTA, "relation": "add_remove", "accountant": "dp-accounting 0.6.0 PLD"}
    return Certificate(**{**usual, **changes})


def make_record(folder: Path, **changes: Any) -> RunRecord:
    """The record of a run whose private images lie in `PRIVATE_PATH`."""
    places = [
        "data.name=scans",
        f"data.private={PRIVATE_PATH}",
        f"data.public={PUBLIC_PATH}",
        "data.folder=/vault/ward-7",
        "release.licence=CC0-1.0",
    ]
    fields: dict[str, Any] = {
        "run": "20260101-120000-rapid-scans-eps10",
        "method": "rapid",
        "preset": "digits",
        "label": "DP",
        "settings": resolve("rapid", changes=places).what(),
        "plan": make_plan(),
        "certificate": make_certificate(),
        "claim": Claim(epsilon=76.38, source="Proposition 1"),
        "entries": [2, 5],
        "spent_total": {"epsilon": 12.5, "delta": DELTA, "relation": "add_remove", "spends": 3, "left": None},
        "metrics": {"synthetic": SCORES, "public model alone": {key: value / 3 for key, value in SCORES.items()}},
        "retrieval": {"retrieval_accuracy": 0.31, "retrieval_chance": 0.019},
        "stages": [
            StageRecord(name="pretrain", seconds=0.25, cached=True, made_in=61.5, label="PUBLIC"),
            StageRecord(name="fine-tune", seconds=33.5, cached=False, made_in=33.5, label="DP"),
        ],
        "samples_artifact": "0" * 64,
        "report": str(folder / "report.html"),
        "internal_report": str(folder / "report-internal.html"),
        "samples": str(folder / "samples.png"),
        "published": "",
        "tracking": {"PUBLIC": "aaa", "DP": "aaa", "INTERNAL": "bbb"},
    }
    return RunRecord(**{**fields, **changes})


SPENT = (Gaussian(noise_multiplier=6.0), SubsampledGaussian(noise_multiplier=2.0, sample_rate=0.1, steps=5))
"""What the samples of `paid_record` cost."""


def reserve(ledger: Ledger, events: Sequence[Event], dataset: str = "scans", **changes: Any) -> Reservation:
    """A reservation whose door has opened."""
    terms = {"stage": "fine_tuning", "purpose": "a test", "run": "run-1", "code_version": "1", "images": "any"}
    relation, delta = changes.pop("relation", "add_remove"), changes.pop("delta", DELTA)
    ticket = ledger.reserve(dataset, f"digest-of-{dataset}", events, relation, delta, **{**terms, **changes})
    ledger.opened(ticket)
    return ticket


def judge(ledger: Ledger, samples: Ref, tickets: Sequence[Reservation], *, passed: bool, what: str = "copies") -> None:
    """The verdict of a check of samples."""
    verdict = {"what": what, "artifact": samples.digest, "finding": "f" * 64, "passed": passed}
    ledger.check("scans", **verdict, spends=[one.hash for one in tickets], run="run-1", code_version="1")


def paid_record(
    place: Where,
    folder: Path,
    events: Sequence[Event] = SPENT,
    copied: int | None = None,
    parents: Sequence[Ref] = (),
    images: int | str = "any",
    **changes: Any,
) -> RunRecord:
    """A record whose samples stand on real entries of the ledger of 'scans', one for each event; `copied` of them are copies."""
    store = place.store()
    with place.ledger() as ledger:
        tickets = [reserve(ledger, [event], images=images) for event in events]
        labels = {entry.hash: entry_label(entry) for entry in ledger.entries_by_hash(ticket.hash for ticket in tickets)}
        samples = keep_samples(store, entries=labels, plan=make_plan(), parents=parents)
        for ticket in tickets:
            ledger.commit(ticket, ticket.events, artifact=samples.digest)
        judge(ledger, samples, tickets, passed=copied is None)
        certificate = certificate_of(store, ledger, samples)
        entries = numbers_of(store, ledger, samples)
    facts = {"samples_artifact": samples.digest, "entries": entries, "label": samples.label}
    return make_record(folder, **{**facts, "certificate": certificate, **changes})


def write_classes(
    root: Path, counts: Mapping[str, int], height: int = 8, width: int = 8, channels: int = 1, seed: int = 0
) -> Path:
    """A folder of class folders with random pictures, the same for a seed."""
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
            Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels).save(root / name / f"{number:03}.png")
    return root


@contextlib.contextmanager
def home_at(path: Path) -> Iterator[Path]:
    """Everything kept below `path`; afterwards the environment is as before, whatever the program put there."""
    before = dict(os.environ)
    for name in LEFTOVERS:
        os.environ.pop(name, None)
    os.environ["SFUMATO_HOME"] = str(path)
    try:
        yield path
    finally:
        os.environ.clear()
        os.environ.update(before)


def answered() -> threading.Event:
    """In place of `begin_server`: no server, and no waiting for one."""
    event = threading.Event()
    event.set()
    return event
