"""A finished run says from what it was made, and can be made again with the same bits."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from drivetrain.cli import main
from drivetrain.supervisor import provenance, reproduce
from drivetrain.supervisor.run_folder import RunFolder
from drivetrain.supervisor.run_lifecycle import RunLifecycle
from drivetrain.system.files import hash_file
from tests.faults import small_job
from tests.messages import says

SETS = ("--set", "train.epochs=3")


@pytest.fixture(scope="module")
def finished_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job of a run that finished."""
    job = small_job.write_job(tmp_path_factory.mktemp("finished"))
    small_job.finish(job, *SETS)
    return job


def reproduce_run(run: Path) -> int:
    return main.main(["reproduce", str(run), "--runs", str(run.parent)])


def test_the_same_bits_and_where_they_differ(finished_job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = small_job.newest_run(finished_job)
    assert reproduce_run(run) == 0
    copy = run.parent / "small-reproduced-001"
    assert says(capfd.readouterr().out, "weights-metrics-bit-bit", copy, run)
    record, copied_record = (json.loads((folder / "provenance.json").read_text()) for folder in (run, copy))
    assert record | {"spec": ""} == copied_record | {"spec": ""}
    assert record["model"] == hash_file(run / "model" / "model.safetensors")
    assert list(record["data"]) == ["data.train"]
    # A run of a version that wrote no digests of batches.
    metrics_text = (run / "metrics.jsonl").read_text()
    old = [
        {name: value for name, value in json.loads(line).items() if name != "batch"}
        for line in metrics_text.splitlines()
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in old))
    assert reproduce._find_first_difference(run, copy) == ""
    (run / "metrics.jsonl").write_text(metrics_text)
    # A run that was made with another seed, as its changed record says.
    text = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    row = json.loads(text[4])
    text[4] = json.dumps(row | {"train/loss": row["train/loss"] + 1e-9}) + "\n"
    (copy / "metrics.jsonl").write_text("".join(text))
    assert reproduce._find_first_difference(run, copy).startswith("step 5: train/loss ")
    text.pop()
    (copy / "metrics.jsonl").write_text("".join(text[:4]))
    assert reproduce._find_first_difference(run, copy).startswith("step 5: ")


def test_what_cannot_be_made_again(finished_job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run, images = small_job.newest_run(finished_job), finished_job.parent / "images.npz"
    before = images.read_bytes()
    images.write_bytes(before + b"more")
    assert reproduce_run(run) == 4
    assert says(capfd.readouterr().err, "is-not-file-that-was-trained", images, run)
    images.write_bytes(before)
    state = run / "state.json"
    text = state.read_text()
    state.write_text(text.replace('"done"', '"stopped"'))
    assert reproduce_run(run) == 4
    assert says(capfd.readouterr().err, "finished-run-status-stopped")
    state.write_text(text)
    extension = {"run": "small-000", "step": 8, "epoch": 1}
    (run / "extension.json").write_text(json.dumps(extension))
    assert reproduce_run(run) == 4
    assert "drivetrain reproduce" in capfd.readouterr().err
    (run / "extension.json").unlink()


def test_what_is_no_longer_as_it_was_is_named(finished_job: Path) -> None:
    run = small_job.newest_run(finished_job)
    hardware = run / "hardware.json"
    text = hardware.read_text()
    hardware.write_text(text.replace('"version": "', '"version": "1.').replace('"avx2",', ""))
    try:
        differences = list(reproduce._list_differences(run, run.parent))
    finally:
        hardware.write_text(text)
    assert differences[0].startswith("torch was 1.")
    assert len(differences) == (2 if '"avx2",' in text else 1)


def make_repository(folder: Path) -> list[str]:
    """A folder under git with a job; the beginning of a command of git in it."""
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run([*git, "init", "-q"], check=True)
    commit_file(git, folder / "job.yaml", "name: a\n")
    return git


def commit_file(git: list[str], path: Path, text: str) -> None:
    path.write_text(text)
    subprocess.run([*git, "add", str(path)], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)


def test_what_is_committed_while_a_run_trains_is_not_what_it_was_made_of(tmp_path: Path) -> None:
    git = make_repository(tmp_path)
    (run := tmp_path / "runs" / "a-001").mkdir(parents=True)
    first = provenance.read_commit(tmp_path)
    attempt = RunLifecycle(RunFolder(run, resumes=False, lock=-1), str(tmp_path / "job.yaml"))
    commit_file(git, tmp_path / "notes.md", "later")
    attempt.end(7)
    second = RunLifecycle(RunFolder(run, resumes=True, lock=-1), str(tmp_path / "job.yaml"))
    second.end(0)
    record = json.loads((run / "provenance.json").read_text())
    assert record["commit"] == first
    assert record["later_commits"] == [provenance.read_commit(tmp_path)] != [first]
