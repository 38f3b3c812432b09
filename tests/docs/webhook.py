"""Posts the metrics of a run as JSON to a web address."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from urllib.request import Request, urlopen

from drivetrain.tracking.tracker import Row, RunDescription

ANSWER_TIMEOUT = 10.0
"""Seconds to wait for an answer."""


def connect(address: str, experiment: str) -> WebhookTracker:
    """Return the tracker of one run."""
    return WebhookTracker(address, experiment)


class WebhookTracker:
    """One run at a web address."""

    key = ""

    def __init__(self, address: str, experiment: str) -> None:
        self.address, self.experiment = address, experiment

    def begin(self, run: RunDescription) -> tuple[str, int]:
        """Tell of the run; the receiver knows it by its key, and answers with the last step that it has."""
        self.key = run.key
        about = {"name": run.name, "parameters": dict(run.parameters), "tags": dict(run.tags)}
        return f"{self.address}#{self.key}", int(self._post("begin", experiment=self.experiment, **about))

    def log(self, rows: Sequence[Row]) -> None:
        """Send rows."""
        self._post("rows", rows=[[row.step, row.milliseconds, dict(row.values)] for row in rows])

    def end(self, status: str, tags: Mapping[str, str], files: Mapping[str, str]) -> None:
        """Send the status and the report."""
        self._post("end", status=status, tags=dict(tags), report=files.get("report.md", ""))

    def _post(self, kind: str, **body: object) -> str:
        data = json.dumps({"kind": kind, "run": self.key, **body}).encode()
        request = Request(self.address, data, {"Content-Type": "application/json"})
        with urlopen(request, timeout=ANSWER_TIMEOUT) as answer:
            return str(answer.read().decode())
