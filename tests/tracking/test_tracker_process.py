"""The process beside a run that copies it to a tracking server: kills, signals, a server that is away."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from drivetrain.cli import main
from drivetrain.job.track import Track
from drivetrain.tracking.run_tracker import TrackerProcess, start_tracker, track_started_runs
from tests.faults import small_job
from tests.messages import says
from tests.mlflow_double import MlflowDouble, serve_mlflow
from tests.tracking.tracked_run import add_steps, list_expected, make_folder


def test_beside_a_run_whose_server_is_away_and_comes_back(tmp_path: Path) -> None:
    with serve_mlflow(MlflowDouble()) as double:
        pass
    run = make_folder(tmp_path, double.address)
    child = TrackerProcess(run, Track(mlflow=double.address))
    _wait(lambda: "training goes on" in _events(run))
    child.process.send_signal(signal.SIGINT)
    with serve_mlflow(double, int(double.address.rpartition(":")[2])):
        add_steps(run, 31, 41)
        child.finish()
    assert child.process.returncode == 0
    assert double.rows() == list_expected(run)


def test_killed_with_its_run_the_command_sends_the_rest(server: MlflowDouble, tmp_path: Path) -> None:
    run = make_folder(tmp_path, server.address)
    child = TrackerProcess(run, Track(mlflow=server.address))
    _wait(lambda: len(server.points.get("run1", ())) == 60)
    os.kill(child.process.pid, signal.SIGKILL)
    child.finish()
    add_steps(run, 31, 41)
    assert main.main(["track", str(run)]) == 0
    assert server.rows() == list_expected(run)


def test_the_rest_is_sent_although_the_user_does_not_wait(
    server: MlflowDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float | None = None) -> int:
        raise KeyboardInterrupt

    run = make_folder(tmp_path, server.address)
    child = TrackerProcess(run, Track(mlflow=server.address))
    with monkeypatch.context() as patch:
        patch.setattr(child.process, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            child.finish()
    assert child.process.wait(60) == 0
    assert server.rows() == list_expected(run)


def test_a_server_that_stays_away_is_told_at_the_end(tmp_path: Path) -> None:
    run = make_folder(tmp_path, "http://127.0.0.1:9")
    child = TrackerProcess(run, Track(mlflow="http://127.0.0.1:9"))
    _wait(lambda: "training goes on" in _events(run))  # on a busy machine it starts for longer than a stop waits
    child.finish(stopped=True)
    assert says(_events(run), "rows-were-not-sent", 30)
    assert f"`drivetrain track {run}` sends it" in _events(run)


def test_a_server_that_accepts_and_never_answers_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        run = make_folder(tmp_path, address)
        child = TrackerProcess(run, Track(mlflow=address))
        connection, _ = deaf.accept()  # the first request is in flight
        with connection:
            child.finish(stopped=True)
            assert child.process.returncode is not None
            assert "training goes on" not in _events(run), "it did not wait until its request had failed"
    assert f"`drivetrain track {run}` sends the rest" in _events(run)


def test_runs_in_a_container_are_copied_by_their_starter(
    server: MlflowDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    track = Track(mlflow=server.address, experiment="both")
    runs = [make_folder(tmp_path / name, server.address) for name in "ab"]
    with track_started_runs(track) as opened:
        for run in runs:
            opened(run)
    assert [len(points) for points in server.points.values()] == [60, 60]
    assert server.experiments == {"both": "1"}
    monkeypatch.setenv("DRIVETRAIN_TRACKER", "host")
    assert start_tracker(runs[0], track) is None


def test_a_training_with_its_tracker(server: MlflowDouble, tmp_path: Path) -> None:
    """Killed in the middle and resumed, as one run on the server."""
    job = small_job.write_job(tmp_path)
    job.write_text(job.read_text() + f"track: {{mlflow: '{server.address}', experiment: mine}}\n")
    small_job.finish(job, expected=137, FAULT="batch:12:kill")
    said = small_job.finish(job)
    run = small_job.newest_run(job)
    assert "/#/experiments/1/runs/run1" in said
    assert server.runs[server.run()]["info"]["status"] == "FINISHED"
    assert server.files["report.html"] == (run / "report.html").read_bytes()
    assert server.rows() == list_expected(run)


def _events(run: Path) -> str:
    path = run / "events.jsonl"
    return path.read_text() if path.exists() else ""


def _wait(done: object) -> None:
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)
