"""Posts the metrics of a run as JSON to a web address."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from drivetrain.system.run_files import RunFiles
from drivetrain.tracking.tracker import Row, RunDescription, TrackerError

PATIENCE = 10.0
"""Seconds to wait for an answer."""


def connect(address: str, experiment: str, files: RunFiles) -> WebhookTracker:
    """One run, which keeps its id in a file of its own folder in the run folder."""
    return WebhookTracker(address, experiment, files)


class WebhookTracker:
    """One run at a web address."""

    most = 500
    until: float | None = None

    def __init__(self, address: str, experiment: str, files: RunFiles) -> None:
        self.address, self.experiment = address, experiment
        identity = files.read_object("run.json") or {"id": uuid.uuid4().hex}
        files.write_json("run.json", identity)
        self.id = str(identity["id"])

    def begin(self, run: RunDescription) -> str:
        """Tell of the run; the receiver knows it by its id."""
        about = {"name": run.name, "started": run.started, "parameters": dict(run.parameters), "tags": dict(run.tags)}
        self._post("begin", {"experiment": self.experiment, **about})
        return f"{self.address}#{self.id}"

    def log(self, rows: Sequence[Row]) -> None:
        """Send rows; one that is sent again has the same step and milliseconds."""
        self._post("rows", {"rows": [[row.step, row.milliseconds, dict(row.values)] for row in rows]})

    def describe(self, tags: Mapping[str, str]) -> None:
        """Send tags that have changed."""
        self._post("tags", {"tags": dict(tags)})

    def end(self, status: str, ended: int | None, files: Mapping[str, bytes]) -> str:
        """Send the status; a web address takes no files."""
        self._post("end", {"status": status, "ended": ended})
        return f"{len(files)} files: a webhook takes none" if files else ""

    def _post(self, kind: str, body: Mapping[str, object]) -> None:
        data = json.dumps({"kind": kind, "run": self.id, **body}).encode()
        request = Request(self.address, data, {"Content-Type": "application/json"})
        left = PATIENCE if self.until is None else max(0.2, min(PATIENCE, self.until - time.monotonic()))
        try:
            urlopen(request, timeout=left).close()
        except HTTPError as error:
            raise TrackerError(
                f"track.address: {self.address} answers {error.code}",
                "an address that takes JSON by POST",
                "see its log",
                passing=error.code >= 500 or error.code == 429,
            ) from None
        except (OSError, HTTPException) as error:
            raise TrackerError(
                f"track.address: {self.address} does not answer: {error}",
                "a server that is reached from here",
                "start it, or correct the address",
                passing=True,
            ) from None
