"""Trackers by their own clients, with a real MLflow server and the files of Weights & Biases.

    python -m pip install mlflow-skinny wandb
    python -m venv V && V/bin/pip install mlflow && DRIVETRAIN_MLFLOW=V/bin/mlflow python -m pytest -m nightly THIS_FILE

Whatever the server does, the run has the same weights and metrics as one without it, and ends as soon.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.faults import small_job
from tests.messages import says
from tests.supervisor.tiny_run import have_same_weights

MLFLOW = os.environ.get("DRIVETRAIN_MLFLOW", "")
pytestmark = pytest.mark.nightly
needs_server = pytest.mark.skipif(not MLFLOW, reason="DRIVETRAIN_MLFLOW does not name the program of an MLflow server")
MAX_DELAY = 12.0
"""Seconds: five for the end, the rest for the import of a client that has failed early; on a busy machine the run takes longer, too."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that is not tracked, and its seconds."""
    job = small_job.write_job(tmp_path_factory.mktemp("reference"))
    begin = time.monotonic()
    small_job.finish(job)
    return small_job.newest_run(job), time.monotonic() - begin


def train(home: Path, track: str, reference: tuple[Path, float], **environment: str) -> tuple[Path, str]:
    """Train with a tracker, and compare with the run without one; returns run folder and output."""
    job = small_job.write_job(home)
    begin = time.monotonic()
    output = small_job.finish(job, "--set", f"track={{{track}}}", expected=0, **environment)
    delay = time.monotonic() - begin - reference[1]
    print(f"{track}: {delay:+.1f} s after {reference[1]:.1f} s")
    run = job.parent / "runs" / "small-001"
    assert have_same_weights(reference[0], run)
    assert small_job.read_rows(run) == small_job.read_rows(reference[0])
    assert delay < max(MAX_DELAY, reference[1])
    return run, output


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serve_mlflow(home: Path, port: int) -> Iterator[Callable[[], None]]:
    """A real server; yields the function that kills it."""
    command = [MLFLOW, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{home}/store.db", "--artifacts-destination", str(home / "files")]
    with (home / "log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill() -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    try:
        end = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (OSError, urllib.error.URLError):
                assert time.monotonic() < end, (home / "log").read_text()[-2000:]
                time.sleep(1)
        yield kill
    finally:
        kill()


@contextmanager
def answer(code: int, **headers: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server with one answer for everything: its address, and the headers of what it was sent."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(dict(self.headers))
            self.send_response(code)
            for name, text in {"Content-Length": "0", **headers}.items():
                self.send_header(name, text)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    server.server_close()


@contextmanager
def hang() -> Iterator[str]:
    """A server that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@needs_server
def test_an_mlflow_server_has_every_number_once(tmp_path: Path, reference: tuple[Path, float]) -> None:
    """Also of a run that was stopped and resumed."""
    mlflow = pytest.importorskip("mlflow")
    port = find_free_port()
    address = f"http://127.0.0.1:{port}"
    with serve_mlflow(tmp_path, port):
        run, output = train(tmp_path / "whole", f"mlflow: '{address}', experiment: whole", reference)
        assert f"tracker: {address}/#/experiments/" in output
        job = small_job.write_job(tmp_path / "parts")
        options = ("--set", f"track={{mlflow: '{address}', experiment: parts}}")
        small_job.finish(job, *options, "--set", "train.max_time=2s", expected=75)
        small_job.finish(job, *options)
        client = mlflow.MlflowClient(tracking_uri=address)
        for experiment in ("whole", "parts"):
            number = client.get_experiment_by_name(experiment).experiment_id
            (record,) = client.search_runs([number])
            assert record.info.status == "FINISHED"
            assert record.data.params["train.batch_size"] == "16"
            rows = small_job.read_rows(run)
            for name in ("train/loss", "lr", "validation/loss"):
                expected = [(row["step"], row[name]) for row in rows if name in row]
                history = client.get_metric_history(record.info.run_id, name)
                assert sorted((point.step, point.value) for point in history) == expected, (experiment, name)
            names = {file.path for file in client.list_artifacts(record.info.run_id)}
            assert {"job.yaml", "plan.json", "report.html"} <= names


@needs_server
def test_an_mlflow_server_that_is_killed(tmp_path: Path, reference: tuple[Path, float]) -> None:
    pytest.importorskip("mlflow")
    port = find_free_port()
    with serve_mlflow(tmp_path, port) as kill:
        killer = threading.Timer(reference[1] / 2, kill)
        killer.start()
        _, output = train(tmp_path / "job", f"mlflow: 'http://127.0.0.1:{port}'", reference)
        killer.join()
    assert says(output, "tracker-rest-missing")


@pytest.mark.parametrize("code", [401, 500, 503])
def test_an_mlflow_server_that_refuses(tmp_path: Path, reference: tuple[Path, float], code: int) -> None:
    pytest.importorskip("mlflow")
    with answer(code) as (address, _):
        _, output = train(tmp_path, f"mlflow: '{address}'", reference)
    assert output.count("tracker: track.mlflow: ") == 2, "once, and at the end"


def test_an_mlflow_server_that_does_not_answer(tmp_path: Path, reference: tuple[Path, float]) -> None:
    pytest.importorskip("mlflow")
    with hang() as address:
        run, output = train(tmp_path / "hangs", f"mlflow: '{address}'", reference)
        assert says(output, "tracker-end-late", f"track.mlflow: {address}", "5", run)
    _, output = train(tmp_path / "gone", f"mlflow: 'http://127.0.0.1:{find_free_port()}'", reference)
    assert says(output, "tracker-rest-missing")


def test_an_mlflow_server_gets_credentials_where_the_user_names_it(
    tmp_path: Path, reference: tuple[Path, float]
) -> None:
    pytest.importorskip("mlflow")
    user = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "a password"}
    expected = f"Basic {base64.b64encode(b'me:a password').decode()}"
    with answer(500) as (theirs, their_requests), answer(302, Location=f"{theirs}/login") as (mine, requests):
        _, output = train(tmp_path / "theirs", f"mlflow: '{theirs}'", reference, **user)
        assert not their_requests
        assert says(output, "tracker-no-credentials", theirs)
        _, output = train(tmp_path / "mine", f"mlflow: '{mine}'", reference, **user, MLFLOW_TRACKING_URI=mine)
        assert {request["Authorization"] for request in requests} == {expected}
        # A redirect takes none along.
        assert [request for request in their_requests if "Authorization" in request] == []
        assert "a password" not in output


def test_wandb_offline(tmp_path: Path, reference: tuple[Path, float]) -> None:
    pytest.importorskip("wandb")
    run, output = train(tmp_path, "wandb: parts", reference, WANDB_MODE="offline")
    (folder,) = (run.parent / "wandb").glob("offline-run-*")
    assert f"tracker: wandb sync {folder}" in output
    assert "WARNING" not in output
    assert next(folder.glob("*.wandb")).stat().st_size > 10_000
    assert (folder / "files" / "report.html").read_bytes() == (run / "report.html").read_bytes()


@pytest.mark.parametrize("server", ["gone", "refuses", "hangs"])
def test_a_wandb_server_that_takes_nothing(tmp_path: Path, reference: tuple[Path, float], server: str) -> None:
    pytest.importorskip("wandb")
    with answer(401) as (refusing, _), hang() as hanging:
        address = {"gone": f"http://127.0.0.1:{find_free_port()}", "refuses": refusing, "hangs": hanging}[server]
        key = {"WANDB_API_KEY": "k" * 40, "WANDB_BASE_URL": address}
        _, output = train(tmp_path, "wandb: me/parts", reference, **key)
    assert "tracker: track.wandb: me/parts" in output
    assert "k" * 40 not in output
