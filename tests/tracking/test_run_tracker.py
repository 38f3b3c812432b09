"""The copy of a run on a tracking server: every number is there, once, whatever failed in between."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from drivetrain.cli import main
from drivetrain.errors import Busy
from drivetrain.tracking import run_tracker
from drivetrain.tracking.run_tracker import open_tracker
from drivetrain.tracking.servers import mlflow
from drivetrain.tracking.tracker import TrackerError
from tests.messages import saying, says
from tests.mlflow_double import Answer, MlflowDouble, serve_mlflow
from tests.tracking.tracked_run import add_steps, copy_once, list_expected, make_folder


@pytest.fixture
def exit_stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_what_a_server_shows(server: MlflowDouble, tmp_path: Path) -> None:
    run = make_folder(tmp_path, server.address)
    (run / "report.html").write_text("the report")
    (run / "state.json").write_text(
        json.dumps({"status": "done", "started": "2026-11-23T10:00:00+00:00", "ended": "2026-11-23T10:01:00+00:00"})
    )
    copy_once(run, server.address)
    server_run = server.runs["run1"]
    assert server.experiments == {"small": "1"}
    assert server_run["info"] | {"artifact_uri": ""} == {
        "run_id": "run1",
        "artifact_uri": "",
        "run_name": "small-001",
        "status": "FINISHED",
        "end_time": 1795428060000,
    }
    assert server_run["params"]["train.epochs"] == "2"
    assert "limits.gpus" not in server_run["params"]
    assert server_run["tags"]["plan.precision"] == "bf16 (measured: 1.4x)"
    assert server.files["report.html"] == b"the report"
    assert {"job.yaml", "plan.json"} < server.files.keys()
    assert server.rows() == list_expected(run)


@pytest.mark.parametrize("kind", ["cut before", "cut after", "503"])
def test_every_number_is_there_once_whatever_request_fails(server: MlflowDouble, tmp_path: Path, kind: str) -> None:
    """Each request in turn is the one that fails, and its process ends; the next process goes on."""
    run = make_folder(tmp_path, server.address)
    failures = []
    for failing in range(1, 12):
        server.requests.clear()
        answer: Answer | str = (503, {}, b"busy") if kind == "503" else kind
        server.fault = lambda number, path, failing=failing, answer=answer: answer if number == failing else None
        try:
            copy_once(run, server.address, most=7)
        except TrackerError as error:
            failures.append(error.passing)
        add_steps(run, 20 * failing + 11, 20 * failing + 31)
    assert len(failures) > 8
    assert all(failures)
    copy_once(run, server.address)
    assert len(server.runs) == 1
    assert server.rows() == list_expected(run)


def test_a_server_that_is_slow_gets_fewer_numbers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the same 1,000 numbers would be sent for ever to a server that takes longer for them than we wait."""

    class Slow(MlflowDouble):
        def runs_log_batch(self, request: dict[str, Any]) -> Answer:
            time.sleep(0.002 * len(request.get("metrics", [])))
            return super().runs_log_batch(request)

    monkeypatch.setattr(mlflow, "REQUEST_TIMEOUT", 1.0)
    with serve_mlflow(Slow()) as slow:
        run = make_folder(tmp_path, slow.address, rows=550)
        assert main.main(["track", str(run)]) == 0
        assert slow.rows() == list_expected(run)


def test_from_what_a_run_was_made(server: MlflowDouble, tmp_path: Path) -> None:
    run = make_folder(tmp_path, server.address)
    (run / "model-card.md").write_text("the card")
    state = {"status": "done", "started": "2026-11-23T10:00:00+00:00", "commits": ["c0ffee-changed"]}
    (run / "state.json").write_text(json.dumps(state))
    record = {"image": {"name": "cpu", "id": "sha256:1"}, "data": {"data.train": "d1"}, "spec": "s1", "model": "m1"}
    (run / "provenance.json").write_text(json.dumps(record))
    copy_once(run, server.address)
    tags = server.runs["run1"]["tags"]
    assert {key: tags[key] for key in tags if key.startswith("made_from")} == {
        "made_from.commit": "c0ffee-changed",
        "made_from.image": "sha256:1",
        "made_from.data.train": "d1",
        "made_from.spec": "s1",
        "made_from.model": "m1",
    }
    assert tags["mlflow.source.git.commit"] == "c0ffee"
    assert {"provenance.json", "model-card.md"} < server.files.keys()


def test_steps_that_are_trained_again(server: MlflowDouble, tmp_path: Path, exit_stack: ExitStack) -> None:
    """A resume removes rows and writes them again: the same ones are not sent again, others are."""
    run = make_folder(tmp_path, server.address)
    tracker = exit_stack.enter_context(open_tracker(run, server.address))
    for first, shift in ((21, 0.0), (26, 0.5)):
        tracker.read()
        tracker.send()
        kept_lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)[: first - 1]
        beside_it = run / "other"
        beside_it.write_text("".join(kept_lines))
        beside_it.replace(run / "metrics.jsonl")
        tracker.read()
        add_steps(run, first, 31, shift)
    tracker.read()
    tracker.send()
    server_rows = server.rows()
    assert {key: values[-1:] for key, values in server_rows.items()} == list_expected(run) | {
        ("train/loss", step): [str(max(1 / step, 1 / step + 0.5))] for step in range(26, 31)
    }
    assert [len(server_rows["train/loss", step]) for step in range(1, 31)] == [1] * 25 + [2] * 5


def test_steps_that_are_trained_again_while_the_server_is_away(
    server: MlflowDouble, tmp_path: Path, exit_stack: ExitStack
) -> None:
    """Rows that waited and were removed are not sent, and those that stayed are sent once."""
    run = make_folder(tmp_path, server.address)
    tracker = exit_stack.enter_context(open_tracker(run, server.address))
    tracker.tracker.most = 7
    server.fault = lambda number, path: (503, {}, b"busy")
    tracker.read()
    with pytest.raises(TrackerError):
        tracker.send()
    kept_lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)[:20]
    (run / "other").write_text("".join(kept_lines))
    (run / "other").replace(run / "metrics.jsonl")
    add_steps(run, 21, 31, 0.5)
    server.fault = lambda number, path: None
    tracker.read()
    tracker.send()
    assert server.rows() == list_expected(run)


def test_a_line_that_is_not_complete_and_numbers_that_are_none(server: MlflowDouble, tmp_path: Path) -> None:
    run = make_folder(tmp_path, server.address, rows=1)
    values = {"nan": math.nan, "high": math.inf, "low": -math.inf, "a(b)": 1.0, "text": "x", "yes": True}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "epoch": 0, **values}) + "\nnonsense\n" + '{"step": 3, "epoch": 0, "trai')
    copy_once(run, server.address)
    assert {key: values for key, values in server.rows().items() if key[1] > 1} == {
        ("nan", 2): ["NaN"],
        ("high", 2): ["Infinity"],
        ("low", 2): ["-Infinity"],
        ("a_b_", 2): ["1.0"],
    }


def test_a_journal_that_a_crash_cut_off(server: MlflowDouble, tmp_path: Path) -> None:
    run = make_folder(tmp_path, server.address)
    copy_once(run, server.address)
    (journal,) = run.glob("tracker/*/sent.jsonl")
    journal.write_text(journal.read_text()[:-9])  # within the last confirmation
    add_steps(run, 31, 40)
    copy_once(run, server.address)
    assert server.rows() == list_expected(run)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, {}, b"no"), "answers 401: it wants a user or a token"),
        ((403, {}, b"no"), "MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        ((404, {}, b"<html>"), "is no MLflow server"),
        ((200, {}, b"<html>"), "is no MLflow server"),
        ((302, {"Location": "https://login.example/"}, b""), "redirects to another address"),
        ((500, {}, b'{"message": "database is locked"}'), "answers 500: database is locked"),
        ((500, {}, b"[1]"), "answers 500\n"),
    ],
)
def test_what_a_server_refuses(
    server: MlflowDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: Answer, message: str
) -> None:
    run = make_folder(tmp_path, server.address)
    server.fault = lambda number, path: answer
    assert main.main(["track", str(run)]) == 7
    text = capsys.readouterr().err
    assert message in text
    assert "  possible: " in text


def test_an_experiment_that_was_deleted_and_a_run_that_was(
    server: MlflowDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_folder(tmp_path, server.address)
    server.experiments["small"] = "deleted"
    assert main.main(["track", str(run)]) == 7
    assert says(capsys.readouterr().err, "small-is-deleted-on")
    assert main.main(["track", str(run), "--mlflow", server.address, "--experiment", "other"]) == 0
    assert "tracker: 30 rows sent" in capsys.readouterr().out
    server.runs.clear()
    assert main.main(["track", str(run)]) == 7
    assert says(capsys.readouterr().err, "begin-new-run-server")


ODD = [
    "{}",
    "[]",
    "null",
    "1",
    '{"experiment": []}',
    '{"experiment": {"experiment_id": {}}}',
    '{"runs": {}}',
    "[" * 100_000,
]


@pytest.mark.parametrize("body", ODD, ids=lambda body: body[:30])
@pytest.mark.parametrize("request_", ["get-by-name", "experiments/create", "runs/search", "runs/create"])
def test_answers_that_no_server_gives(
    server: MlflowDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str], request_: str, body: str
) -> None:
    run = make_folder(tmp_path, server.address)
    server.fault = lambda number, path: (200, {}, body.encode()) if request_ in path else None
    code = main.main(["track", str(run)])
    # No runs are an answer to a search, and no experiment one to its creation if it is there.
    assert code == 7 or request_ == "experiments/create" or (request_, body[:1]) == ("runs/search", "{")
    if code:
        text = capsys.readouterr().err
        assert says(text, "mlflow-server-possible")
        assert "  do:       " in text


def test_a_refusal_that_is_nested_too_deeply(
    server: MlflowDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_folder(tmp_path, server.address)
    server.fault = lambda number, path: (403, {}, b"[" * 100_000)
    assert main.main(["track", str(run)]) == 7
    assert "answers 403" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["plan.json", "state.json", "hardware.json", "result.json", "provenance.json"])
@pytest.mark.parametrize("value", [1, "x", [1], {"a": 1}], ids=["number", "text", "list", "object"])
def test_a_run_folder_with_values_of_another_kind(
    server: MlflowDouble, tmp_path: Path, name: str, value: object
) -> None:
    run = make_folder(tmp_path, server.address)
    keys = ("decisions", "cpu", "best", "image", "data", "commits", "started", "ended", "status")
    (run / name).write_text(json.dumps(dict.fromkeys(keys, value)))
    assert main.main(["track", str(run)]) == 0


@pytest.mark.parametrize("identity_text", ["[1]", '{"run": 3}', '{"run": "r"}', '{"key": ["a"]}'])
def test_a_run_folder_that_knows_its_copy_wrongly(server: MlflowDouble, tmp_path: Path, identity_text: str) -> None:
    run = make_folder(tmp_path, server.address)
    assert main.main(["track", str(run)]) == 0
    (identity,) = run.glob("tracker/*/run.json")
    identity.write_text(identity_text)
    assert main.main(["track", str(run)]) in (0, 7)


@pytest.mark.parametrize("key", ["a" * 32, "' OR tags.x = '", ""], ids=["other", "quote", "none"])
def test_a_run_that_another_folder_began_is_not_written(server: MlflowDouble, tmp_path: Path, key: str) -> None:
    """A stranger's folder could name any run of the server, and its files another place."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").mkdir()
    assert main.main(["track", str(make_folder(tmp_path / "mine", server.address))]) == 0
    before = json.dumps(server.runs), dict(server.files)
    theirs = make_folder(tmp_path / "theirs", server.address)
    server.fault = lambda number, path: (500, {}, b"{}")
    assert main.main(["track", str(theirs)]) == 7
    server.fault = lambda number, path: None
    (identity,) = {path.parent / "run.json" for path in theirs.glob("tracker/*/*")}
    files_address = "mlflow-artifacts:/1/run1/artifacts"
    identity.write_text(json.dumps({"key": key, "experiment": "1", "run": server.run(), "files": files_address}))
    assert main.main(["track", str(theirs)]) == 7
    assert (json.dumps(server.runs), dict(server.files)) == before


def test_one_process_copies_a_run(
    server: MlflowDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_stack: ExitStack
) -> None:
    """Two would make two runs on the server, and number their batches alike."""
    monkeypatch.setattr(run_tracker, "LOCK_SECONDS", 0.1)
    run = make_folder(tmp_path, server.address)
    exit_stack.enter_context(open_tracker(run, server.address))
    with pytest.raises(Busy, check=saying("another-process-copies-run")):
        exit_stack.enter_context(open_tracker(run, server.address))
    exit_stack.close()
    copy_once(run, server.address)


def test_more_numbers_in_a_row_than_a_request_takes(server: MlflowDouble, tmp_path: Path) -> None:
    run = make_folder(tmp_path, server.address, rows=1)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "epoch": 0, **{f"class/{number}": 0.5 for number in range(1203)}}) + "\n")
    copy_once(run, server.address)
    assert server.rows() == list_expected(run)
