"""Published folders as sources: the images of one that is as it was published, in whichever form.

`card.json` names every file with its digest; a folder that was edited since is refused. The folder inside, `data`, is read as any other.
"""

import functools
import json
from pathlib import Path
from typing import Any

from sfumato import verify_card
from sfumato.errors import BadInput
from sfumato.image_folder import OF_SET, ORIGIN

CARD = "card.json"
"""The card."""
FORMS = ("folder", "parquet", "webdataset")
"""The forms that are read; earlier versions knew the first alone, and did not say so."""
PLACES = ("data", "images")
"""Folder of the images; `images` in folders of earlier versions."""

PARTS = (*PLACES, "model")
"""What of a published folder was drawn from private records, whether its card lists it or not."""


def card_above(place: Path) -> dict[str, Any] | None:
    """The card of the published folder that a place is, or among whose images, models and other files it lies, whether or not all is as it was
    published; that of a released model for images drawn from it later; None elsewhere."""
    resolved = place.resolve()
    for folder in (resolved, *resolved.parents):
        for name in (CARD, ORIGIN):
            card = _card(folder / name)
            if card is not None and _is_part(resolved.relative_to(folder), card):
                return card
    return None


def _card(file: Path) -> dict[str, Any] | None:
    try:
        card = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return card if isinstance(card, dict) and str(card.get("name", "")).endswith(OF_SET) else None


def _is_part(below: Path, card: dict[str, Any]) -> bool:
    """Whether a place, relative to a card's folder, is that folder, a part of it, or one that holds or is a file of the card."""
    if not below.parts or below.parts[0] in PARTS:
        return True
    listed = card.get("files", ())
    return any(Path(name).is_relative_to(below) for name in (listed if isinstance(listed, dict) else ()))


def images_of(folder: Path) -> Path:
    """The folder of the images of a published one, or of one that was drawn later, else the folder itself; `BadInput` for a published one that
    was edited."""
    card = folder / CARD
    place = next((folder / name for name in PLACES if (folder / name).is_dir()), None)
    if place and card.is_file() and _intact(folder, card.stat().st_mtime_ns):
        return place
    return place if place and _card(folder / ORIGIN) else folder


@functools.lru_cache
def _intact(folder: Path, written: int) -> bool:
    """Whether a folder is a published one, and its files are those in its card, which was `written` then."""
    try:
        card = json.loads((folder / CARD).read_bytes())
        ours = str(card["name"]).endswith(OF_SET) and isinstance(card["files"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if ours and (form := card.get("form", FORMS[0])) not in FORMS:
        what = f"of the form {form!r}, which this version of Sfumato does not read"
        way = f"install {card.get('code_version', 'the version that it was published by')}"
        raise BadInput(f"{str(folder)!r} is {what}: {way}", nameless=f"is {what}: {way}")
    try:
        if ours:
            verify_card.check_files(card, folder)
    except (ValueError, OSError) as error:
        way = "ask for the folder again, or name the folder of its images, which is checked against nothing"
        raise BadInput(
            f"{str(folder)!r} was edited since it was published ({error}): {way}", nameless=f"was edited: {way}"
        ) from None
    return ours
