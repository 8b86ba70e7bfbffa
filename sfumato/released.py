"""Reads a published folder: its certificate, and the model where that may leave.

A model may leave where the certificate covers any number of images: then all its parts are PUBLIC or made with paid noise, and drawing
costs nothing more. It lies in `model/`, a folder for each part (`sfumato.formats`) and `model.json`, which says how they are put
together.

Nothing is read before the signature of the card and the digest of every file hold. Not covered: whose signature it is, unless the key is
given; whether the signer ran the mechanisms; whether these cost what the card says, which `verify_card.py` checks.
"""

import json
import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from safetensors import SafetensorError

from sfumato import formats, verify_card
from sfumato.class_shares import number_of_classes, numbers_of_each, shares_among, shares_of
from sfumato.config import SEEDS
from sfumato.drawing import draw_set
from sfumato.errors import BadInput, first_line
from sfumato.judge import LinearJudge, sorted_out, to_draw
from sfumato.methods.parts import Parts
from sfumato.methods.plan import Certificate, Facts
from sfumato.progress import Progress, silent
from sfumato.settings import Settings
from sfumato.stored_parts import PartFolders, read_parts

CARD, MODEL, DESCRIPTION = "card.json", "model", "model.json"
FORMAT = 1
"""Format of `model.json` and the folders beside it; any other is refused."""
OF_DRAWING = ("schedule", "method", "generation", "matching", "judge")
"""Sections of the settings that drawing depends on."""
COUNTS, JUDGE, BACKBONE = "counts", "judge", "backbone"
"""Parts beside those of the method: noisy numbers of records, the judge of drawn images, and its backbone."""
OWN_CLASSES = "own_classes"
"""Field of `model.json` where the judge goes by classes of its own."""
LEFT_OUT = "left_out"
"""Field of the card with the reason why there is no model."""
WITHOUT = "without"
"""Field of the card with the parts that a model lacks, and so cannot draw: the reason of each by its name."""


@dataclass(frozen=True, eq=False)
class ReleasedModel:
    """A model that may draw any number of images under its certificate."""

    certificate: Certificate
    settings: Settings
    """The run's settings that drawing depends on; defaults elsewhere."""
    parts: Parts
    judge: LinearJudge | None
    """The judge that labels, chooses or guides drawn images, where the run had one."""
    shares: tuple[float, ...]
    """The share of each class; none where every class gets equally many images."""
    device: torch.device
    own_classes: bool = False
    """Whether the judge keeps the surest of its own classes, whatever images were drawn for, as it did with the run's."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, to whose positions labels refer."""
        return self.parts.facts.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels (1 or 3), height and width of an image."""
        return self.parts.facts.shape

    def __str__(self) -> str:
        """Method, classes, shape and certificate, in one line."""
        size = "x".join(map(str, self.shape))
        return f"{self.settings.method.name}: images {size} of {number_of_classes(len(self.classes))}; {self.certificate.sentence()}"

    def checked_shares(
        self, count: int, *, classes: Sequence[str | int] = (), seed: int | None = None
    ) -> tuple[float, ...]:
        """The share of each class in such a drawing; none where every class gets equally many. `BadInput` for what `draw` refuses."""
        whole = isinstance(count, Integral) and isinstance(seed, Integral | None)
        if not whole or count < 1 or not 0 <= (seed or 0) < SEEDS:
            raise BadInput(
                f"cannot draw {count!r} images by the seed {seed!r}: ask for 1 or more, and a seed from 0 to {SEEDS - 1}, both whole numbers"
            )
        chosen = (classes,) if isinstance(classes, str) else tuple(classes)
        return shares_among(self.shares, self.classes, chosen) if chosen else self.shares

    def draw(
        self,
        count: int,
        *,
        classes: Sequence[str | int] = (),
        seed: int | None = None,
        progress: Progress = silent,
    ) -> tuple[np.ndarray, np.ndarray]:
        """`count` images, uint8 `[count, c, h, w]` from 0 (black) to 255, and their labels, int64 `[count]`, positions in `classes`.

        In order of the class they were drawn for, though a judge that relabels may have given others. `classes`, by name or position, are
        the ones to draw, in the proportions of the run; by default all. Where they are named, a judge that relabels chooses those that it reads as
        what they were drawn for instead. The same `seed` on the same machine draws the same images, and that
        of the run its published ones; without a seed they differ each time. `progress` receives (done, total). `BadInput` for an unknown
        class, or no images.
        """
        shares = self.checked_shares(count, classes=classes, seed=seed)
        settings = self.settings.model_copy(update={"seed": secrets.randbelow(SEEDS) if seed is None else seed})
        judge, use = self.judge, settings.judge.use
        if len(classes) and use in ("relabel", "weigh"):
            use = "filter"  # else few might be of the classes that were asked for
        of_these, number = shares, to_draw(settings.judge.model_copy(update={"use": use}), count)
        if self.own_classes and len(
            classes
        ):  # what is drawn for a class shows any: among all of them the judge finds it
            every = np.count_nonzero(self.shares) if self.shares else len(self.classes)
            of_these, number = self.shares, math.ceil(number * every / np.count_nonzero(shares))
        drawn = draw_set(
            settings,
            self.parts,
            number,
            self.device,
            guide=judge if use == "guide" else None,
            shares=of_these,
            progress=progress,
        )
        if judge and use != "none" and use != "guide":
            wanted = numbers_of_each(shares, len(self.classes), count)
            drawn = sorted_out(judge, use, drawn, wanted, self.device, self.own_classes).images
        return drawn.pixels, drawn.labels


def certificate(folder: Path | str, *, key: str = "") -> Certificate:
    """The certificate of a published folder, once the signature of its card and the digest of every file hold.

    `key` is the signer's public key, as text or a path, got from the signer. `BadInput` in one line for a signature or file that does not
    match, and for a folder that was published without a certificate.
    """
    return _certificate(checked_card(folder, key), folder)


def load(folder: Path | str, *, key: str = "", device: str = "cpu") -> ReleasedModel:
    """The model in a published folder, once the signature of its card and the digest of every file hold.

    `key` as for `certificate`; `device` is torch's name of one. `BadInput` in one line for a signature or file that does not match, and,
    with the reason, for a folder without a model.
    """
    card = checked_card(folder, key)
    model = card.get("model", {LEFT_OUT: "it was published by a version of Sfumato that did not write one"})
    if LEFT_OUT in model:
        raise BadInput(f"{folder} holds images and no model: {model[LEFT_OUT]}")
    if lacks := model.get(WITHOUT):
        raise BadInput(f"the model in {folder} cannot draw: {in_words(lacks)}")
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError):
        raise BadInput(f"there is no device {device!r} here: use cpu, or cuda beside a GPU") from None
    return read_model(Path(folder).expanduser() / MODEL, _certificate(card, folder), where)


def checked_card(folder: Path | str, key: str = "") -> dict[str, Any]:
    """The card of a published folder; `BadInput` where it is unsigned or changed, or a file's digest is not the one in it."""
    folder = Path(folder).expanduser()
    again = "ask whoever published it for the folder again"
    try:
        card = verify_card.read(folder / CARD)
    except OSError:
        raise BadInput(f"{folder} is no published folder: there is no {CARD} in it that can be read") from None
    except ValueError:
        raise BadInput(f"{folder / CARD} was changed or cut short: {again}") from None
    if not isinstance(card, dict) or "signature" not in card or "head" not in card:
        raise BadInput(
            f"{folder / CARD} is not signed, so that nobody can check it: ask for a folder with a signed card"
        )
    try:
        verify_card.check_signature(card, key or None)
        verify_card.check_files(card, folder)
    except (ValueError, KeyError, TypeError, OSError) as error:
        what = error if type(error) is ValueError else f"the card, a file or the key cannot be read ({error!r})"
        raise BadInput(f"{folder}: {what}; {again}") from None
    return card


def in_words(lacks: Mapping[str, str]) -> str:
    """The parts that a model lacks, and why."""
    return "; ".join(f"its part {name!r} is left out, since {why}" for name, why in lacks.items())


def description(
    settings: Mapping[str, Any], facts: Facts, parts: Collection[str], *, own_classes: bool = False
) -> dict[str, Any]:
    """The content of `model.json`: how the parts, by name, are put together; `settings` are those of the run as plain JSON values.

    `own_classes` is what a judge went by. It holds only the facts that are also in a card.
    """
    public_facts = facts.model_copy(update={"whole": None, "images": 0})
    return {
        "format": FORMAT,
        "settings": {name: settings[name] for name in OF_DRAWING if name in settings},
        "facts": public_facts.model_dump(mode="json", exclude_defaults=True),
        "parts": sorted(parts),
        **({OWN_CLASSES: True} if own_classes else {}),
    }


def _certificate(card: Mapping[str, Any], folder: Path | str) -> Certificate:
    if not card["certificate"]:
        raise BadInput(f"{folder} has no certificate: {card['statement']}")
    try:
        return Certificate.model_validate(card["certificate"])
    except ValidationError as error:
        raise _of_another_version(f"the certificate in {Path(folder) / CARD}", error) from None


def _of_another_version(what: str, error: Exception) -> BadInput:
    return BadInput(
        f"{what} cannot be read by this version of Sfumato ({type(error).__name__}: {first_line(error)}): install the one in the card, "
        "under code_version"
    )


def read_model(folder: Path, promise: Certificate, device: torch.device) -> ReleasedModel:
    """The model in a folder whose card and digests have been checked."""
    stored = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    if stored["format"] != FORMAT:
        raise BadInput(
            f"{folder} is of format {stored['format']} and this version of Sfumato reads format {FORMAT}: install the one in the card, "
            "under code_version"
        )
    try:
        settings, facts = Settings.model_validate(stored["settings"]), Facts.model_validate(stored["facts"])
        there = {name: folder / name for name in stored["parts"]}
        of_method: dict[str, Any] = {one.name: there[one.name] for one in fields(PartFolders) if one.name in there}
        parts = read_parts(settings, facts, PartFolders(**of_method), device)
        noisy = formats.load(there[COUNTS])[0]["counts"] if COUNTS in there else None
        judge = formats.load_judge(there[JUDGE], there[BACKBONE], device) if JUDGE in there else None
    except (ValidationError, SafetensorError, KeyError, RuntimeError, OSError) as error:
        raise _of_another_version(str(folder), error) from None
    shares = shares_of(settings.generation, facts.classes, noisy)
    return ReleasedModel(promise, settings, parts, judge, shares, device, stored.get(OWN_CLASSES, False))
