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
from drivetrain.tracking.mlflow_server import MissingError, MlflowServer
from drivetrain.tracking.tracker import MADE_FROM_COMMIT, Row, RunDescription, TrackerError

POINTS, PARAMETERS, TAGS = 200, 100, 100
LONGEST_PARAMETER, LONGEST_TAG, LONGEST_KEY = 6000, 5000, 250
IDENTITY_FILE = "run.json"
STATUS_NAMES = {"running": "RUNNING", "done": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_KEY_TAG = "drivetrain.key"
"""The tag by which a run is found that was created just before a crash."""
_KEY_PATTERN = re.compile("[0-9a-f]{32}")
_COMMIT = "mlflow.source.git.commit"
_SOURCE = "mlflow.source.name"
"""What MLflow's own page shows as the source of a run."""
_FORBIDDEN_CHARACTERS = re.compile(r"[^A-Za-z0-9_\-. :/]")


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
        self.server = MlflowServer(address, files.path / IDENTITY_FILE, environ)
        self.address = self.server.address
        self.experiment = experiment
        self.files = files
        self.ids = {key: text for key, text in files.read_object(IDENTITY_FILE).items() if isinstance(text, str)}
        if self.server.withheld:
            say(f"tracker: {self.address}: {self.server.withheld}")
            say("  possible: a server that the user's own environment names, over https or on this machine")
            say(f"  do:       {self.server.hint}")

    def begin(self, run: RunDescription) -> str:
        """Create the run, or find the one that was created before; returns the address of its page."""
        if not {"run", "experiment"} <= self.ids.keys():
            self._store(key=self.ids.get("key") or uuid.uuid4().hex)
            self._store(experiment=self._find_or_create_experiment())
            info = self._find_by_key() or self._create_run(run)
            number = self._get_text(info, "run_id")
            parameters = [
                {"key": _clean(name), "value": text[:LONGEST_PARAMETER]}
                for name, text in run.parameters.items()
                if text != ""
            ]
            self._post_in_batches(number, "params", parameters, PARAMETERS)
            self._store(run=number, files=str(info.get("artifact_uri", "")))
        else:
            self._check_identity()
        self.server.post("runs/update", {"run_id": self.ids["run"], "status": "RUNNING"})
        self.describe(run.tags)
        return f"{self.address}/#/experiments/{self.ids['experiment']}/runs/{self.ids['run']}"

    def log(self, rows: Sequence[Row]) -> None:
        """Send the metrics of some steps; the server keeps equal points once."""
        points = [
            {"key": _clean(name), "value": _format_number(value), "timestamp": row.milliseconds, "step": row.step}
            for row in rows
            for name, value in row.values.items()
        ]
        self._post_in_batches(self.ids["run"], "metrics", points, POINTS)

    def describe(self, tags: Mapping[str, str]) -> None:
        """Set tags."""
        # MLflow's own page links the commit that stands here.
        commit_tag = {_COMMIT: tags[MADE_FROM_COMMIT].removesuffix("-changed")} if tags.get(MADE_FROM_COMMIT) else {}
        items = [{"key": _clean(name), "value": text[:LONGEST_TAG]} for name, text in {**tags, **commit_tag}.items()]
        self._post_in_batches(self.ids["run"], "tags", items, TAGS)

    def end(self, status: str, ended: int | None, files: Mapping[str, bytes]) -> str:
        """Send files and the status; returns what was not sent, and why."""
        folder = self.ids.get("files", "")
        unsent = ""
        if folder.startswith("mlflow-artifacts:"):
            for name, content in files.items():
                self.server.put(f"{urlsplit(folder).path.lstrip('/')}/{name}", content)
        elif files:
            unsent = f"files: the server keeps them at {mask_secrets(folder)}, and only a server that hands files on takes them"
        body: dict[str, Any] = {"run_id": self.ids["run"], "status": STATUS_NAMES.get(status, "FAILED")}
        self.server.post("runs/update", body | ({"end_time": ended} if ended else {}))
        return unsent

    def _find_or_create_experiment(self) -> str:
        if experiment := self._find_experiment():
            return experiment
        try:
            return self._get_text(self.server.post("experiments/create", {"name": self.experiment}), "experiment_id")
        except TrackerError:
            if experiment := self._find_experiment():  # another run has just created it
                return experiment
            raise

    def _find_experiment(self) -> str:
        try:
            answer = self.server.request(
                "GET", f"experiments/get-by-name?experiment_name={quote(self.experiment, safe='')}"
            )
        except MissingError:
            return ""
        experiment = self._get_object(answer, "experiment")
        if experiment.get("lifecycle_stage") == "deleted":
            raise TrackerError(
                f"track.experiment: {self.experiment!r} is deleted on {self.address}",
                "an experiment that is not deleted, or a new name",
                f"restore it (`mlflow experiments restore --experiment-id {self._get_text(experiment, 'experiment_id')}`), or choose another",
                passing=False,
            )
        return self._get_text(experiment, "experiment_id")

    def _check_identity(self) -> None:
        """Check by the key that this folder began the run that it names: it could name any run that the user may write."""
        info = self._find_by_key() if _KEY_PATTERN.fullmatch(self.ids.get("key", "")) else None
        if info is None or info.get("run_id") != self.ids["run"]:
            raise MissingError(
                f"track.mlflow: {self.address}: no run {self.ids['run']} that was begun from this folder",
                "the run that this folder began, as long as it exists there",
                f"remove {self.files.path / IDENTITY_FILE} to begin a new run on the server",
                passing=False,
            )
        self._store(files=str(info.get("artifact_uri", "")))

    def _find_by_key(self) -> dict[str, Any] | None:
        """The run with the key of this folder, if there is one."""
        text = f"tags.`{_KEY_TAG}` = '{self.ids['key']}'"
        answer = self.server.post("runs/search", {"experiment_ids": [self.ids["experiment"]], "filter": text})
        runs = answer.get("runs", [])
        if not isinstance(runs, list):
            raise self.server.foreign_error()
        return self._get_object({"run": runs[0]}, "run", "info") if runs else None

    def _create_run(self, run: RunDescription) -> dict[str, Any]:
        body = {
            "experiment_id": self.ids["experiment"],
            "run_name": run.name,
            "start_time": run.started,
            "tags": [{"key": _KEY_TAG, "value": self.ids["key"]}, {"key": _SOURCE, "value": "drivetrain train"}],
        }
        return self._get_object(self.server.post("runs/create", body), "run", "info")

    def _get_object(self, answer: object, *keys: str) -> dict[str, Any]:
        """An object inside an answer."""
        for key in keys:
            answer = answer.get(key) if isinstance(answer, dict) else None
        if not isinstance(answer, dict):
            raise self.server.foreign_error()
        return answer

    def _get_text(self, answer: Mapping[str, Any], key: str) -> str:
        """A number or name of an answer, as text."""
        value = answer.get(key)
        if not isinstance(value, str | int) or not str(value):
            raise self.server.foreign_error()
        return str(value)

    def _post_in_batches(self, run: str, kind: str, items: Sequence[object], most: int) -> None:
        for start in range(0, len(items), most):
            self.server.post("runs/log-batch", {"run_id": run, kind: items[start : start + most]})

    def _store(self, **values: str) -> None:
        self.ids |= values
        self.files.write_json(IDENTITY_FILE, self.ids)


def _clean(name: str) -> str:
    """A name as MLflow accepts it."""
    return _FORBIDDEN_CHARACTERS.sub("_", name)[:LONGEST_KEY]


def _format_number(value: float) -> float | str:
    """JSON has no NaN and no infinity; MLflow takes them as text."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
