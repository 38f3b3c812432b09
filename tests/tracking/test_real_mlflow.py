"""The same promises with a real MLflow server, which is killed and comes back.

python -m venv V && V/bin/pip install mlflow && DRIVETRAIN_MLFLOW=V/bin/mlflow python -m pytest -m nightly THIS_FILE
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drivetrain.job.track import Track
from drivetrain.tracking.run_tracker import TrackerProcess, open_tracker
from tests.tracking.tracked_run import add_steps, list_expected, make_folder

MLFLOW = os.environ.get("DRIVETRAIN_MLFLOW", "")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not MLFLOW, reason="DRIVETRAIN_MLFLOW does not name the program of an MLflow server"),
]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def server(home: Path, port: int) -> Iterator[None]:
    """The server, killed at the end of the block."""
    command = [MLFLOW, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{home}/store.db", "--artifacts-destination", str(home / "files")]
    with (home / "log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (OSError, urllib.error.URLError):
                assert time.monotonic() < end, (home / "log").read_text()[-2000:]
                time.sleep(1)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def history(address: str, run: str, name: str) -> dict[int, list[str]]:
    url = f"{address}/api/2.0/mlflow/metrics/get-history?run_id={run}&metric_key={name}&max_results=20000"
    with urllib.request.urlopen(url, timeout=60) as answer:
        values: dict[int, list[str]] = {}
        for point in json.loads(answer.read())["metrics"]:
            values.setdefault(int(point["step"]), []).append(str(point["value"]))
        return values


def test_every_number_is_there_once(tmp_path: Path, port: int) -> None:
    """The server is killed while it is sent 4,000 numbers, and while nothing is sent; the copying process too."""
    address = f"http://127.0.0.1:{port}"
    run = make_folder(tmp_path, address, rows=2000)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2000, "epoch": 0, "strange": NaN}\n')
    with server(tmp_path, port):
        child = TrackerProcess(run, Track(mlflow=address))
        time.sleep(3)
    time.sleep(2)
    with server(tmp_path, port):
        time.sleep(8)
        child.process.kill()
        child.finish()
    add_steps(run, 2001, 2101)
    with server(tmp_path, port):
        with open_tracker(run, address) as copy:
            copy.read()
            copy.send()
            copy.finish()
        (identity,) = run.glob("tracker/*/run.json")
        number = json.loads(identity.read_text())["run"]
        for name in ("train/loss", "lr"):
            expected_values = {step: values for (metric, step), values in list_expected(run).items() if metric == name}
            assert history(address, number, name) == expected_values
        assert history(address, number, "strange") == {2000: ["nan"]} or history(address, number, "strange") == {
            2000: ["NaN"]
        }
    stored_specs = list((tmp_path / "files").rglob("job.yaml"))
    assert [path.read_text() for path in stored_specs] == [(run / "job.yaml").read_text()]
