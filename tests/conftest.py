"""One home, one folder of keys, one Prefect server and one PostgreSQL server for the whole session; only tests that ask for a server start it.

Two tiers: what is marked `slow` runs in `make test-all` alone. Where several processes share the work, the tests of one file
stay in one of them, and so do all that need the same server.
"""

import os
import tempfile

HOME = tempfile.mkdtemp(prefix="sfumato-tests-")
os.environ["SFUMATO_HOME"] = HOME
KEYS = tempfile.mkdtemp(prefix="sfumato-keys-")
os.environ["SFUMATO_KEYS"] = KEYS
os.environ.pop("SFUMATO_LEDGER_KEY", None)
os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp(prefix="sfumato-diffusers-")

from tasks.runtime.environment import configure  # noqa: E402

configure()

import functools  # noqa: E402
import math  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402

from tests import postgres  # noqa: E402
from tests.quick_judges import judge_quickly  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent

# A shell starts what it runs in the background with Ctrl-C ignored, which programs keep; tests interrupt themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser) -> None:
    """How long the fault suite tries."""
    parser.addoption("--moments", type=int, default=2, help="moments at which processes are killed (default: 2)")
    parser.addoption("--fuzz", type=int, default=100, help="made-up inputs of each kind (default: 100)")
    parser.addoption(
        "--begin-within", type=float, default=math.inf, help="minutes after which no slow test begins; each says so"
    )


BEGAN = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a slow test for which no time is left: a machine may be several times as slow as another."""
    minutes = item.config.getoption("--begin-within")
    if item.get_closest_marker("slow") and time.monotonic() - BEGAN > 60 * minutes:
        pytest.skip(f"not begun: {minutes:g} minutes are over")


SERVER = "prefect_server"
"""Files in which this fixture is named share its server, so that one process runs them all."""
APART = "tests/test_docs.py::test_the_commands_of_a_page_run_in_its_order"
"""A test whose cases take minutes each and share nothing, so that each may run in a process of its own."""
LONGEST = (
    *(SERVER, APART),
    *("tests/test_variants.py", "tests/flows/test_own_data.py", "tests/sfumato/methods/test_contract.py"),
)
"""What takes so long that it must not be begun last."""


@functools.cache
def needs_server(path: str) -> bool:
    """Whether a file has a test that asks for the server."""
    return SERVER in (ROOT / path).read_text(encoding="utf-8")


def share_of(nodeid: str) -> str:
    """With which others a test runs in one process: those that need the server, else those of the same file; a case of `APART` runs alone."""
    path, _, _ = nodeid.partition("::")
    if nodeid.startswith(APART):
        return nodeid
    return SERVER if needs_server(path) else path


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything that needs PostgreSQL is slow; where processes share the work, what takes longest comes first."""
    for item in items:
        if "postgres_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        order = {share: place for place, share in enumerate(LONGEST)}
        items.sort(key=lambda item: order.get(share_of(item.nodeid).partition("[")[0], len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Give out tests by `share_of`. `--dist loadgroup` would do, but pytest-xdist 3.8 groups nothing under pytest 9.2 (its issue 1386)."""
    from xdist.scheduler import LoadScopeScheduling

    class Shares(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    return Shares(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture(scope="session")
def home() -> Path:
    """The home that every in-process test run shares."""
    return Path(HOME)


@pytest.fixture(scope="session")
def prefect_server():
    """Prefect's own test server (about 16 s, once)."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture
def no_servers(tmp_path, monkeypatch) -> Iterator[dict]:
    """A home of its own on which whole flows run without Prefect and MLflow (`tests.in_process`)."""
    from tests.in_process import in_process

    with in_process(tmp_path / "home", monkeypatch) as made:
        yield made


@pytest.fixture
def no_prefect(tmp_path, monkeypatch) -> Iterator[dict]:
    """The same with MLflow."""
    from tests.in_process import in_process

    with in_process(tmp_path / "home", monkeypatch, tracked=True) as made:
        yield made


@pytest.fixture
def quick_judges(monkeypatch) -> None:
    """For tests of whole runs that look at no score."""
    judge_quickly(monkeypatch)


@pytest.fixture(scope="session")
def released(tmp_path_factory) -> Path:
    """A folder that a tiny run has published with its model: digits of 10 classes, drawn by retrieval with votes; read it, or copy it first."""
    from tests.flows.test_own_data import TINY, run
    from tests.in_process import in_process

    place = tmp_path_factory.mktemp("released")
    retrieval = ["data.share=0.1395", "method.votes=true", "method.extractor.steps=5", "seed=3"]
    with pytest.MonkeyPatch.context() as patch, in_process(place / "home", patch):
        judge_quickly(patch)
        run("rapid", [*TINY, *retrieval], str(place / "out"))
    return place / "out"


@pytest.fixture(scope="session")
def data() -> Path:
    """Real images outside the project: MNIST and Omniglot."""
    folder = Path(os.environ.get("SFUMATO_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (folder / "mnist").is_dir():
        pytest.skip(f"no MNIST in {folder}: set SFUMATO_DATA to the folder with mnist/ and omniglot/")
    return folder


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A real PostgreSQL server (about a second, once), for tests that stop and start it themselves."""
    if reason := postgres.missing():
        pytest.skip(reason)
    server = postgres.Server()
    yield server
    server.remove()


@pytest.fixture
def postgres_url(postgres_server) -> str:
    """A new, empty PostgreSQL database."""
    postgres_server.start()
    return postgres_server.fresh()


def pytest_sessionfinish() -> None:
    """Leave nothing behind."""
    shutil.rmtree(HOME, ignore_errors=True)
    shutil.rmtree(KEYS, ignore_errors=True)
