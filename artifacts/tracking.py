"""Everything that is said to MLflow. Two experiments: what may be shown, and what is INTERNAL.

A flow run is a parent run in each experiment that it writes to; each stage is a child. Logging never decides anything:
a tracking server that cannot be reached stops the run before it starts, not in the middle. No model flavours: weights
stay in the store.
"""

import fcntl
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.labels import Label
from sfumato.errors import BadInput

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # 7 would take four minutes to find that nobody answers

LOCK = ".opening"
SHAREABLE, INTERNAL = "sfumato", "sfumato-internal"
PASSWORD = re.compile(r"//[^/@\s]*@")
"""User and password in an address."""
SERIES_BATCH, PARAMS_BATCH = 1000, 100
"""Metrics and parameters that MLflow takes in one call."""


def experiment_of(label: str) -> str:
    """The experiment where something of this label may be seen."""
    return INTERNAL if label == Label.INTERNAL else SHAREABLE


@dataclass(frozen=True)
class Tracker:
    """A connection to MLflow at `uri`; files go below `files`."""

    uri: str
    files: Path

    def client(self):
        """An MLflow client (imported late: it takes a second).

        One process at a time: two that find no database yet would both lay it out, and one of them would fail.
        """
        from mlflow import MlflowClient

        self.files.mkdir(parents=True, exist_ok=True)
        with (self.files / LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return MlflowClient(tracking_uri=self.uri)

    def experiment(self, name: str) -> str:
        """Id of the experiment, created with its own artifact folder when new."""
        from mlflow.exceptions import MlflowException

        client = self.client()
        known = client.get_experiment_by_name(name)
        if known is None:
            folder = self.files / name
            folder.mkdir(parents=True, exist_ok=True)
            try:
                return client.create_experiment(name, artifact_location=folder.as_uri())
            except MlflowException:  # another process was first
                known = client.get_experiment_by_name(name)
        return known.experiment_id

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
        files: Sequence[Path] = (),
    ) -> str:
        """Write one finished run into the experiment of its label (or add to `run`) and return its id.

        `BadInput` where MLflow cannot be used, which the first call of a run finds before any work.
        """
        from mlflow.entities import Metric, Param

        all_tags = {"mlflow.runName": name, "label": str(label), **(tags or {})}
        if parent:
            all_tags["mlflow.parentRunId"] = parent
        try:
            client = self.client()
            run = run or client.create_run(self.experiment(experiment_of(label)), tags=all_tags).info.run_id
        except Exception as error:  # of MLflow, its database or its connection
            cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise BadInput(
                PASSWORD.sub("//", f"MLflow at {self.uri} cannot be used ({cause}): set MLFLOW_TRACKING_URI")
            ) from error
        stamp = client.get_run(run).info.start_time
        points = [Metric(key, float(value), stamp, 0) for key, value in (metrics or {}).items()]
        for key, values in (series or {}).items():
            points += [Metric(key, float(value), stamp, step) for step, value in enumerate(values)]
        named = [Param(key, value) for key, value in flattened(params or {}).items()]
        for start in range(0, len(named), PARAMS_BATCH):
            client.log_batch(run, params=named[start : start + PARAMS_BATCH])
        for start in range(0, len(points), SERIES_BATCH):
            client.log_batch(run, metrics=points[start : start + SERIES_BATCH])
        for path in files:
            client.log_artifact(run, str(path))
        client.set_terminated(run)
        return run


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as `section.field` -> text of at most MLflow's 500 characters."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = (value if isinstance(value, str) else json.dumps(value, default=str))[:500]
    return flat
