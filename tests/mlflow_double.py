"""A stand-in for an MLflow server, as the real one behaves (3.17): equal points are kept once, parameters never change.

`tests/tracking/test_real_mlflow.py` holds it against the real server.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Point = tuple[str, int, int, str]
"""Name, step, milliseconds, value as text."""
Answer = tuple[int, dict[str, str], bytes]


@dataclass
class MlflowDouble:
    """What the server keeps; `fault` may answer in its place."""

    address: str = ""
    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    points: dict[str, set[Point]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Path and authorization of every request."""
    fault: Callable[[int, str], Answer | str | None] = lambda number, path: None
    """By number and path of a request: an answer; `cut before` or `cut after` it was carried out; or None."""

    def run(self) -> str:
        """The only run."""
        (run,) = self.runs
        return run

    def rows(self) -> dict[tuple[str, int], list[str]]:
        """All values of the only run by name and step."""
        values: dict[tuple[str, int], list[str]] = {}
        for name, step, _, value in sorted(self.points[self.run()]):
            values.setdefault((name, step), []).append(value)
        return values

    def carry_out(self, method: str, path: str, body: bytes) -> Answer:
        """The answer to a request."""
        where = urlsplit(path)
        if method == "PUT":
            self.files[where.path.rpartition("/artifacts/")[2]] = body
            return 200, {}, b"{}"
        name = where.path.removeprefix("/api/2.0/mlflow/").replace("/", "_").replace("-", "_")
        if not hasattr(self, name):
            return 404, {}, b"<html>"
        request = json.loads(body) if body else {key: value[0] for key, value in parse_qs(where.query).items()}
        return getattr(self, name)(request)

    def experiments_get_by_name(self, request: dict[str, Any]) -> Answer:
        number = self.experiments.get(request["experiment_name"])
        if number is None:
            return _refusal(404, "RESOURCE_DOES_NOT_EXIST", "Could not find experiment")
        stage = "deleted" if number.startswith("deleted") else "active"
        return _json({"experiment": {"experiment_id": number, "lifecycle_stage": stage}})

    def experiments_create(self, request: dict[str, Any]) -> Answer:
        if request["name"] in self.experiments:
            return _refusal(400, "RESOURCE_ALREADY_EXISTS", "it exists")
        self.experiments[request["name"]] = str(len(self.experiments) + 1)
        return _json({"experiment_id": self.experiments[request["name"]]})

    def runs_create(self, request: dict[str, Any]) -> Answer:
        number = f"run{len(self.runs) + 1}"
        info = {"run_id": number, "artifact_uri": f"mlflow-artifacts:/{request['experiment_id']}/{number}/artifacts"}
        tags = {tag["key"]: tag["value"] for tag in request["tags"]}
        self.runs[number] = {"info": info | {"run_name": request["run_name"]}, "tags": tags, "params": {}}
        self.points[number] = set()
        return _json({"run": self.runs[number]})

    def runs_search(self, request: dict[str, Any]) -> Answer:
        key = request["filter"].rpartition("= '")[2].rstrip("'")
        return _json({"runs": [run for run in self.runs.values() if run["tags"]["drivetrain.key"] == key]})

    def runs_update(self, request: dict[str, Any]) -> Answer:
        if request["run_id"] not in self.runs:
            return _refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Run with id={request['run_id']} not found")
        self.runs[request["run_id"]]["info"] |= request
        return _json({})

    def runs_log_batch(self, request: dict[str, Any]) -> Answer:
        run, metrics = self.runs[request["run_id"]], request.get("metrics", [])
        if len(metrics) > 1000 or len(request.get("params", [])) > 100 or len(request.get("tags", [])) > 100:
            return _refusal(400, "INVALID_PARAMETER_VALUE", "too many")
        for entry in request.get("params", []):
            if run["params"].setdefault(entry["key"], entry["value"]) != entry["value"]:
                return _refusal(400, "INVALID_PARAMETER_VALUE", "Changing param values is not allowed")
        run["tags"] |= {entry["key"]: entry["value"] for entry in request.get("tags", [])}
        self.points[request["run_id"]] |= {
            (entry["key"], entry["step"], entry["timestamp"], str(entry["value"])) for entry in metrics
        }
        return _json({})


def _json(value: object) -> Answer:
    return 200, {}, json.dumps(value).encode()


def _refusal(status: int, code: str, message: str) -> Answer:
    return status, {}, json.dumps({"error_code": code, "message": message}).encode()


@contextmanager
def serve_mlflow(double: MlflowDouble, port: int = 0) -> Iterator[MlflowDouble]:
    """The server, on a port of 127.0.0.1, for the time of the block."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            double.requests.append((self.path, self.headers.get("Authorization", "")))
            fault = double.fault(len(double.requests), self.path)
            if fault == "cut before":
                self.close_connection = True
                return
            status, headers, content = (
                fault if isinstance(fault, tuple) else double.carry_out(self.command, self.path, body)
            )
            if fault == "cut after":
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    double.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
