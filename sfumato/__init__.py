"""Sfumato turns private image collections into synthetic ones that may be shared.

The library half: pure functions and frozen values. It knows no orchestrator, no tracking server, no environment
variable and no clock; those belong to `flows`, `tasks` and `artifacts`.

Three functions are public: `plan` states the cost of a run, `certificate` reads the promise of a published folder, and `load` the model
in it. Each imports its modules when called, so that `import sfumato` costs nothing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sfumato.methods.plan import Certificate, Plan
    from sfumato.released import ReleasedModel

__version__ = "0.1.0"


def plan(
    method: str,
    *,
    private: str | Path,
    public: str | Path,
    epsilon: float,
    preset: str = "",
    changes: Sequence[str] = (),
    data: str | Path = "",
) -> "Plan":
    """The plan of a run of `method`, with its cost and the certificate that it would earn; `print` shows it.

    `private` and `public` are folders, files or names of data sets, `data` the folder of those by name; `changes` are further settings as
    `section.field=value`. Reads names, headers and listings, and no private pixel. It reads no ledger: only `sfumato plan` knows budgets
    and earlier spends. `BadInput` in one line for settings or data that cannot work.

    Many parameters: each is a word of a person's, and by keyword.
    """
    import json

    from sfumato.preflight import plan_for, preflight
    from sfumato.settings import resolve

    values = {"data.private": str(private), "data.public": str(public), "privacy.epsilon": epsilon}
    assignments = [f"{name}={json.dumps(value)}" for name, value in values.items()]
    settled = preflight(resolve(method, preset, [*assignments, *changes]), str(data))
    return plan_for(settled.settings, settled.facts)


def certificate(folder: str | Path, *, key: str = "") -> "Certificate":
    """The certificate of a published folder, with `sentence()`, epsilon, delta, relation, unit and the images covered.

    It checks the signature of the card and the digest of every file first; `key` is the signer's public key, as text or a path, without
    which the signer remains unknown. `BadInput` in one line for a signature or file that does not match.
    """
    from sfumato import released

    return released.certificate(folder, key=key)


def load(folder: str | Path, *, key: str = "", device: str = "cpu") -> "ReleasedModel":
    """The model in a published folder, whose `draw(1000)` gives images and labels; signature and digests are checked first, as for `certificate`.

    `BadInput` in one line for a signature or file that does not match, and, with the reason, for a folder of images without a model.
    """
    from sfumato import released

    return released.load(folder, key=key, device=device)
