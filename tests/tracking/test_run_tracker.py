"""A run on a tracker: what arrives, and that nothing the tracker does delays or ends a run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from drivetrain.job.track import Track
from drivetrain.tracking import run_tracker
from drivetrain.tracking.run_tracker import RunTracker
from drivetrain.tracking.tracker import Row, RunDescription, TrackerError, check_credentials
from tests.messages import says
from tests.waiting import wait_until


class FakeTracker:
    """Keeps what it is sent; fails or hangs where a test wants it to."""

    def __init__(self, last_step: int = -1) -> None:
        self.last_step = last_step
        self.rows: list[Row] = []
        self.calls: list[str] = []
        self.ended: list[tuple[str, Mapping[str, str], Mapping[str, str]]] = []
        self.failures: list[Exception] = []
        """Each fails one call."""
        self.released = threading.Event()
        self.released.set()
        """Calls wait for it."""

    def begin(self, run: RunDescription) -> tuple[str, int]:
        self._call("begin")
        return f"there/{run.key}", self.last_step

    def log(self, rows: Sequence[Row]) -> None:
        self._call("log")
        self.rows += rows

    def end(self, status: str, tags: Mapping[str, str], files: Mapping[str, str]) -> None:
        self._call("end")
        self.ended.append((status, tags, files))

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self.released.wait()
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tracker, "POLL_SECONDS", 0.01)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "small-001"
    path.mkdir()
    (path / "job.yaml").write_text("name: small\ntrain: {epochs: 2}\nlimits: {gpus: null}\n")
    (path / "report.md").write_text("# small")
    set_status(path, "running")
    return path


def set_status(run: Path, status: str) -> None:
    (run / "state.json").write_text(json.dumps({"status": status, "key": "ab"}))


def write_rows(run: Path, first: int, last: int, *, evaluated: bool = True) -> None:
    rows: list[dict[str, object]] = [
        {"step": step, "epoch": 0, "train/loss": 1 / step, "lr": 0.1, "batch": "x"} for step in range(first, last + 1)
    ]
    rows += [{"step": last, "epoch": 0, "validation/loss": float("nan")}] if evaluated else []
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def end(tracker: RunTracker, status: str = "done") -> None:
    set_status(tracker.run, status)
    tracker.finish()
    assert not tracker.thread.is_alive()


def list_sent(client: FakeTracker) -> list[tuple[int, str]]:
    return [(row.step, name) for row in client.rows for name in row.values]


def list_expected(first: int, last: int, evaluated: Sequence[int]) -> list[tuple[int, str]]:
    expected = []
    for step in range(first, last + 1):
        expected += [(step, "train/loss"), (step, "lr")]
        expected += [(step, "validation/loss")] if step in evaluated else []
    return expected


def test_rows_arrive_at_evaluations_and_at_the_end(run: Path) -> None:
    client = FakeTracker()
    tracker = RunTracker(run, client, "fake")
    write_rows(run, 1, 3, evaluated=False)
    wait_until(lambda: len(tracker.waiting) == 3)
    assert not client.rows
    write_rows(run, 4, 5)
    wait_until(lambda: len(client.rows) == 6)
    write_rows(run, 6, 8, evaluated=False)
    end(tracker)
    assert list_sent(client) == list_expected(1, 8, [5])
    ((status, tags, files),) = client.ended
    assert (status, files["report.md"]) == ("done", "# small")
    assert tags["drivetrain.version"]
    assert client.calls.count("begin") == 1


def test_a_resumed_run_sends_what_is_missing(run: Path) -> None:
    """The last step of a stopped run waits for its evaluation, which the next attempt may do."""
    first, second = FakeTracker(), FakeTracker(last_step=5)
    tracker = RunTracker(run, first, "fake")
    write_rows(run, 1, 6, evaluated=False)
    end(tracker, "stopped")
    assert list_sent(first) == list_expected(1, 5, [])
    tracker = RunTracker(run, second, "fake")
    write_rows(run, 7, 6)
    write_rows(run, 7, 9)
    end(tracker)
    assert list_sent(second) == list_expected(6, 9, [6, 9])


def test_a_run_that_went_back_sends_no_step_twice(run: Path) -> None:
    client = FakeTracker()
    tracker = RunTracker(run, client, "fake")
    write_rows(run, 1, 6)
    wait_until(lambda: len(client.rows) == 7)
    (run / "metrics.jsonl").rename(run / "before.jsonl")
    write_rows(run, 1, 4)
    write_rows(run, 5, 8)
    end(tracker)
    assert list_sent(client) == list_expected(1, 8, [6, 8])


def test_failures_are_events_and_the_rows_come_later(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeTracker()
    client.failures = [OSError("no route"), OSError("no route"), TrackerError("refused", "a user", "log in")]
    tracker = RunTracker(run, client, "track.fake: there")
    for step in range(1, 4):
        wait_until(lambda step=step: client.calls.count("begin") == step)  # type: ignore[misc]
        write_rows(run, step, step)
    wait_until(lambda: len(client.rows) == 6)
    client.failures = [ValueError("line\nother line")]
    write_rows(run, 4, 6)
    wait_until(lambda: not client.failures)
    end(tracker)
    assert list_sent(client) == list_expected(1, 6, [1, 2, 3, 6])
    output = capsys.readouterr().out
    assert output.count("no route") == 1
    assert "do:       log in" in output
    assert says(output, "tracker-failed", "track.fake: there: line")
    assert (run / "events.jsonl").read_text().count('"tracker"') == 4


def test_a_server_gets_the_rows_that_filled_the_memory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no more rows wait in memory no evaluation is read, so that none would begin to send."""
    monkeypatch.setattr(run_tracker, "MAX_WAITING", 3)
    client = FakeTracker()
    client.failures = [OSError("no route"), OSError("no route")]
    tracker = RunTracker(run, client, "fake")
    pauses: list[float] = []
    wait = tracker.run_ended.wait

    def record_pause(seconds: float) -> bool:
        pauses.append(seconds)
        return wait(seconds)

    monkeypatch.setattr(tracker.run_ended, "wait", record_pause)
    write_rows(run, 1, 3)
    wait_until(lambda: client.calls.count("begin") >= 2)
    write_rows(run, 4, 6)
    wait_until(lambda: len(client.rows) == 8)
    assert max(pauses) == 30 * run_tracker.POLL_SECONDS
    end(tracker)
    assert list_sent(client) == list_expected(1, 6, [3, 6])


def test_a_server_that_hangs_does_not_delay_the_end(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_tracker, "FINISH_SECONDS", 0.2)
    client = FakeTracker()
    client.released.clear()
    write_rows(run, 1, 4)
    tracker = RunTracker(run, client, "fake")
    wait_until(lambda: client.calls == ["begin"])
    begin = time.monotonic()
    tracker.finish()
    assert time.monotonic() - begin < 2
    assert says(capsys.readouterr().out, "tracker-end-late", "fake", "0.2", run)
    client.released.set()
    tracker.thread.join()
    assert not client.rows


@pytest.mark.parametrize(("kind", "package"), [("mlflow", "mlflow-skinny"), ("wandb", "wandb")])
def test_a_client_that_is_missing_is_named(
    run: Path, kind: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_tracker, "find_spec", lambda name: None)
    track = Track(mlflow="http://127.0.0.1:1") if kind == "mlflow" else Track(wandb="team/parts")
    assert run_tracker.start_tracker(run, track) is None
    assert says(capsys.readouterr().out, "tracker-client-missing", kind, package)
    monkeypatch.setenv("DRIVETRAIN_IMAGE", "cpu")
    assert run_tracker.start_tracker(run, track) is None
    assert f"make image-cpu EXTRAS={kind}" in capsys.readouterr().out
    assert run_tracker.start_tracker(run, None) is None


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("http://127.0.0.1:5000", None),
        ("https://theirs.example", "https://mine.example"),
        ("https://mine.example:444", "https://mine.example"),
        ("http://mine.example", "http://mine.example"),
    ],
)
def test_a_server_that_only_the_job_names_gets_no_credentials(address: str, named: str | None) -> None:
    with pytest.raises(TrackerError) as error:
        check_credentials("track.mlflow", address, "MLFLOW_TRACKING_URI", named)
    assert says("\n".join(error.value.lines()), "tracker-no-credentials", address)


@pytest.mark.parametrize("address", ["http://127.0.0.1:5000", "https://mine.example"])
def test_the_users_own_server_may_get_them(address: str) -> None:
    check_credentials("track.mlflow", address, "MLFLOW_TRACKING_URI", f"{address}/")
