"""Run folders: numbers, resuming, locking."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from drivetrain.cli.main import main
from drivetrain.errors import Busy, CheckpointError, StorageError
from drivetrain.job import Job
from drivetrain.job_spec import load_job as job_spec
from drivetrain.supervisor import run_folder
from drivetrain.system.run_records import RunState
from tests.messages import saying, says

TEXT = "name: a\ntask: image-classification\ndata: {train: data}\n"


def job(tmp_path: Path, *assignments: str) -> Job:
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "job.yaml").write_text(TEXT)
    return job_spec.load(tmp_path / "job.yaml", assignments)


def end_run(run: run_folder.RunFolder, status: str) -> None:
    (run.path / "state.json").write_text(json.dumps({"status": status}))
    os.close(run.lock)


def test_numbers_go_up_when_runs_are_done(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for expected in ("a-001", "a-002", "a-003"):
        run = run_folder.open_run(runs, job(tmp_path))
        assert (run.path.name, run.resumes) == (expected, False)
        end_run(run, "done")


def test_a_run_can_be_read_by_its_user_alone(tmp_path: Path) -> None:
    """Its mistakes quote samples; the folder of all runs is as the umask says."""
    before = os.umask(0o022)
    try:
        end_run(run_folder.open_run(tmp_path / "runs", job(tmp_path)), "done")
        follower = run_folder.open_follower(tmp_path / "runs", job(tmp_path), 1)
        os.close(follower.lock)
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "runs", tmp_path / "runs" / "a-001", follower.path)]
    assert modes == [0o755, 0o700, 0o700]


@pytest.mark.parametrize("status", ["running", "stopped", "failed"])
def test_an_unfinished_run_resumes(tmp_path: Path, status: str) -> None:
    end_run(run_folder.open_run(tmp_path / "runs", job(tmp_path)), status)
    run = run_folder.open_run(tmp_path / "runs", job(tmp_path))
    assert (run.path.name, run.resumes) == ("a-001", True)
    os.close(run.lock)
    run = run_folder.open_run(tmp_path / "runs", job(tmp_path), new=True)
    assert (run.path.name, run.resumes) == ("a-002", False)


def test_a_changed_spec_is_refused_with_the_difference(tmp_path: Path) -> None:
    run = run_folder.open_run(tmp_path / "runs", job(tmp_path))
    (run.path / "checkpoints").mkdir()
    end_run(run, "stopped")
    with pytest.raises(CheckpointError) as caught:
        run_folder.open_run(tmp_path / "runs", job(tmp_path, "train.epochs=3"))
    text = str(caught.value)
    assert says(text, "unfinished-started-another-job", "a-001")
    assert "-  epochs: 10" in text
    assert "+  epochs: 3" in text
    assert "--new" in text


def test_a_spec_may_be_fixed_before_the_first_checkpoint(tmp_path: Path) -> None:
    """As after exit 3: the same command again, and the folder is as a new one."""
    run = run_folder.open_run(tmp_path / "runs", job(tmp_path))
    (run.path / "plan.json").write_text("{}")
    (run.path / "ranks" / "1").mkdir(parents=True)
    (run.path / "ranks" / "1" / "log.txt").write_text("")
    (run.path / ".tmp-step-1").mkdir()
    end_run(run, "failed")
    next_run = run_folder.open_run(tmp_path / "runs", job(tmp_path, "train.epochs=3"))
    assert (next_run.path, next_run.resumes) == (run.path, False)
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "job", "job.yaml"]
    assert "epochs: 3" in (run.path / "job.yaml").read_text()
    os.close(next_run.lock)


@pytest.mark.parametrize(("code", "resumes"), [(3, False), (2, False), (6, True), (9, True)])
def test_a_run_that_ended_before_its_first_step_because_of_its_data_is_replaced(
    tmp_path: Path, code: int, resumes: bool
) -> None:
    """The data was mended, the spec is the same: the next start said that it resumes."""
    run = run_folder.open_run(tmp_path / "runs", job(tmp_path))
    (run.path / "plan.json").write_text("{}")
    (run.path / "state.json").write_text(json.dumps({"status": "failed", "exit_code": code, "attempts": 1}))
    os.close(run.lock)
    next_run = run_folder.open_run(tmp_path / "runs", job(tmp_path))
    assert (next_run.path, next_run.resumes) == (run.path, resumes)
    assert (next_run.path / "plan.json").exists() == resumes
    assert RunState.read(next_run.path).attempts == int(resumes)
    os.close(next_run.lock)


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints/step-1"])
def test_a_run_that_fails_later_because_of_its_data_resumes(tmp_path: Path, name: str) -> None:
    run = run_folder.open_run(tmp_path / "runs", job(tmp_path))
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).write_text("")
    (run.path / "state.json").write_text(json.dumps({"status": "failed", "exit_code": 3}))
    os.close(run.lock)
    next_run = run_folder.open_run(tmp_path / "runs", job(tmp_path))
    assert next_run.resumes
    os.close(next_run.lock)


def test_a_stored_spec_that_is_written_otherwise_is_the_same_spec(tmp_path: Path) -> None:
    """Specs are compared as data: order, quotes and comments are no change, a value in another place is one."""
    run = run_folder.open_run(tmp_path / "runs", job(tmp_path))
    (run.path / "checkpoints").mkdir()
    stored_spec = run.path / "job.yaml"
    data = yaml.safe_load(stored_spec.read_text())
    stored_spec.write_text("# by another version\n" + json.dumps(dict(reversed(data.items()))))
    end_run(run, "stopped")
    next_run = run_folder.open_run(tmp_path / "runs", job(tmp_path))
    os.close(next_run.lock)
    assert (next_run.path, next_run.resumes) == (run.path, True)
    data["data"]["train"] += "-2"
    stored_spec.write_text(json.dumps(data))
    with pytest.raises(CheckpointError) as caught:
        run_folder.open_run(tmp_path / "runs", job(tmp_path))
    changed_lines = [line for line in str(caught.value).splitlines() if line.strip().startswith(("-  ", "+  "))]
    assert [line.split(":")[0].strip() for line in changed_lines] == ["-  train", "+  train"]


def test_files_of_the_user_stay(tmp_path: Path) -> None:
    run = run_folder.open_run(tmp_path / "runs", job(tmp_path))
    (run.path / "notes.txt").write_text("learning rate too high")
    (run.path / "code").mkdir()
    (run.path / "code" / "mine.py").write_text("x = 1")
    end_run(run, "failed")
    next_run = run_folder.open_run(tmp_path / "runs", job(tmp_path, "train.epochs=3"))
    os.close(next_run.lock)
    assert next_run.path == run.path
    assert (run.path / "notes.txt").read_text() == "learning rate too high"
    assert (run.path / "code" / "mine.py").read_text() == "x = 1"


def test_a_folder_of_the_user_is_no_run(tmp_path: Path) -> None:
    mine = tmp_path / "runs" / "a-001"
    mine.mkdir(parents=True)
    (mine / "results.csv").write_text("1")
    run = run_folder.open_run(tmp_path / "runs", job(tmp_path))
    os.close(run.lock)
    assert (run.path.name, run.resumes) == ("a-002", False)
    assert [path.name for path in mine.iterdir()] == ["results.csv"]


def test_a_run_killed_at_its_start_resumes(tmp_path: Path) -> None:
    begun = tmp_path / "runs" / "a-001"
    begun.mkdir(parents=True)
    (begun / ".job.yaml.17").write_text("na")
    run = run_folder.open_run(tmp_path / "runs", job(tmp_path))
    os.close(run.lock)
    assert (run.path, run.resumes) == (begun, True)


@pytest.mark.parametrize("assignment", ["limits.cpus=1", "checkpoint.every=epoch"])
def test_limits_and_checkpoints_may_change(tmp_path: Path, assignment: str) -> None:
    end_run(run_folder.open_run(tmp_path / "runs", job(tmp_path)), "stopped")
    assert run_folder.open_run(tmp_path / "runs", job(tmp_path, assignment)).resumes


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK], ids=errno.errorcode.get)
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """As Lustre that is mounted without them; it was taken for another process."""

    def refuse(handle: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError, check=saying("file-system-refuses-locks")) as raised:
        run_folder.open_run(tmp_path / "runs", job(tmp_path))
    assert os.strerror(number) in str(raised.value)


@pytest.mark.parametrize(
    "command",
    [
        ("train", "a.yaml", "--runs", "runs"),
        ("train", "a.yaml", "--runs", "runs", "--extend", "runs/a-001"),
        ("evaluate", "runs/a-001"),
        ("watch", "runs/a-001"),
        ("compare", "runs/a-001", "runs/a-001"),
        ("report", "runs/a-001"),
        ("export", "runs/a-001"),
        ("predict", "runs/a-001", "a.yaml"),
    ],
    ids="-".join,
)
def test_a_run_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """Its folder has mode 700, and root may look into every one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(TEXT)
    for folder in ("runs/a-001", "data"):
        (tmp_path / folder).mkdir(parents=True)

    def deny_access(function: Any) -> Any:
        def call_guarded(path: Any, *arguments: Any, **options: Any) -> Any:
            text = os.fspath(path) if isinstance(path, str | Path) else ""
            if "a-001" in text and (function is not os.stat or not text.endswith("a-001")):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), text)
            return function(path, *arguments, **options)

        return call_guarded

    for name in ("stat", "listdir", "scandir", "open"):
        monkeypatch.setattr(os, name, deny_access(getattr(os, name)))
    assert main(command) == StorageError.exit_code
    assert "Permission denied" in capsys.readouterr().err


def test_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    """Weights cannot be written into such a folder: it is said before the training, not after it."""
    with pytest.raises(StorageError, check=saying("has-bytes-that-are-not-utf")):
        run_folder.open_run(tmp_path / os.fsdecode(b"r\xe9"), job(tmp_path))


def test_a_file_of_data_whose_name_is_not_utf_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / os.fsdecode(b"dat\xe9.csv")
    path.write_text("a,b\n" + "".join(f"{i % 7},{i % 2}\n" for i in range(100)))
    assert main(["init", str(path)]) == 3
    assert says(capsys.readouterr().err, "path-is-not-utf")


def test_the_second_trainer_is_refused(tmp_path: Path) -> None:
    run_folder.open_run(tmp_path / "runs", job(tmp_path))
    with pytest.raises(Busy, check=saying("another-process-training-folder")):
        run_folder.open_run(tmp_path / "runs", job(tmp_path))


def test_names_that_start_alike_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a-b-001").mkdir(parents=True)
    (tmp_path / "runs" / "a-x").mkdir()
    assert run_folder.open_run(tmp_path / "runs", job(tmp_path)).path.name == "a-001"
