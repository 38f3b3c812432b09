"""The tracker of CONTRIBUTING.md, webhook.py, is all that another tracker needs: every number arrives, though the first answer fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from drivetrain.cli import main
from tests.faults import small_job
from tests.messages import says
from tests.paths import ROOT


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address and what it was sent; its first answer is a failure."""
    bodies: list[dict[str, Any]] = []
    count = [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            count[0] += 1
            if count[0] > 1:
                bodies.append(body)
            self.send_response(503 if count[0] == 1 else 200)
            self.end_headers()
            self.wfile.write(b"-1")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/training", bodies
    server.shutdown()
    server.server_close()


def test_the_documented_tracker_is_one_file(tmp_path: Path, receiver: tuple[str, list[dict[str, Any]]]) -> None:
    address, bodies = receiver
    shutil.copytree(
        ROOT / "runtime" / "drivetrain",
        tmp_path / "runtime" / "drivetrain",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(ROOT / "tests/docs/webhook.py", tmp_path / "runtime/drivetrain/tracking/servers")
    job = small_job.write_job(tmp_path / "job", epochs="2")
    job.write_text(job.read_text() + f"track: {{server: webhook, address: '{address}', experiment: mine}}\n")
    done = subprocess.run(
        [sys.executable, "-m", "drivetrain", "train", str(job), "--runs", str(job.parent / "runs")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}/runtime:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = small_job.newest_run(job)
    assert says(done.stdout, "tracker-failed", "HTTP Error 503: Service Unavailable")
    assert {body["run"] for body in bodies} == {json.loads((run / "state.json").read_text())["key"]}
    (beginning,) = (body for body in bodies if body["kind"] == "begin")
    assert beginning["experiment"] == "mine"
    assert beginning["parameters"]["train.epochs"] == "2"
    (end,) = (body for body in bodies if body["kind"] == "end")
    assert end["status"] == "done"
    assert end["report"] == (run / "report.md").read_text()
    sent_values = {
        (step, name): value
        for body in bodies
        if body["kind"] == "rows"
        for step, _, row in body["rows"]
        for name, value in row.items()
    }
    run_values = {
        (row["step"], name): value
        for row in small_job.read_rows(run)
        for name, value in row.items()
        if name not in ("step", "epoch", "batch")
    }
    assert sent_values == run_values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{server: webhook, address: 'http://127.0.0.1:1'}", "track.server: is 'webhook'\n  possible: mlflow: ADDRESS"),
        ("{server: mlflow}", "track.address: is missing"),
        ("{experiment: a}", "track.mlflow: is missing"),
        ("{mlflow: 'http://127.0.0.1:1', wandb: parts}", "track.wandb: is set together with mlflow"),
        ("{wandb: parts, experiment: a}", "track.experiment: is set together with wandb"),
        ("{wandb: 'https://api.wandb.ai'}", "track.wandb"),
        ("{server: mlflow, address: 'http://me:word@127.0.0.1:1'}", "track.address"),
    ],
)
def test_keys_that_name_no_server_or_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    job = small_job.write_job(tmp_path)
    job.write_text(job.read_text() + f"track: {text}\n")
    assert main.main(["validate", str(job)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "word@" not in error
