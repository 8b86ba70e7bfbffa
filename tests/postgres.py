"""A throw-away PostgreSQL server made of the system's own packages, which a test may stop and start again."""

import importlib.util
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

ROLE = "sfumato"
UNPRIVILEGED = "postgres"
"""Who runs the server when the tests run as root, which it refuses to be run by; Debian's package makes this user."""


def binaries() -> Path | None:
    """The folder with `initdb`, `pg_ctl` and `postgres` of the newest version: Debian's, else one on the PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: [len(path.parts[-2]), path.parts[-2]])
    onpath = shutil.which("initdb")
    folders = [*([Path(onpath).resolve().parent] if onpath else []), *debian]
    whole = [path for path in folders if all((path / name).exists() for name in ("initdb", "pg_ctl", "postgres"))]
    return whole[-1] if whole else None


def missing() -> str | None:
    """Why there can be no server here, in one line."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is missing: pip install 'sfumato[postgres]'"
    if binaries() is None:
        return "the PostgreSQL server is missing: apt-get install postgresql"
    if os.geteuid() == 0 and UNPRIVILEGED not in (user.pw_name for user in pwd.getpwall()):
        return f"PostgreSQL does not run as root, and there is no user '{UNPRIVILEGED}' to run it"
    return None


class Server:
    """A server that listens on a socket in its own folder, and on a port of loopback where it is given one with a password."""

    def __init__(self, role: str = ROLE, *, password: str = "", port: int = 0) -> None:
        self._role, self._port = role, port
        # Not in the configured temporary folder: the path of a socket may not be longer than 107 letters.
        self._folder = Path(tempfile.mkdtemp(prefix="sfumato-postgres-", dir="/tmp"))
        self._numbers = itertools.count(1)
        self._as = {}
        if os.geteuid() == 0:
            self._as = {"user": UNPRIVILEGED, "group": pwd.getpwnam(UNPRIVILEGED).pw_gid, "extra_groups": []}
            shutil.chown(self._folder, UNPRIVILEGED)
        asks = []
        if password:
            file = self._folder / "password"
            file.write_text(password)
            file.chmod(0o644)
            asks = ["--auth-host", "scram-sha-256", "--pwfile", str(file)]
        begin = ["--username", role, "--auth-local", "trust", *asks, "--encoding", "UTF8", "--no-locale", "--no-sync"]
        self._call("initdb", *begin)

    def _call(self, program: str, *arguments: str) -> int:
        line = [str(binaries() / program), "--pgdata", str(self._folder / "data"), *arguments]
        done = subprocess.run(line, cwd=self._folder, capture_output=True, text=True, **self._as)
        status_only = arguments[-1:] == ("status",)
        assert done.returncode == 0 or status_only, f"{program}: {done.stdout}{done.stderr}"
        return done.returncode

    def start(self) -> None:
        """Start the server, unless it runs; returns when it answers."""
        # Without fsync a power cut could lose entries, the death of a process cannot.
        at = f"-c listen_addresses=127.0.0.1 -c port={self._port}" if self._port else "-c listen_addresses=''"
        options = f"-c fsync=off {at} -c unix_socket_directories='{self._folder}'"
        if self._call("pg_ctl", "status"):
            self._call("pg_ctl", "--wait", "--log", str(self._folder / "log"), "--options", options, "start")

    def stop(self) -> None:
        """Stop the server at once, as a crash would: connections are cut, open transactions are lost."""
        self._call("pg_ctl", "--wait", "--mode", "immediate", "stop")

    def fresh(self) -> str:
        """The URL of a new, empty database."""
        import psycopg

        name = f"fresh_{next(self._numbers)}"
        with psycopg.connect(host=str(self._folder), user=self._role, dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://{self._role}@/{name}?host={self._folder}"

    def remove(self) -> None:
        """Stop the server and leave nothing behind."""
        if not self._call("pg_ctl", "status"):
            self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
