"""Options and warnings shared by several commands."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sfumato.errors import BadInput
from sfumato.methods import METHODS
from sfumato.named_settings import AUTO_PRESET, DEFAULT_PRESET, names
from sfumato.named_settings import PRESETS as PRESET_FILES

OUT, ERR = Console(), Console(stderr=True)
HOUR = 60.0
"""Minutes of an hour."""

PRESETS = f"Named settings to start from: {', '.join(names(PRESET_FILES))}. Default: {DEFAULT_PRESET} for the embedded digits, {AUTO_PRESET} for all other data."
MethodName = Annotated[str, typer.Argument(help=f"One of: {', '.join(METHODS)}.")]
PresetName = Annotated[str, typer.Option("--preset", help=PRESETS)]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.FIELD=VALUE",
        help="Change a setting, or several. Example: generation.images=500 seed=1",
    ),
]
Epsilon = Annotated[float | None, typer.Option(help="Target epsilon; short for --set privacy.epsilon=E.")]
PublicBecause = Annotated[
    str,
    typer.Option(
        "--public-because",
        metavar="REASON",
        help="Why weights from elsewhere (network.from, latent.from) count as public: source, licence, no private record in their "
        "training; short for --set privacy.public_because=REASON.",
    ),
]
Licence = Annotated[
    str,
    typer.Option(
        metavar="SPDX", help="Licence of published images, such as CC-BY-4.0; short for --set release.licence=SPDX."
    ),
]
PublicLicence = Annotated[
    str,
    typer.Option(
        "--public-licence",
        metavar="SPDX",
        help="Licence of the public images that some published models hold; short for --set release.public_licence=SPDX.",
    ),
]
RunName = Annotated[str, typer.Argument(help="Name of a run, or 'latest'.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
GoOn = Annotated[
    bool, typer.Option("--go-on", help="Pay even where the rehearsal with public images fails; ledger and card say so.")
]

SignCert = Annotated[
    str, typer.Option(metavar="FILE", help="Sign each image by C2PA: the chain of certificates, PEM, yours first.")
]
SignKey = Annotated[str, typer.Option(metavar="FILE", help="The private key of that certificate, PEM.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Begin without asking.")]


def with_short(
    changes: list[str] | None,
    epsilon: float | None = None,
    public_because: str = "",
    licence: str = "",
    public_licence: str = "",
) -> list[str]:
    """A person's changes, with those of the options that stand for settings; `BadInput` for a setting of two values."""
    all_changes = list(changes or [])
    if epsilon is not None:
        all_changes.append(f"privacy.epsilon={epsilon}")
    texts = {
        "privacy.public_because": public_because,
        "release.licence": licence,
        "release.public_licence": public_licence,
    }
    all_changes += (f"{name}={json.dumps(text)}" for name, text in texts.items() if text)
    first: dict[str, str] = {}
    for path, _, value in (change.partition("=") for change in all_changes):
        name = path.strip()
        other = first.setdefault(name, value)
        if other != value and _differ(other, value):
            raise BadInput(f"{name} is given twice, as {other.strip()} and as {value.strip()}: leave one of them out")
    return all_changes


def _differ(one: str, other: str) -> bool:
    from sfumato.settings import value_of

    return bool(value_of(one) != value_of(other))


def warn(text: str) -> None:
    """Print a warning."""
    ERR.print(f"[yellow]warning:[/] {escape(text)}", soft_wrap=True)
