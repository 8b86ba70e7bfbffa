"""All calls of MLflow. Two experiments: one for what may be shown, one for what is INTERNAL.

A flow run is a parent run in each experiment that it writes to; each stage is a child. Logging never decides anything:
a tracking server that cannot be reached stops the run before it starts, not in the middle. A model in the registry is a published folder
that `mlflow.pyfunc` loads (`artifacts.flavour`): safetensors and JSON.
"""

import contextlib
import fcntl
import json
import os
import socket
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from artifacts.labels import Label
from sfumato.errors import BadInput, first_line, without_passwords

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # 7 would take four minutes to find that nobody answers

LOCK = ".opening"
SQLITE = "sqlite:///"
SHAREABLE, INTERNAL = "sfumato", "sfumato-internal"
PARAM_LETTERS = 500
"""Longest value of a parameter that MLflow takes."""
BUSY_SECONDS = 60
"""Time to wait for another process that writes to the database."""
SERIES_BATCH, PARAMS_BATCH = 800, 100
"""Metrics and parameters that go into one call of MLflow, which takes 1000 things in all, 100 tags among them."""
INHERITED = ("method", "data", "epsilon")
"""Tags that a stage inherits from its run."""
REASON = "reason"
"""Tag of a failed run: what it says of itself where nothing private is shown, the whole line among what is INTERNAL."""
USER, SOURCE, SOURCE_TYPE, COMMIT = (
    "mlflow.user",
    "mlflow.source.name",
    "mlflow.source.type",
    "mlflow.source.git.commit",
)
"""Tags by which MLflow shows who ran what, and from which commit."""
FLOW_RUN = "prefect.flow_run"
"""Tag with the id of the run's flow run in Prefect, by which what a dead process left is found."""
NOTE = "mlflow.note.content"
"""The tag that MLflow shows as the description of a run."""
EXPERIMENTS = {
    SHAREABLE: "What may be shown: PUBLIC and DP alone.",
    INTERNAL: "INTERNAL: do not share. Measured against private images without noise, or made from them without a certificate.",
}
"""The first text on the page of each experiment."""
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Makes MLflow's pages open with runs, not with traces of language models."""
AS_TRAINING = "?workflowType=machine_learning"
"""Makes the page of a run one of training, not of language models; the experiment's own tag does not affect it."""
MODEL, RELEASED = "model", "released"
"""Folder of a model among the files of its run; alias of the one whose images were handed over last."""
SERVERS = ("http://", "https://")
"""How the address of a tracking server begins; others are databases that this process opens itself."""
ANSWER_SECONDS = 5
"""Seconds within which a tracking server must begin to answer; MLflow itself would wait for two minutes, several times."""
DIGEST_LENGTH = 32
"""Characters of a content address that MLflow gets; it takes 36."""
WITHHELD = "withheld"
"""Stands for the digest of a private set, which stays INTERNAL."""


def experiment_of(label: str) -> str:
    """The experiment where something of this label may be seen."""
    return INTERNAL if label == Label.INTERNAL else SHAREABLE


@dataclass(frozen=True)
class Tracker:
    """A connection to MLflow at `uri`; files go below `files`."""

    uri: str
    files: Path

    def client(self):
        """An MLflow client (imported late: it takes a second). `OSError` at once for a server that is gone."""
        if self.uri.startswith(SERVERS):
            require_answer(self.uri)
        with self._laid_out():
            from mlflow import MlflowClient

            return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    @contextlib.contextmanager
    def _laid_out(self) -> Iterator[None]:
        """Inside the block the database is there, in this home.

        One process at a time: two that find no database yet would both lay it out, and one of them would fail. An SQLite
        database is laid out under another name, since a process killed meanwhile leaves one that MLflow can never use.
        """
        self.files.mkdir(parents=True, exist_ok=True)
        with (self.files / LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            path = Path(self.uri.removeprefix(SQLITE))
            if self.uri.startswith(SQLITE) and "?" not in self.uri and not path.exists():
                from mlflow import MlflowClient

                new = path.with_name(f"{path.name}.new")
                new.unlink(missing_ok=True)
                MlflowClient(tracking_uri=f"{SQLITE}{new}").search_experiments()
                new.replace(path)
            if path.parent == self.files.parent and path.exists():
                move_in(path, self.files)
            yield

    def lay_out(self) -> None:
        """Lay the database out where there is none yet; where there is one MLflow is not even loaded. `BadInput` where it cannot be used."""
        try:
            with self._laid_out():
                pass
        except Exception as error:  # of MLflow or its database
            raise self._unusable(error) from error

    def check(self) -> None:
        """Lay the database out where there is none yet; `BadInput` where MLflow cannot be used, or its server does not answer."""
        try:
            self.client()
        except Exception as error:  # of MLflow, its database or its connection
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> BadInput:
        cause = first_line(error)
        return BadInput(without_passwords(f"MLflow at {self.uri} cannot be used ({cause}): set MLFLOW_TRACKING_URI"))

    def experiment(self, name: str) -> str:
        """Id of the experiment, created when new: with its own folder here, or with the place that a server elsewhere gives it."""
        return self._experiment(self.client(), name)

    def _experiment(self, client: Any, name: str) -> str:
        from mlflow.exceptions import MlflowException

        known = client.get_experiment_by_name(name)
        if known is None:
            place = None
            if not self.uri.startswith(SERVERS):  # a server elsewhere cannot read a folder of this machine
                folder = self.files / name
                folder.mkdir(parents=True, exist_ok=True)
                place = folder.as_uri()
            try:
                tags = {**KIND, NOTE: EXPERIMENTS[name]}
                return str(client.create_experiment(name, artifact_location=place, tags=tags))
            except MlflowException:  # another process was first
                known = client.get_experiment_by_name(name)
        return str(known.experiment_id)

    def log(
        self,
        name: str,
        *,
        label: str,
        parent: str = "",
        run: str = "",
        tags: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        series: Mapping[str, Sequence[float]] | None = None,
        steps: int = 0,
        seconds: float = 0.0,
        ended: bool = True,
        inputs: Sequence[tuple[str, str]] = (),
        files: Sequence[Path] = (),
    ) -> str:
        """Write one finished run into the experiment of its label (or add to `run`) and return its id.

        `steps` is the step at which a series ends, else its points are counted; `seconds` is how long the work took that has just ended; a
        run that has not `ended` goes on until `end`. `inputs` are names of data with their digests; of a folder among `files` all goes below
        its name.
        `BadInput` where MLflow cannot be used, which the first call of a run finds before any work.

        Many parameters: each is a part of a run as MLflow has it.
        """
        from mlflow.entities import Metric, Param, RunTag

        all_tags = {"mlflow.runName": name, "label": str(label), **(tags or {})}
        if parent:
            all_tags["mlflow.parentRunId"] = parent
        try:
            client = self.client()
            if parent:
                above = client.get_run(parent).data.tags
                all_tags = {tag: above[tag] for tag in INHERITED if tag in above} | all_tags
            experiment, tags_left = self._experiment(client, experiment_of(label)), []
            if run:
                info = client.get_run(run).info
                tags_left = [RunTag(tag, value) for tag, value in all_tags.items()]
                if info.experiment_id != experiment:
                    raise BadInput(
                        f"run {run} is not in the experiment '{experiment_of(label)}', where {label} may be seen"
                    )
            else:
                began = round(1000 * (time.time() - seconds))
                info = client.create_run(experiment, start_time=began, tags=all_tags).info
                run = info.run_id
        except Exception as error:  # of MLflow, its database or its connection
            raise self._unusable(error) from error
        points = [Metric(key, float(value), info.start_time, 0) for key, value in (metrics or {}).items()]
        for key, values in (series or {}).items():
            at = [step * steps // len(values) if steps else step - 1 for step in range(1, len(values) + 1)]
            points += [Metric(key, float(value), info.start_time, step) for step, value in zip(at, values, strict=True)]
        named = [Param(key, value) for key, value in flattened(params or {}).items()]
        while named or points or tags_left:
            client.log_batch(run, points[:SERIES_BATCH], named[:PARAMS_BATCH], tags_left)
            points, named, tags_left = points[SERIES_BATCH:], named[PARAMS_BATCH:], []
        if inputs:
            client.log_inputs(run, datasets=[_input(name, digest) for name, digest in inputs])
        for path in files:
            if path.is_dir():
                client.log_artifacts(run, str(path), path.name)
            else:
                client.log_artifact(run, str(path))
        if ended and not info.end_time:
            client.set_terminated(run)
        return run

    def end(self, run: str, status: str, why: Mapping[str, str] = MappingProxyType({})) -> None:
        """End a run that goes on as `FINISHED`, `FAILED` or `KILLED`, with tags that say why."""
        client = self.client()
        for tag, value in why.items():
            client.set_tag(run, tag, value)
        client.set_terminated(run, status)

    def end_those_of(self, flow_run: str, why: str) -> None:
        """End as `KILLED` the runs that go on although the process of their flow run in Prefect is dead."""
        for run in self._at_work(f" AND tags.`{FLOW_RUN}` = '{flow_run}'"):
            self.end(run.info.run_id, "KILLED", {REASON: why})

    def flow_runs_at_work(self) -> set[str]:
        """The ids of the flow runs in Prefect of all runs that go on."""
        return {run.data.tags[FLOW_RUN] for run in self._at_work() if FLOW_RUN in run.data.tags}

    def _at_work(self, more: str = "") -> Sequence[Any]:
        client = self.client()
        known = [one for one in map(client.get_experiment_by_name, EXPERIMENTS) if one]
        runs: Sequence[Any] = client.search_runs(
            [one.experiment_id for one in known], f"attributes.status = 'RUNNING'{more}"
        )
        return runs

    def release(self, name: str, folder: Path, *, run: str, tags: Mapping[str, str], note: str) -> str:
        """Put the model in `folder` into the registry as this run's version of `name`, alias `released`; returns the version.

        Its files are shown with `run`, which must be one that may be shown. A run that is published again keeps its version, whose files
        these then are.
        """
        from mlflow.exceptions import MlflowException

        client = self.client()
        client.log_artifacts(run, str(folder), MODEL)
        source = f"{client.get_run(run).info.artifact_uri}/{MODEL}"
        with contextlib.suppress(MlflowException):  # it is there already
            client.create_registered_model(name)
        if known := client.search_model_versions(f"name = '{name}' AND run_id = '{run}'"):
            version = known[0].version
            client.update_model_version(name, version, description=note)
            for tag, value in tags.items():
                client.set_model_version_tag(name, version, tag, value)
        else:
            version = client.create_model_version(name, source, run_id=run, tags=dict(tags), description=note).version
        client.set_registered_model_alias(name, RELEASED, version)
        return str(version)

    def withdraw(self, name: str, *, run: str) -> None:
        """Remove the alias `released` from the model of this run, if it has it."""
        from mlflow.exceptions import MlflowException

        client = self.client()
        with contextlib.suppress(MlflowException):  # no such model, or none released
            if client.get_model_version_by_alias(name, RELEASED).run_id == run:
                client.delete_registered_model_alias(name, RELEASED)


def require_answer(server: str) -> None:
    """`OSError` where nothing answers at this address within `ANSWER_SECONDS`; whatever answers, and be it a refusal, is a server."""
    try:
        urllib.request.urlopen(without_passwords(server), timeout=ANSWER_SECONDS).close()
    except urllib.error.URLError as error:  # a refusal in HTTP too, whose reason is text
        if isinstance(error.reason, ConnectionError | TimeoutError | socket.gaierror):
            raise error.reason from None


def move_in(database: Path, files: Path) -> None:
    """Have the experiments of a home keep their files in it, also when it was copied or moved with its database.

    MLflow holds absolute addresses, by which a copied home would go on writing into the one that it was copied from.
    """
    with contextlib.closing(sqlite3.connect(database, timeout=BUSY_SECONDS)) as connection, connection:
        rows = connection.execute(
            "SELECT name, artifact_location FROM experiments WHERE name IN (?, ?)", (SHAREABLE, INTERNAL)
        ).fetchall()
        for name, old in rows:
            new = (files / name).as_uri()
            if old == new or not str(old).startswith("file:"):
                continue
            for table, column in PLACES:
                connection.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                    (new, len(old) + 1, len(old) + 1, f"{old}/"),
                )
            connection.execute("UPDATE experiments SET artifact_location = ? WHERE name = ?", (new, name))


PLACES = (("runs", "artifact_uri"), ("model_versions", "source"), ("model_versions", "storage_location"))
"""Columns of MLflow's tables that hold addresses below that of their experiment."""


def page_of(pages: str, run: str) -> str:
    """Address of a run on MLflow's pages at `pages`; empty where no server answers there, or it does not know this run."""
    from mlflow import MlflowClient

    try:
        info = MlflowClient(tracking_uri=pages).get_run(run).info
    except Exception:  # of the connection, or of another database than the one that the run was written to
        return ""
    return f"{without_passwords(pages).rstrip('/')}/#/experiments/{info.experiment_id}/runs/{run}{AS_TRAINING}"


def _input(name: str, digest: str) -> Any:
    from mlflow.entities import Dataset, DatasetInput

    short = digest[:DIGEST_LENGTH] or WITHHELD
    return DatasetInput(Dataset(name=name, digest=short, source_type="sfumato", source=json.dumps({"digest": short})))


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as `section.field` -> text of at most `PARAM_LETTERS`."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = (value if isinstance(value, str) else json.dumps(value, default=str))[
                :PARAM_LETTERS
            ]
    return flat
