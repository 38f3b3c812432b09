"""The MLflow adapter: plain REST (version 2.0 of its API), without MLflow's client and its forty packages.

Limits of a request are those of https://mlflow.org/docs/latest/rest-api.html: 1,000 numbers, 100 parameters, 100 tags.
A server that is slow would not answer so many numbers in time, so it gets 200.
"""

from __future__ import annotations

import math
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from drivetrain.system.console import say
from drivetrain.system.run_files import RunFiles
from drivetrain.system.secrets import mask_secrets
from drivetrain.tracking.mlflow_server import Missing, MlflowServer
from drivetrain.tracking.tracker import MADE_FROM_COMMIT, Row, RunDescription, TrackerError

POINTS, PARAMETERS, TAGS = 200, 100, 100
LONGEST_PARAMETER, LONGEST_TAG, LONGEST_KEY = 6000, 5000, 250
IDENTITY = "run.json"
STATUS = {"running": "RUNNING", "done": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_KEY = "drivetrain.key"
"""The tag by which a run is found that was created just before a crash."""
_TAG = re.compile("[0-9a-f]{32}")
_COMMIT = "mlflow.source.git.commit"
_SOURCE = "mlflow.source.name"
"""What MLflow's own page shows as the source of a run."""
_UNFIT = re.compile(r"[^A-Za-z0-9_\-. :/]")


def connect(address: str, experiment: str, files: RunFiles) -> MlflowTracker:
    """One run on an MLflow server; user and password, or a token, come from the environment."""
    return MlflowTracker(address, experiment, files)


class MlflowTracker:
    """One run on an MLflow server."""

    most = POINTS

    def __init__(self, address: str, experiment: str, files: RunFiles, environ: Mapping[str, str] = os.environ) -> None:
        """
        Args:
            address: of the server, such as http://127.0.0.1:5000.
            experiment: its name on the server; created if it is missing.
            files: the folder that keeps which run on the server is ours.
            environ: where user and password, or the token, come from.
        """
        self.server = MlflowServer(address, files.path / IDENTITY, environ)
        self.address = self.server.address
        self.experiment = experiment
        self.files = files
        self.known = {key: text for key, text in files.read_object(IDENTITY).items() if isinstance(text, str)}
        if self.server.withheld:
            say(f"tracker: {self.address}: {self.server.withheld}")
            say("  possible: a server that the user's own environment names, over https or on this machine")
            say(f"  do:       {self.server.cure}")

    def begin(self, run: RunDescription) -> str:
        """Create the run, or find the one that was created before; returns the address of its page."""
        if not {"run", "experiment"} <= self.known.keys():
            self._keep(key=self.known.get("key") or uuid.uuid4().hex)
            self._keep(experiment=self._experiment())
            info = self._find_created() or self._create(run)
            number = self._text(info, "run_id")
            self._log_parameters(number, run.parameters)
            self._keep(run=number, files=str(info.get("artifact_uri", "")))
        else:
            self._confirm()
        self.server.post("runs/update", {"run_id": self.known["run"], "status": "RUNNING"})
        self.describe(run.tags)
        return f"{self.address}/#/experiments/{self.known['experiment']}/runs/{self.known['run']}"

    def log(self, rows: Sequence[Row]) -> None:
        """Send the metrics of some steps; the server keeps equal points once."""
        points = [
            {"key": _key(name), "value": _number(value), "timestamp": row.milliseconds, "step": row.step}
            for row in rows
            for name, value in row.values.items()
        ]
        for start in range(0, len(points), POINTS):
            self.server.post("runs/log-batch", {"run_id": self.known["run"], "metrics": points[start : start + POINTS]})

    def describe(self, tags: Mapping[str, str]) -> None:
        """Set tags."""
        # MLflow's own page links the commit that stands here.
        commit_tag = {_COMMIT: tags[MADE_FROM_COMMIT].removesuffix("-changed")} if tags.get(MADE_FROM_COMMIT) else {}
        items = [{"key": _key(name), "value": text[:LONGEST_TAG]} for name, text in {**tags, **commit_tag}.items()]
        for start in range(0, len(items), TAGS):
            self.server.post("runs/log-batch", {"run_id": self.known["run"], "tags": items[start : start + TAGS]})

    def end(self, status: str, ended: int | None, files: Mapping[str, bytes]) -> str:
        """Send files and the status; returns what was not sent, and why."""
        folder = self.known.get("files", "")
        unsent = ""
        if folder.startswith("mlflow-artifacts:"):
            for name, content in files.items():
                self.server.put(f"{urlsplit(folder).path.lstrip('/')}/{name}", content)
        elif files:
            unsent = f"files: the server keeps them at {mask_secrets(folder)}, and only a server that hands files on takes them"
        body: dict[str, Any] = {"run_id": self.known["run"], "status": STATUS.get(status, "FAILED")}
        self.server.post("runs/update", body | ({"end_time": ended} if ended else {}))
        return unsent

    def _experiment(self) -> str:
        if experiment := self._find_experiment():
            return experiment
        try:
            return self._text(self.server.post("experiments/create", {"name": self.experiment}), "experiment_id")
        except TrackerError:
            if experiment := self._find_experiment():  # another run has just created it
                return experiment
            raise

    def _find_experiment(self) -> str:
        try:
            answer = self.server.request(
                "GET", f"experiments/get-by-name?experiment_name={quote(self.experiment, safe='')}"
            )
        except Missing:
            return ""
        experiment = self._object(answer, "experiment")
        if experiment.get("lifecycle_stage") == "deleted":
            raise TrackerError(
                f"track.experiment: {self.experiment!r} is deleted on {self.address}",
                "an experiment that is not deleted, or a new name",
                f"restore it (`mlflow experiments restore --experiment-id {self._text(experiment, 'experiment_id')}`), or choose another",
                passing=False,
            )
        return self._text(experiment, "experiment_id")

    def _confirm(self) -> None:
        """Check that this folder began the run that it names, by the tag that only it knows.

        A folder of a stranger could name any other run, which would be written with the user's password.
        """
        info = self._find_created() if _TAG.fullmatch(self.known.get("key", "")) else None
        if info is None or info.get("run_id") != self.known["run"]:
            raise Missing(
                f"track.mlflow: {self.address}: no run {self.known['run']} that was begun from this folder",
                "the run that this folder began, as long as it exists there",
                f"remove {self.files.path / IDENTITY} to begin a new run on the server",
                passing=False,
            )
        self._keep(files=str(info.get("artifact_uri", "")))

    def _find_created(self) -> dict[str, Any] | None:
        """The run that was created before its number could be kept."""
        text = f"tags.`{_KEY}` = '{self.known['key']}'"
        answer = self.server.post("runs/search", {"experiment_ids": [self.known["experiment"]], "filter": text})
        runs = answer.get("runs", [])
        if not isinstance(runs, list):
            raise self.server.stranger()
        return self._object({"run": runs[0]}, "run", "info") if runs else None

    def _create(self, run: RunDescription) -> dict[str, Any]:
        body = {
            "experiment_id": self.known["experiment"],
            "run_name": run.name,
            "start_time": run.started,
            "tags": [{"key": _KEY, "value": self.known["key"]}, {"key": _SOURCE, "value": "drivetrain train"}],
        }
        return self._object(self.server.post("runs/create", body), "run", "info")

    def _object(self, answer: object, *keys: str) -> dict[str, Any]:
        """An object inside an answer."""
        for key in keys:
            answer = answer.get(key) if isinstance(answer, dict) else None
        if not isinstance(answer, dict):
            raise self.server.stranger()
        return answer

    def _text(self, answer: Mapping[str, Any], key: str) -> str:
        """A number or name in an answer, as text."""
        value = answer.get(key)
        if not isinstance(value, str | int) or not str(value):
            raise self.server.stranger()
        return str(value)

    def _log_parameters(self, run: str, parameters: Mapping[str, str]) -> None:
        items = [
            {"key": _key(name), "value": text[:LONGEST_PARAMETER]} for name, text in parameters.items() if text != ""
        ]
        for start in range(0, len(items), PARAMETERS):
            self.server.post("runs/log-batch", {"run_id": run, "params": items[start : start + PARAMETERS]})

    def _keep(self, **values: str) -> None:
        self.known |= values
        self.files.write_json(IDENTITY, self.known)


def _key(name: str) -> str:
    """A name as MLflow accepts it."""
    return _UNFIT.sub("_", name)[:LONGEST_KEY]


def _number(value: float) -> float | str:
    """JSON has no NaN and no infinity; MLflow takes them as text."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
