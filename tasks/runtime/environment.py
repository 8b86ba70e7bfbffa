"""The places of an installation; the only file that reads the environment.

`SFUMATO_HOME` holds all files of runs (default: `sfumato-home` in the checkout). `SFUMATO_LEDGER` and
`MLFLOW_TRACKING_URI` point ledger and tracking elsewhere, `SFUMATO_STORE` names a store that
several machines share, `SFUMATO_DATA` says where data sets by name lie, and
`SFUMATO_NOTIFY` who is told of a run that fails. `SFUMATO_PERSON` is the name under which ledger and card say who went on
after a rehearsal that failed; without it they name nobody. The key that signs a ledger lies outside the home, in `SFUMATO_KEYS`
(default: `sfumato/keys` in the user's folder of settings), or is given by `SFUMATO_LEDGER_KEY`, as PEM text or a path.
`SFUMATO_SIGN_CERT` and `SFUMATO_SIGN_KEY` are files by which published images are signed.
Prefect is kept quiet, offline and below the same home.
"""

import getpass
import hashlib
import json
import os
import platform
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.errors import BadInput
from sfumato.privacy.ledger.signing import Keys

if TYPE_CHECKING:
    from artifacts.marking import ImageSigner
    from artifacts.store import Store
    from artifacts.tracking import Tracker
    from sfumato.privacy.ledger.ledger import Ledger

CHECKOUT = Path(__file__).resolve().parents[2]
SERVER_FILE = "prefect-server.json"
"""File in which `sfumato serve` notes the addresses of its servers."""
LOG = "serve.log"
"""Log of the server, the worker and MLflow."""
HEALTH_SECONDS, OK = 15.0, 200
OWNER_ALONE = 0o700
"""Permissions of a new home, whose runs and pages hold private images; an existing one keeps those that a person gave it."""
TF32_FORCED = "NVIDIA_TF32_OVERRIDE"
"""A switch of NVIDIA's libraries that overrides all of torch's own."""
SERVER_STARTUP_SECONDS = "120"
"""The embedded Prefect server takes 12 to 16 s to start, more on a busy machine."""


@dataclass(frozen=True)
class Where:
    """The places of one installation."""

    home: Path
    ledger_url: str
    tracking_uri: str
    data: Path
    """Folder of the data sets by name unless `data.folder` names another."""
    keys: Keys
    """The keys of ledgers, and the heads seen of each."""
    ray: str = ""
    """Address of a Ray cluster; without one, a run that wants Ray starts its own on this machine."""
    dask: str = ""
    """Address of a Dask scheduler; without one, a run that wants Dask starts its own on this machine."""
    shared_store: str = ""
    """URL of a store that several machines share; empty keeps artifacts in the home alone."""
    rank: int = 0
    """Number of this process among those that torchrun started together."""
    processes: int = 1
    """Number of these processes."""
    notify: str = field(default="", repr=False)
    """Address that gets a message about each run that fails; empty for none. May hold a secret."""

    sign_cert: str = ""
    """File of the chain of certificates by which published images are signed; empty for none."""
    sign_key: str = ""
    """File of the key of the first of them."""

    @property
    def runs(self) -> Path:
        """One folder per run: record, reports, pictures."""
        return self.home / "runs"

    @property
    def books(self) -> str:
        """A digest that identifies the ledger without its address: equal on two machines only where both write into one."""
        alone = platform.node() if self.ledger_url.startswith("sqlite") else ""
        return hashlib.sha256(f"{alone} {self.ledger_url}".encode()).hexdigest()

    def store(self) -> "Store":
        """The artifact store; `BadInput` where it cannot be used."""
        from artifacts.store import Store

        return Store.open(self.home / "store", self.shared_store)

    def ledger(self) -> "Ledger":
        """The privacy ledger, with the clock and the keys of this machine."""
        from sfumato.privacy.ledger.ledger import Ledger

        return Ledger(self.ledger_url, now, self.keys)

    def image_signer(self, certificates: str = "", key: str = "") -> "ImageSigner | None":
        """The signer of published images by these files, else by those of the environment; None where neither names any."""
        from artifacts.marking import ImageSigner

        certificates, key = certificates or self.sign_cert, key or self.sign_key
        if bool(certificates) != bool(key):
            raise BadInput(
                f"--sign-cert={certificates!r} and --sign-key={key!r} belong together (SFUMATO_SIGN_CERT and SFUMATO_SIGN_KEY in the "
                "environment): give both, or neither"
            )
        return ImageSigner(Path(certificates), Path(key)) if key else None

    def tracker(self) -> "Tracker":
        """The connection to MLflow."""
        from artifacts.tracking import Tracker

        return Tracker(self.tracking_uri, self.home / "mlflow")


def where() -> Where:
    """The places that the environment names; `BadInput` where it forces the GPU to round operands."""
    if os.environ.get(TF32_FORCED) == "1":
        raise BadInput(
            f"{TF32_FORCED}=1 makes the GPU round the operands of all products, so that one record may weigh more than the clip: "
            f"unset {TF32_FORCED}"
        )
    named = os.environ.get("SFUMATO_HOME") or CHECKOUT / "sfumato-home"
    try:
        home = Path(named).expanduser().resolve()
    except (RuntimeError, OSError) as error:
        raise BadInput(f"SFUMATO_HOME={str(named)!r} names no folder ({error}); set it to a folder you own") from None
    together = "TORCHELASTIC_RUN_ID" in os.environ  # which torchrun alone sets; others set WORLD_SIZE too
    return Where(
        home=home,
        ledger_url=os.environ.get("SFUMATO_LEDGER") or f"sqlite:///{home / 'ledger.db'}",
        tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home / 'mlflow.db'}",
        data=Path(os.environ.get("SFUMATO_DATA") or home / "data").absolute(),
        keys=Keys(_keys_folder(home), os.environ.get("SFUMATO_LEDGER_KEY", "")),
        ray=os.environ.get("RAY_ADDRESS", ""),
        dask=os.environ.get("DASK_SCHEDULER_ADDRESS", ""),
        shared_store=os.environ.get("SFUMATO_STORE", ""),
        rank=int(os.environ["RANK"]) if together else 0,
        processes=int(os.environ["WORLD_SIZE"]) if together else 1,
        notify=os.environ.get("SFUMATO_NOTIFY", ""),
        sign_cert=os.environ.get("SFUMATO_SIGN_CERT", ""),
        sign_key=os.environ.get("SFUMATO_SIGN_KEY", ""),
    )


def home_below(name: str) -> None:
    """Move the home of this process, and of those that it starts, into a folder within the home; call before `configure`.

    Data sets by name stay where they are. A ledger that the environment names stays the ledger.
    """
    place = where()
    os.environ["SFUMATO_DATA"] = str(place.data)
    os.environ["SFUMATO_HOME"] = str(place.home / name)


def _keys_folder(home: Path) -> Path:
    """The folder of keys: never in the home, a copy of which could then sign as the home itself."""
    named = os.environ.get("SFUMATO_KEYS")
    try:
        settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        folder = Path(named).expanduser().resolve() if named else settings / "sfumato" / "keys"
    except (RuntimeError, OSError) as error:
        raise BadInput(f"SFUMATO_KEYS={named!r} names no folder ({error}); set it to a folder you own") from None
    if folder.is_relative_to(home):
        raise BadInput(
            f"SFUMATO_KEYS={named!r} lies in the home {home}: keys are kept outside of it, choose another folder"
        )
    return folder


def configure() -> Where:
    """Make the home and point Prefect at it; call before Prefect or torch is imported. What the environment sets already, stays."""
    place = where()
    try:
        if not place.home.exists():
            place.home.parent.mkdir(parents=True, exist_ok=True)
            place.home.mkdir(mode=OWNER_ALONE, exist_ok=True)
        for folder in (place.runs, place.home / "prefect", place.home / "results", place.home / "mlflow"):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot write to {place.home}: {error.strerror}; set SFUMATO_HOME to a folder you own"
        ) from None
    if not os.access(place.home, os.W_OK):
        raise BadInput(f"cannot write to {place.home}: permission denied; set SFUMATO_HOME to a folder you own")
    defaults = {
        "PREFECT_HOME": str(place.home / "prefect"),
        "PREFECT_LOCAL_STORAGE_PATH": str(place.home / "results"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": SERVER_STARTUP_SECONDS,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_V2_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # The terminal shows our own lines; Prefect's log, tracebacks and all, is in its UI.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Threads that wait by spinning starve each other where two jobs share the cores: benchmarks/threads.py.
        "OMP_WAIT_POLICY": "passive",
    }
    if api := running_server(place):
        defaults["PREFECT_API_URL"] = api
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    return place


def running_server(place: Where) -> str:
    """Address of the Prefect server that `sfumato serve` started on this home and that still answers; empty otherwise."""
    try:
        api = _served(place, "api")
    except (OSError, ValueError, KeyError):
        return ""
    return api if answers(api) else ""


def answers(api: str) -> bool:
    """Whether a Prefect server answers at this address of its API."""
    import urllib.request

    try:
        with urllib.request.urlopen(f"{api}/health", timeout=HEALTH_SECONDS) as answer:
            return bool(answer.status == OK)
    except (OSError, ValueError):
        return False


def nobody_listens(api: str) -> bool:
    """Whether connections to this address are refused, or its host is unknown; a server that is slow, or asks for a password, does listen."""
    import urllib.error
    import urllib.request

    try:
        urllib.request.urlopen(f"{api}/health", timeout=HEALTH_SECONDS).close()
    except urllib.error.URLError as error:
        return isinstance(error.reason, ConnectionRefusedError | socket.gaierror)
    except (OSError, ValueError):
        return False
    return False


def use_server(api: str) -> None:
    """Point Prefect, which may be imported already, at the server at this address, in this process and those that it starts."""
    os.environ["PREFECT_API_URL"] = api
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()


def mlflow_pages(place: Where) -> str:
    """Address of MLflow's pages for a browser: the tracking server, or the one of `sfumato serve`; empty otherwise."""
    if place.tracking_uri.startswith(("http://", "https://")):
        return place.tracking_uri
    try:
        return _served(place, "mlflow")
    except (OSError, ValueError, KeyError):
        return ""


def _served(place: Where, what: str) -> str:
    return str(json.loads((place.home / SERVER_FILE).read_text(encoding="utf-8"))[what])


def person() -> str:
    """The person who answers for overrides, from `SFUMATO_PERSON`; empty where it names nobody."""
    return os.environ.get("SFUMATO_PERSON", "").strip()


def account() -> str:
    """The account under which this runs; INTERNAL."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "an account without a name"


def now() -> str:
    """The time as ISO-8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
