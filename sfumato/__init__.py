"""Sfumato turns private image collections into synthetic ones that may be shared.

The library half: pure functions and frozen values. It knows no orchestrator, no tracking server, no environment
variable and no clock; those belong to `flows`, `tasks` and `artifacts`.

Three functions stand at the door: `plan` says what a run would cost, `certificate` what a published folder promises, and `load` reads
the model in one. What they need is imported when they are called, so that `import sfumato` costs nothing.
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
    """What a run of `method` would do and cost, with the certificate that it would earn; `print` shows it.

    `private` and `public` are folders, files or names of data sets, `data` the folder of those by name; `changes` are further settings as
    `section.field=value`. Reads names, headers and listings, and no private pixel. No ledger is asked: budgets and what a set has cost
    before are known to `sfumato plan` alone. `BadInput` in one line for whatever cannot work.
    """
    import json

    from sfumato.preflight import plan_for, preflight
    from sfumato.settings import resolve

    asked = {"data.private": str(private), "data.public": str(public), "privacy.epsilon": epsilon}
    told = [f"{name}={json.dumps(value)}" for name, value in asked.items()]
    settings, facts, _ = preflight(resolve(method, preset, [*told, *changes]), str(data))
    return plan_for(settings, facts)


def certificate(folder: str | Path, *, key: str = "") -> "Certificate":
    """What a published folder promises, with `sentence()`, epsilon, delta, relation, unit and the images covered.

    The signature of its card and the digest of every file are checked first; `key` is the signer's public key, as text or a path, without
    which nobody has checked who signed. `BadInput` in one line for what does not match.
    """
    from sfumato import released

    return released.certificate(folder, key=key)


def load(folder: str | Path, *, key: str = "", device: str = "cpu") -> "ReleasedModel":
    """The model in a published folder, whose `draw(1000)` gives images and labels; signature and digests are checked first, as for `certificate`.

    `BadInput` in one line for what does not match, and, with the reason, for a folder that holds images and no model.
    """
    from sfumato import released

    return released.load(folder, key=key, device=device)
