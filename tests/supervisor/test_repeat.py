"""`drivetrain repeat`: a run for each seed, resumed where it was stopped, and one page with mean and deviation."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path

import pytest

from runtime.cli import main
from runtime.data import fingerprint
from runtime.errors import CheckpointError
from runtime.job_spec.spec_source import SpecSource
from runtime.supervisor.repeat import RepeatRequest, _changed_data, _check_same_data, _notes
from runtime.supervisor.repeat import repeat as start
from tests import own_job
from tests.faults import trained
from tests.paths import ROOT

EPOCHS = ("--set", "train.epochs=2")


def repeat(job: Path, *options: str, expected: int = 0, **environment: str) -> str:
    command = [word if word != "train" else "repeat" for word in trained.command(job, *EPOCHS, *options)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**trained.surroundings(job), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


def test_it_is_killed_resumed_and_reported(tmp_path: Path) -> None:
    job = trained.written(tmp_path)
    runs = tmp_path / "runs"
    said = repeat(job, "--seeds", "2", expected=137, FAULT="runtime.training.loop:_advance:10:kill")
    assert "seed 0 did not finish; 0 of 2 runs are done; the same command resumes" in said
    said = repeat(job, "--seeds", "2")
    assert "run " + str(runs / "small-seed0-001") + " resumes" in said
    assert "run " + str(runs / "small-seed1-001") + " starts" in said
    folders = [runs / f"small-seed{seed}-001" for seed in (0, 1)]
    values = [trained.read(folder, "result.json")["best"]["metrics"]["validation/accuracy"] for folder in folders]
    found = trained.read(runs / "repeat-small", "repeat.json")
    assert found["metrics"]["validation/accuracy"]["values"] == values
    assert found["metrics"]["validation/accuracy"]["mean"] == pytest.approx(statistics.fmean(values))
    assert found["metrics"]["validation/accuracy"]["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert next(iter(found["metrics"])) == "validation/accuracy"
    assert [row["run"] for row in found["runs"].values()] == ["small-seed0-001", "small-seed1-001"]
    assert trained.rows(folders[0])[0] != trained.rows(folders[1])[0]
    # Another seed is added, another job begins again.
    said = repeat(job, "--seeds", "3")
    assert said.count("is done\n") == 2
    assert "| seed 2 | small-seed2-001 |" in (runs / "repeat-small" / "repeat.md").read_text()
    said = repeat(job, "--seeds", "2", "--set", "train.optimizer.lr=0.02")
    assert "is done\n" not in said
    assert "small-seed0-002 · small-seed1-002" in (runs / "repeat-small" / "repeat.md").read_text()


def test_one_seed_is_no_repetition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = trained.written(tmp_path)
    assert main.main(["repeat", str(job), "--seeds", "1"]) == 2
    assert capsys.readouterr().err == "--seeds 1\n  possible: 2 to 100\n  do:       --seeds 2\n"
    assert main.main(["repeat", str(job), "--folds", "200"]) == 2
    assert capsys.readouterr().err == "--folds 200\n  possible: 2 to 100\n  do:       --folds 100\n"
    assert main.main(["repeat", str(job), "--folds", "2", "--seeds", "2"]) == 2
    assert "--seeds and --folds together" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_unfinished_run_of_another_spec_is_refused_or_left(tmp_path: Path) -> None:
    job = trained.written(tmp_path)
    repeat(job, "--seeds", "2", expected=137, FAULT="runtime.training.loop:_advance:10:kill")
    changed = ("--seeds", "2", "--set", "train.clip_norm=0.5")
    repeat(job, *changed, expected=4)
    repeat(job, *changed, "--new")
    names = [
        row["run"] for row in json.loads((tmp_path / "runs/repeat-small/repeat.json").read_text())["runs"].values()
    ]
    assert names == ["small-seed0-002", "small-seed1-001"]


def test_every_sample_is_validated_once_in_cross_validation(tmp_path: Path) -> None:
    job = trained.written(tmp_path)
    (tmp_path / "test.npz").write_bytes((tmp_path / "images.npz").read_bytes())
    repeat(job, "--folds", "3", "--set", "data.test=test.npz")
    found = trained.read(tmp_path / "runs" / "repeat-small", "repeat.json")
    assert list(found["runs"]) == ["fold 1", "fold 2", "fold 3"]
    runs = [tmp_path / "runs" / f"small-fold{fold}of3-001" for fold in (1, 2, 3)]
    tests = [trained.read(run, "result.json")["test"]["metrics"]["test/accuracy"] for run in runs]
    assert found["metrics"]["test/accuracy"]["values"] == tests
    confusions = [trained.read(run, "result.json")["confusion"][""]["matrix"] for run in runs]
    assert [sum(map(sum, confusion)) for confusion in confusions] == [54, 53, 53]
    truth = [sum(sum(confusion[label]) for confusion in confusions) for label in range(3)]
    assert truth == [54, 53, 53]
    assert "trained on the others, with seed 0" in (tmp_path / "runs" / "repeat-small" / "repeat.md").read_text()


def test_code_of_the_user_is_repeated_with_seeds(tmp_path: Path) -> None:
    """Its data has no key `validation`, so nothing can be said about the split."""
    job = own_job.job(tmp_path)
    notes = _notes(RepeatRequest(tmp_path / "job.yaml"), job, {})
    assert notes[0] == "Each seed draws other initial weights, another order of the samples, augmentation, dropout."


def test_folds_of_data_that_is_not_split_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = trained.written(tmp_path, validation="images.npz")
    assert main.main(["validate", str(job), "--set", "data.fold=1/3"]) == 2
    assert "data.fold: is 1/3, and data.validation is the path 'images.npz'" in capsys.readouterr().err
    job = ROOT / "jobs" / "series.yaml"
    assert main.main(["validate", str(job), "--set", "data.fold=1/3"]) == 2
    text = capsys.readouterr().err
    assert "data.fold: is 1/3, and data.train is a series, whose last part is the validation data" in text


def test_runs_of_other_data_are_not_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished runs were kept, and the new seed was trained on the changed file."""
    job = SpecSource(trained.written(tmp_path), ()).load()
    file, runs = tmp_path / "images.npz", [tmp_path / "one", tmp_path / "two"]

    def record(run: Path) -> None:
        run.mkdir(exist_ok=True)
        rows = fingerprint.of(tmp_path, [file.name])
        (run / "data.json").write_text(json.dumps({"files": {"data.train": {"folder": False, "rows": rows}}}))

    for run in runs:
        record(run)
    assert not _changed_data(runs[0], job)
    _check_same_data({"seed 0": runs[0], "seed 1": runs[1]})
    file.write_bytes(file.read_bytes() + b" ")
    assert _changed_data(runs[0], job) == str(file)
    monkeypatch.setattr("runtime.supervisor.repeat._done", lambda _runs, _job: runs[0])
    monkeypatch.setattr("runtime.supervisor.repeat.supervisor.train", lambda _request: 75)
    monkeypatch.setattr("runtime.supervisor.repeat.repeated.write", lambda *_: [])
    request = RepeatRequest(tmp_path / "small.yaml", runs=tmp_path / "runs", seeds=2)
    assert start(request) == 75
    record(runs[0])
    assert start(request) == 0
    file.write_bytes(file.read_bytes() + b" ")
    record(runs[1])
    with pytest.raises(CheckpointError, match=r"one and .*two were trained with other data"):
        _check_same_data({"seed 0": runs[0], "seed 1": runs[1]})
