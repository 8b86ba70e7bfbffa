"""`deploy/compose.yaml` as Docker Compose reads it, and its services as processes of this machine, without Docker.

Commands, environment and checks of health are those of the file. Only places change: a folder of the image is one of a temporary
folder, the name of a service is 127.0.0.1, and its port one that is free here.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
FILE = DEPLOY / "compose.yaml"
INSIDE = "/srv/sfumato"
"""Where the checkout lies in the image."""
VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?:(:?[-?])([^}]*))?\})")
PATIENCE_SECONDS = 600
TOOLS = ("sh", "basename", "cat", "id", "sed", "true", "uname")
"""Programs of Debian's smallest image, as far as anything here may want them."""


def read(environment: Mapping[str, str], path: Path = FILE) -> dict[str, Any]:
    """The file with its variables filled in; `KeyError` with the file's own words where one that it wants is not there."""
    return filled(yaml.safe_load(path.read_text(encoding="utf-8")), environment)


def filled(value: Any, environment: Mapping[str, str]) -> Any:
    """A value with `${NAME}`, `${NAME:-default}` and `${NAME:?what to do}` filled in; `$$` is a dollar."""
    if isinstance(value, dict):
        return {key: filled(inner, environment) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, environment) for inner in value]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        dollar, name, how, text = match.groups()
        if dollar:
            return "$"
        given = environment.get(name, "")
        if given or not how:
            return given
        if "?" in how:
            raise KeyError(f"{name}: {text}")
        return text

    return VARIABLE.sub(fill, value)


def in_order(services: Mapping[str, Any]) -> list[str]:
    """Names of the services, each after those that it waits for; `RecursionError` where they wait for each other."""
    order: list[str] = []

    def visit(name: str) -> None:
        for other in services[name].get("depends_on", {}):
            visit(other)
        if name not in order:
            order.append(name)

    for name in services:
        visit(name)
    return order


def entrypoint() -> list[str]:
    """What the image starts before a command: the last one of the Dockerfile."""
    (line,) = re.findall(r"^ENTRYPOINT (\[.+\])$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    return yaml.safe_load(line)


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Stack:
    """The services of the file as processes; PostgreSQL listens at `postgres`, a port of this machine."""

    folder: Path
    postgres: int
    secrets: Path
    more: Mapping[str, str] = field(default_factory=dict)
    """What a test adds to the environment of each."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ports = {"4200": free_port(), "5000": free_port(), "8080": free_port()}
        self.services = read({"IMAGES": str(self.folder / "images"), "PAGES_PORT": str(self.ports["4200"])})["services"]

    def here(self, service: str, text: str) -> str:
        """A text of the file as it is on this machine: folders, hosts and ports are others."""
        for inside, outside in {
            INSIDE: str(ROOT),
            "/srv/": f"{self.folder}/srv/",
            "/run/passwords/": f"{self.folder}/run/{service}/",
            "@postgres/": f"@127.0.0.1:{self.postgres}/",
            "0.0.0.0": "127.0.0.1",
        }.items():
            text = text.replace(inside, outside)
        text = re.sub(r"\b(prefect|mlflow):(?=\d)", "127.0.0.1:", text)
        return re.sub(r"\b(4200|5000|8080)\b", lambda port: str(self.ports[port[0]]), text)

    def environment(self, service: str) -> dict[str, str]:
        """The environment of a service, and nothing of ours but where programs are."""
        own = self.services[service].get("environment", {})
        values = {name: self.here(service, value) for name, value in own.items()}
        values |= {"PGHOST": "127.0.0.1", "PGPORT": str(self.postgres)} if "PGHOST" in values else {}
        for place in ("home", "keys", "prefect", "mlflow", "images"):
            (self.folder / "srv" / place).mkdir(parents=True, exist_ok=True)
        (self.folder / "run" / service).mkdir(parents=True, exist_ok=True)
        secrets = self.folder / "run" / service / "secrets"
        secrets.mkdir(exist_ok=True)
        for name in self.services[service].get("secrets", ()):
            with suppress(FileExistsError):
                (secrets / name).symlink_to(self.secrets / name)
        programs = f"{Path(sys.executable).parent}{os.pathsep}{self.tools()}"
        ours = {"PATH": programs, "HOME": str(self.folder), "PYTHONPATH": str(ROOT), "SECRETS": str(secrets)}
        return {**ours, "OMP_NUM_THREADS": "1", **self.more, **values}

    def tools(self) -> Path:
        """A folder with the programs that our image has besides Python's: neither git nor a compiler."""
        folder = self.folder / "tools"
        folder.mkdir(exist_ok=True)
        for name in TOOLS:
            with suppress(FileExistsError):
                (folder / name).symlink_to(shutil.which(name))
        return folder

    def start(self, service: str, command: list[str] | None = None) -> subprocess.Popen[bytes]:
        """Start a service, or another command as `docker compose run --rm SERVICE COMMAND` would."""
        line = [*entrypoint(), *(command or self.services[service]["command"])]
        with (self.folder / f"{service}.log").open("ab") as log:
            return subprocess.Popen(
                [self.here(service, word) for word in line],
                cwd=ROOT,
                env=self.environment(service),
                stdout=subprocess.PIPE if command else log,
                stderr=log,
            )

    def run(self, service: str, *command: str) -> str:
        """What a command prints, in the place of a service."""
        process = self.start(service, list(command))
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, (command, out.decode(), self.log(service))
        return out.decode()

    def is_healthy(self, service: str) -> bool:
        """Whether the file's own check of a service's health says so."""
        kind, *words = self.services[service]["healthcheck"]["test"]
        assert kind == "CMD"
        line = [self.here(service, word) for word in words]
        return subprocess.run(line, env=self.environment(service), capture_output=True).returncode == 0

    def up(self, leave: set[str]) -> None:
        """Start all but those to `leave`, in order: each once those that it waits for are healthy, or done."""
        for service in in_order(self.services):
            if service in leave:
                continue
            process = self.processes[service] = self.start(service)
            is_once = self.services[service]["restart"] == "no"
            if is_once:
                assert process.wait(PATIENCE_SECONDS) == 0, self.log(service)
                continue
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not self.is_healthy(service):
                assert process.poll() is None and time.monotonic() < deadline, (service, self.log(service))
                time.sleep(0.5)

    def down(self) -> dict[str, int]:
        """Stop all, the last one first, as Compose does; their exit codes."""
        codes = {}
        for service, process in reversed(self.processes.items()):
            process.terminate()
            try:
                codes[service] = process.wait(180)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[service] = process.wait()
        return codes

    def log(self, service: str) -> str:
        """The end of what a service wrote."""
        path = self.folder / f"{service}.log"
        return path.read_text(encoding="utf-8", errors="replace")[-4000:] if path.exists() else ""


def options(words: list[str]) -> Iterator[str]:
    """The long options of a command line."""
    for word in words:
        if word.startswith("--"):
            yield word.partition("=")[0]
