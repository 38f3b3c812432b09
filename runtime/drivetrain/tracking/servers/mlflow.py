"""A run on an MLflow server, by MLflow's own client."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.tracking.tracker import Row, RunDescription, TrackerError, check_credentials

SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
URI = "MLFLOW_TRACKING_URI"
"""Names the user's own server; a job may name another, which gets no credentials."""
NO_CREDENTIALS = (URI, "MLFLOW_TRACKING_INSECURE_TLS", "MLFLOW_TRACKING_SERVER_CERT_PATH")
STATUS_NAMES = {"done": "FINISHED", "stopped": "KILLED"}
KEY, STEP = "drivetrain.key", "drivetrain.step"
"""Tags: which run it is, and the last step that was sent."""
POINTS, LONGEST_PARAMETER, LONGEST_TAG = 1000, 6000, 5000


def connect(address: str, experiment: str) -> MlflowTracker:
    """Return the tracker of one run; user and password, or the token, come from the environment."""
    return MlflowTracker(address.rstrip("/"), experiment)


class MlflowTracker:
    """One run on an MLflow server.

    Args:
        address: of the server, for example http://127.0.0.1:5000.
        experiment: its name on the server; created if it is missing.
    """

    client: Any
    run: Any

    def __init__(self, address: str, experiment: str) -> None:
        self.address, self.experiment = address, experiment

    def begin(self, run: RunDescription) -> tuple[str, int]:
        """Create the run, or find it by its key after an earlier attempt."""
        if _has_credentials():
            check_credentials("track.mlflow", self.address, URI, os.environ.get(URI))
        for name, text in SETTINGS.items():
            os.environ.setdefault(name, text)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.client = MlflowClient(tracking_uri=self.address)
        experiment = self.client.get_experiment_by_name(self.experiment)
        number = experiment.experiment_id if experiment else self.client.create_experiment(self.experiment)
        known_runs = self.client.search_runs([number], f"tags.`{KEY}` = '{run.key}'", max_results=1)
        tags = {KEY: run.key, "mlflow.source.name": "drivetrain train"}
        self.run = known_runs[0] if known_runs else self.client.create_run(number, tags=tags, run_name=run.name)
        # A parameter keeps its first value on the server.
        parameters = {_clean(name): text[:LONGEST_PARAMETER] for name, text in run.parameters.items() if text}
        self._log(params=[Param(*pair) for pair in parameters.items() if pair[0] not in self.run.data.params])
        self._set_tags(run.tags)
        self.client.update_run(self.run.info.run_id, "RUNNING")
        page = f"{self.address}/#/experiments/{number}/runs/{self.run.info.run_id}"
        return page, int(self.run.data.tags.get(STEP, -1))

    def log(self, rows: Sequence[Row]) -> None:
        """Send the metrics; the server keeps equal points once."""
        from mlflow.entities import Metric

        points = []
        for row in rows:
            points += [Metric(_clean(name), value, row.milliseconds, row.step) for name, value in row.values.items()]
        for start in range(0, len(points), POINTS):
            self._log(metrics=points[start : start + POINTS])
        self._set_tags({STEP: str(rows[-1].step)})

    def end(self, status: str, tags: Mapping[str, str], files: Mapping[str, str]) -> None:
        """Send tags, status and files."""
        self._set_tags(tags)
        self.client.set_terminated(
            self.run.info.run_id, STATUS_NAMES.get(status, "FAILED"), time.time_ns() // 1_000_000
        )
        # A server may name any folder of this machine for its files.
        folder = self.run.info.artifact_uri
        if not folder.startswith("mlflow-artifacts:"):
            raise TrackerError(
                f"track.mlflow: {self.address} keeps files in {folder}, so it gets none",
                "a server that takes files itself",
                "start it with --artifacts-destination",
            )
        for name, text in files.items():
            self.client.log_text(self.run.info.run_id, text, name)

    def _set_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        self._log(tags=[RunTag(_clean(name), text[:LONGEST_TAG]) for name, text in tags.items()])

    def _log(self, **items: Any) -> None:
        self.client.log_batch(self.run.info.run_id, **items, synchronous=True)


def _clean(name: str) -> str:
    """Return a name as MLflow accepts it."""
    return re.sub(r"[^A-Za-z0-9_\-. :/]", "_", name)[:250]


def _has_credentials() -> bool:
    """Return whether MLflow's client would send credentials of this machine."""
    names = (name for name, text in os.environ.items() if name.startswith("MLFLOW_TRACKING_") and text)
    return any(name not in NO_CREDENTIALS for name in names) or Path("~/.mlflow/credentials").expanduser().exists()
