"""`sfumato verify-card`: what whoever receives a published folder can check."""

from pathlib import Path
from typing import Annotated

import typer

from sfumato.errors import BadInput


def verify_card(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A published folder, or its card.json.")],
    key: Annotated[str, typer.Option(help="The signer's public key, as text or a file, got from the signer.")] = "",
) -> None:
    """Check a published folder: its signature, the digest of every file, and epsilon computed anew; exit code 1 where one fails.

    Needs no ledger, no home and no private image. The folder holds the same check as one script, verify_card.py.

    Example: sfumato verify-card out --key "$(sfumato ledger key)"
    """
    from sfumato.verify_card import main

    if not (folder.is_file() or (folder / "card.json").is_file()):
        raise BadInput(f"{str(folder)!r} holds no card.json: name a published folder, or the card in it")
    raise typer.Exit(main([str(folder), *(["--key", key] if key else [])]))
