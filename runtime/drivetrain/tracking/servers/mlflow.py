"""The MLflow adapter: plain REST (version 2.0 of its API), without MLflow's client and its forty packages.

Limits of a request are those of https://mlflow.org/docs/latest/rest-api.html: 1,000 numbers, 100 parameters, 100 tags.
A server that is slow would not answer so many numbers in time, so it gets 200.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request

from drivetrain.system import web
from drivetrain.system.console import say
from drivetrain.system.files import parse_json
from drivetrain.system.run_files import RunFiles
from drivetrain.system.secrets import mask_secrets
from drivetrain.system.version import VERSION
from drivetrain.tracking.tracker import Row, RunDescription, TrackerError

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
        commit_tag = {_COMMIT: commit.removesuffix("-changed")} if (commit := tags.get("made_from.commit")) else {}
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


URI_NAME = "MLFLOW_TRACKING_URI"
"""Names the user's own server; a job may name another, which gets no credentials."""
VARIABLES = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
"""The variables of MLflow's own client."""
REQUEST_TIMEOUT = 10.0
"""Seconds to wait for an answer."""
MAX_ANSWER_BYTES = 8 << 20
"""Bytes of an answer."""
_PASSING_CODES = (408, 425, 429)


class MlflowServer:
    """The way to one server.

    Args:
        address: such as http://127.0.0.1:5000.
        identity: the file that keeps which run on the server is ours, for messages.
        environ: where user and password, or the token, come from.
    """

    def __init__(self, address: str, identity: Path, environ: Mapping[str, str] = os.environ) -> None:
        self.address = address.rstrip("/")
        self.identity = identity
        self.authorization = _build_authorization(environ)
        self.withheld, self.hint = _explain_withheld(self.address, environ) if self.authorization else ("", "")
        if self.withheld:
            self.authorization = ""
        self.opener = web.build_opener(self.address, _NoRedirects())

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a POST request.

        Raises:
            TrackerError: as all methods.
        """
        return self.request("POST", path, json.dumps(body).encode())

    def request(self, method: str, path: str, data: bytes | None = None) -> dict[str, Any]:
        """The JSON object that answers a request."""
        headers = {"Content-Type": "application/json"} if data else {}
        text = self._open(Request(f"{self.address}/api/2.0/mlflow/{path}", data, headers, method=method))
        try:
            document = parse_json(text or b"{}")
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise self.foreign_error()
        return document

    def put(self, path: str, content: bytes) -> None:
        """Send a file."""
        address = f"{self.address}/api/2.0/mlflow-artifacts/artifacts/{quote(path)}"
        self._open(Request(address, content, {"Content-Type": "application/octet-stream"}, method="PUT"))

    def _open(self, request: Request) -> bytes:
        request.add_header("User-Agent", f"drivetrain/{VERSION}")
        if self.authorization:
            request.add_header("Authorization", self.authorization)
        try:
            with self.opener.open(request, timeout=REQUEST_TIMEOUT) as answer:
                content: bytes = answer.read(MAX_ANSWER_BYTES + 1)
                if len(content) > MAX_ANSWER_BYTES:
                    raise self.foreign_error()
                return content
        except HTTPError as error:
            with error:
                raise self._refusal_error(error) from None
        except URLError as error:
            raise self._unreachable_error(error.reason) from None
        except (OSError, HTTPException) as error:
            raise self._unreachable_error(error) from None
        except ValueError:  # its text has the header
            raise TrackerError(
                f"track.mlflow: a request to {self.address} cannot be written",
                f"a host name, and credentials in {', '.join(VARIABLES)} without line breaks",
                "correct the address or the variable",
                passing=False,
            ) from None

    def _refusal_error(self, error: HTTPError) -> TrackerError:
        try:
            document = parse_json(error.read(1 << 20))
        except (ValueError, OSError, HTTPException):
            document = {}
        document = document if isinstance(document, dict) else {}
        text = mask_secrets(str(document.get("message", ""))[:300])
        if document.get("error_code") == "RESOURCE_DOES_NOT_EXIST":
            return MissingError(
                f"track.mlflow: {self.address}: {text}",
                "an experiment and a run that exist there",
                f"remove {self.identity} to begin a new run on the server",
                passing=False,
            )
        if error.code in (401, 403):
            return TrackerError(
                f"track.mlflow: {self.address} answers {error.code}: "
                + ("the user or the token is refused" if self.authorization else "it wants a user or a token")
                + (f", and {self.withheld}" if self.withheld else ""),
                "a user who may write there",
                f"set {VARIABLES[0]}, or {VARIABLES[1]} and {VARIABLES[2]}" + (f"; {self.hint}" if self.hint else ""),
                passing=False,
            )
        if 300 <= error.code < 400:
            return TrackerError(
                f"track.mlflow: {self.address} redirects to another address",
                "the address of the server itself",
                f"use the address that it names: {mask_secrets(error.headers.get('Location', ''))[:200]}",
                passing=False,
            )
        if error.code == 404 and not document:
            return self.foreign_error()
        return TrackerError(
            f"track.mlflow: {self.address} answers {error.code}{f': {text}' if text else ''}",
            "an MLflow server that is well",
            "see its log",
            passing=error.code >= 500 or error.code in _PASSING_CODES,
        )

    def foreign_error(self) -> TrackerError:
        """The error for an answer that no MLflow server gives."""
        return TrackerError(
            f"track.mlflow: what answers at {self.address} is no MLflow server",
            "the address that `mlflow server` prints",
            "correct it; a proxy or a login page may answer instead",
            passing=False,
        )

    def _unreachable_error(self, cause: object) -> TrackerError:
        is_timeout = isinstance(cause, TimeoutError)
        reason = "no answer in time" if is_timeout else str(getattr(cause, "strerror", None) or cause)
        return TrackerError(
            f"track.mlflow: {self.address} cannot be reached: {mask_secrets(reason)[:200]}",
            "a server that answers",
            "check the address, and whether the server runs",
            passing=True,
        )


class MissingError(TrackerError):
    """The server does not know what was named."""


class _NoRedirects(HTTPRedirectHandler):
    """A redirected POST would become a GET, and another host would get the token."""

    def redirect_request(self, *_: object) -> None:
        return None


def _build_authorization(environ: Mapping[str, str]) -> str:
    token, user, password = (environ.get(name, "").strip() for name in VARIABLES)
    if token:
        return f"Bearer {token}"
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" if user else ""


def _explain_withheld(address: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Why the server of a job, perhaps a stranger's, gets no credentials, and what to do if it should; empty if it gets them."""
    named_address, consequence = environ.get(URI_NAME, "").strip(), "the credentials of this machine are not sent"
    try:
        named = bool(named_address) and web.parse_origin(named_address) == web.parse_origin(address)
    except ValueError:
        named = False
    if not named:
        cause = f"{URI_NAME} names another server" if named_address else f"{URI_NAME} does not name this server"
        return f"{consequence}, since {cause}", f"if it is your server, export {URI_NAME}={address}"
    scheme, host, _ = web.parse_origin(address)
    if scheme != "https" and not web.is_loopback(host):
        return f"{consequence}, since the address is not encrypted (http)", "use the https address of the server"
    return "", ""
