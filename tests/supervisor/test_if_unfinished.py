"""`train --if-unfinished`: a policy that restarts every container trains a finished job no second time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drivetrain.cli import arguments, commands, main
from drivetrain.errors import SpecError
from drivetrain.job_spec import load_job
from drivetrain.supervisor import run_folder, supervisor
from drivetrain.supervisor.remote_copy import remote_runs
from tests.messages import says

JOB = "name: a\ntask: image-classification\ndata: {train: data}\n"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job, and a training that only says that it began."""
    (tmp_path / "data").mkdir()
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    monkeypatch.setattr(supervisor._Supervisor, "train", lambda self: print("trains") or 0)
    return path


def start(job: Path, *options: str) -> int:
    return main.main(["train", str(job), "--runs", str(job.parent / "runs"), "--if-unfinished", *options])


@pytest.mark.parametrize(
    ("states", "options", "trains"),
    [
        ([], [], True),
        (["done"], [], False),
        (["done"], ["--set", "limits.cpus=1"], False),  # may change on a resume
        (["done"], ["--set", "train.epochs=7"], True),
        (["done", "running"], [], True),
        (["done", "failed"], [], True),
        (["failed", "done"], [], False),
    ],
)
def test_only_the_newest_run_of_the_same_job_counts(
    job: Path, states: list[str], options: list[str], trains: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load_job.load(job)
    for state in states:
        run = run_folder.open_run(job.parent / "runs", loaded, new=True)
        (run.path / "state.json").write_text(json.dumps({"status": state}))
    assert start(job, *options) == 0
    output = capsys.readouterr().out
    assert ("trains" in output) == trains
    if not trains:
        assert says(output, "done-nothing-left-train", job.parent / "runs" / f"a-{len(states):03}")


@pytest.mark.parametrize("content", ["a: [", "", None])
@pytest.mark.parametrize("name", ["job.yaml", "job/written.json"])
def test_a_run_whose_job_cannot_be_read_does_not_count(
    job: Path, name: str, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The policy trains once more, and then has a run that counts."""
    run = run_folder.open_run(job.parent / "runs", load_job.load(job), new=True)
    (run.path / "state.json").write_text(json.dumps({"status": "done"}))
    (run.path / name).write_bytes(b"\0\xff" if content is None else content.encode())
    assert start(job) == 0
    output = capsys.readouterr().out
    assert "trains" in output
    assert says(output, "done-does-not-count", run.path, name)


def test_it_excludes_new_and_several_machines(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start(job, "--new") == SpecError.exit_code
    assert says(capsys.readouterr().err, "new-if-unfinished-together")
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    assert start(job) == SpecError.exit_code
    assert says(capsys.readouterr().err, "if-unfinished-several-machines")


def test_a_container_gets_it() -> None:
    options = arguments.make_parser().parse_args(["launch", "job.yaml", "--if-unfinished"])
    assert commands.list_flags(options) == ("--if-unfinished",)


@pytest.mark.parametrize("done", [False, True])
def test_a_new_machine_asks_the_copy(job: Path, monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    """Its own runs/ is empty, and every start would train again."""
    asked: list[bool] = []

    class Copies:
        def __init__(self, *others: object) -> None:
            pass

        def fetch_last(self, *, done: bool) -> None:
            asked.append(done)

        def release(self) -> None:
            pass

    monkeypatch.setattr(remote_runs, "RemoteRuns", Copies)
    monkeypatch.setattr(remote_runs, "check_writable", lambda store: None)
    monkeypatch.setattr(remote_runs, "ObjectStore", lambda address: None)
    options = ["--if-unfinished"] if done else []
    copy = ["--set", "checkpoint.copy_to=s3://bucket/a"]
    assert main.main(["train", str(job), "--runs", str(job.parent / "runs"), *copy, *options]) == 0
    assert asked == [done]
