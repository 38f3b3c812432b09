"""`drivetrain repeat`: a run for each seed, resumed where it was stopped, with mean and deviation.

Most tests have a trainer that only writes what a real one would.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from drivetrain.cli import main
from drivetrain.data import fingerprint
from drivetrain.errors import CheckpointError
from drivetrain.hardware import facts
from drivetrain.job_spec.spec_source import COPY_VARIABLE, SpecSource
from drivetrain.job_spec.stored_spec import spec_text
from drivetrain.job_spec.yaml_file import parse
from drivetrain.plan import plan as plans
from drivetrain.supervisor import run_folder, same_conditions
from drivetrain.system import child_process
from drivetrain.system.files import hash_file
from drivetrain.system.signals import KILLED_EXIT_CODE
from tests import own_job, tiny
from tests.faults import small_job
from tests.messages import says
from tests.paths import MACHINES, ROOT

ACCURACY = "validation/accuracy"


def repeat(job: Path, *options: str, expected: int = 0, **environment: str) -> str:
    """The command with real runs; its output."""
    command = [word if word != "train" else "repeat" for word in small_job.command(job, *options)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**small_job.make_environment(job), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def started_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the training, which then takes no time; lists the runs that it began."""
    names: list[str] = []

    def train(command: list[str], environment: dict[str, str], forward: object, *, output: int, **more: object) -> int:
        options = dict(pairwise(command))
        sets = [word for before, word in pairwise(command) if before == "--set"]
        job = SpecSource(Path(options["train"]), sets, copy=Path(environment[COPY_VARIABLE])).load()
        try:
            new_run = run_folder.open_run(Path(options["--runs"]), job, new="--new" in command)
        except CheckpointError as error:
            return error.exit_code
        os.close(new_run.lock)
        folder = new_run.path
        names.append(folder.name)
        (folder / "metrics.jsonl").write_text(f'{{"step": 1, "epoch": 0, "{ACCURACY}": 0.5}}\n')
        scores = {ACCURACY: 0.5 + job.train.seed / 8, "validation/loss": None if job.train.seed == 2 else 1.0}
        best = {"metric": ACCURACY, "value": scores[ACCURACY], "step": 1, "epoch": 0, "metrics": scores}
        (folder / "result.json").write_text(json.dumps({"best": best}))
        (folder / "state.json").write_text('{"status": "done"}')
        (folder / "inputs.json").write_text('{"files": {}}')
        replay = plans.load(Path(options["--plan"])).values() if "--plan" in command else None
        values = plans.resolve(job, tiny.machine(), replay=replay)
        (folder / "plan.json").write_text(json.dumps(values.to_json()))
        if job.train.batch_size == "auto":
            (folder / "batch_size.json").write_text(json.dumps({"batch_size": 64 * (1 + len(names))}))
        os.write(output, json.dumps({"run": str(folder)}).encode())
        return 0

    monkeypatch.setattr(child_process, "run_child", train)
    return names


def start(job: Path, *options: str) -> int:
    return main.main(["repeat", str(job), "--runs", str(job.parent / "runs"), *options])


def test_real_runs_are_killed_resumed_and_reported(tmp_path: Path) -> None:
    job = small_job.write_job(tmp_path, epochs="2")
    runs = tmp_path / "runs"
    output = repeat(job, "--seeds", "2", expected=KILLED_EXIT_CODE, FAULT="batch:10:kill")
    assert says(output, "seed-did-finish-runs", 0, 0, 2)
    output = repeat(job, "--seeds", "2")
    assert "run " + str(runs / "small-seed0-001") + " resumes" in output
    assert "run " + str(runs / "small-seed1-001") + " starts" in output
    second = "".join(output.split("seed 1:")[1].split())  # long paths are folded
    assert re.search(r"planforsmall-seed1.*from\S*/small-seed0-001/plan.json", second)
    assert "openmp_runtime" not in second, "shown once"
    folders = [runs / f"small-seed{seed}-001" for seed in (0, 1)]
    values = [small_job.read_json(folder, "result.json")["best"]["metrics"][ACCURACY] for folder in folders]
    summary = small_job.read_json(runs / "repeat-small", "repeat.json")
    assert summary["metrics"][ACCURACY]["values"] == values
    assert next(iter(summary["metrics"])) == ACCURACY
    assert small_job.read_rows(folders[0])[0] != small_job.read_rows(folders[1])[0]


def test_seeds_are_added_and_another_job_begins_again(tmp_path: Path, started_runs: list[str]) -> None:
    job, folder = small_job.write_job(tmp_path), tmp_path / "runs" / "repeat-small"
    assert start(job, "--seeds", "2") == 0
    scores = small_job.read_json(folder, "repeat.json")["metrics"][ACCURACY]
    assert scores["values"] == [0.5, 0.625]
    assert scores["mean"] == pytest.approx(statistics.fmean(scores["values"]))
    assert scores["deviation"] == pytest.approx(0.125 / 2**0.5)
    assert start(job) == 0
    assert started_runs == ["small-seed0-001", "small-seed1-001", "small-seed2-001"]
    assert small_job.read_json(folder, "repeat.json")["runs"]["seed 2"]["run"] == "small-seed2-001"
    assert start(job, "--seeds", "2", "--set", "train.optimizer.lr=0.02") == 0
    assert started_runs[3:] == ["small-seed0-002", "small-seed1-002"]


def test_a_measured_batch_size_holds_for_all_runs(tmp_path: Path, started_runs: list[str]) -> None:
    """Each run measured its own: 256, 256, 128 and 128 in one mean."""
    job = small_job.write_job(tmp_path, batch_size="auto")
    assert start(job) == 0
    train_settings = [
        parse((tmp_path / "runs" / name / "job.yaml").read_text(), "x").data["train"] for name in started_runs
    ]
    assert [train["batch_size"] for train in train_settings] == ["auto", 128, 128]
    assert start(job) == 0
    assert len(started_runs) == 3, "the same command finds them done"


def test_runs_with_other_settings_do_not_count(
    tmp_path: Path, started_runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job.write_job(tmp_path)
    assert start(job, "--seeds", "2") == 0
    path = tmp_path / "runs" / "small-seed0-001" / "plan.json"
    values = json.loads(path.read_text())
    values["decisions"] = [row | {"source": "plain"} for row in values["decisions"]]
    path.write_text(json.dumps(values))
    assert start(job, "--seeds", "2") == 0
    assert started_runs[2:] == ["small-seed0-002"]
    assert says(capsys.readouterr().out, "done-trained-plain")
    (tmp_path / "runs" / "small-seed0-002" / "ranks" / "1").mkdir(parents=True)
    assert start(job, "--seeds", "2") == 0
    assert started_runs[3:] == ["small-seed0-003"]
    assert says(capsys.readouterr().out, "done-trained-processes-now", 2, 1)


def test_a_host_with_several_gpus_trains_with_one_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no finished run would count there."""
    two = facts.read_hardware(MACHINES / "two-rtx5090-one-full.json")
    monkeypatch.setattr(same_conditions, "detect", lambda runs: two)
    job = SpecSource(small_job.write_job(tmp_path)).load()
    assert same_conditions.count_processes(job, tmp_path) == 1
    every = SpecSource(small_job.write_job(tmp_path), ["limits.gpus=all"]).load()
    assert same_conditions.count_processes(every, tmp_path) == 2


def test_runs_of_another_number_format_do_not_count(
    tmp_path: Path, started_runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job.write_job(tmp_path)
    assert start(job, "--seeds", "2") == 0
    path = tmp_path / "runs" / "small-seed1-001" / "plan.json"
    values = json.loads(path.read_text())
    next(row for row in values["decisions"] if row["name"] == "precision")["value"] = "bf16"
    path.write_text(json.dumps(values))
    assert start(job, "--seeds", "2") == 0
    assert started_runs[2:] == ["small-seed1-002"]
    decisions = json.loads((tmp_path / "runs" / started_runs[-1] / "plan.json").read_text())["decisions"]
    assert next(row["source"] for row in decisions if row["name"] == "precision") == "file", (
        "it has the plan of the first"
    )
    assert start(job, "--seeds", "2") == 0
    assert len(started_runs) == 3, "the next command does not train it again"
    assert says(capsys.readouterr().out, "trained-bf16-small-seed0")


def test_a_metric_that_is_nan_in_one_run_is_named(
    tmp_path: Path, started_runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It was left out of the table without a word."""
    job = small_job.write_job(tmp_path)
    assert start(job) == 0
    line = "validation/loss has no mean: seed 2 ended with NaN"
    assert f"warning: {line}" in capsys.readouterr().out
    folder = tmp_path / "runs" / "repeat-small"
    summary = small_job.read_json(folder, "repeat.json")
    assert list(summary["metrics"]) == [ACCURACY]


def test_one_seed_is_no_repetition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = small_job.write_job(tmp_path)
    assert main.main(["repeat", str(job), "--seeds", "1"]) == 2
    assert capsys.readouterr().err == "--seeds 1\n  possible: 2 to 100\n  do:       --seeds 2\n"
    assert main.main(["repeat", str(job), "--folds", "200"]) == 2
    assert capsys.readouterr().err == "--folds 200\n  possible: 2 to 100\n  do:       --folds 100\n"
    assert main.main(["repeat", str(job), "--folds", "2", "--seeds", "2"]) == 2
    assert "--seeds and --folds together" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_unfinished_run_of_another_spec_is_refused_or_left(tmp_path: Path, started_runs: list[str]) -> None:
    job = small_job.write_job(tmp_path)
    assert start(job, "--seeds", "2") == 0
    first = tmp_path / "runs" / "small-seed0-001"
    (first / "state.json").write_text('{"status": "stopped"}')
    (first / "checkpoints").mkdir()
    options = ("--seeds", "2", "--set", "train.clip_norm=0.5")
    assert start(job, *options) == 4
    assert start(job, *options, "--new") == 0
    assert started_runs[2:] == ["small-seed0-002", "small-seed1-002"]


def test_all_seeds_have_the_defaults_of_the_earliest_run(tmp_path: Path, started_runs: list[str]) -> None:
    job = small_job.write_job(tmp_path)
    assert start(job, "--seeds", "2") == 0
    first, third = (tmp_path / "runs" / f"small-seed{seed}-001" / "job.yaml" for seed in (0, 2))
    first.write_text(first.read_text().replace("clip_norm: 1.0", "clip_norm: 0.7"))
    assert start(job, "--seeds", "3") == 0
    assert started_runs[2:] == ["small-seed2-001"]
    assert "clip_norm: 0.7" in third.read_text()
    assert "seed: 2" in third.read_text()


def test_every_sample_is_validated_once_in_cross_validation(tmp_path: Path) -> None:
    job = small_job.write_job(tmp_path, epochs="1")
    (tmp_path / "test.npz").write_bytes((tmp_path / "images.npz").read_bytes())
    printed = repeat(job, "--folds", "2", "--set", "data.test=test.npz")
    assert re.search(r"^labels: .* of 160 ", printed, re.MULTILINE), "each label is judged once"
    summary = small_job.read_json(tmp_path / "runs" / "repeat-small", "repeat.json")
    assert list(summary["runs"]) == ["fold 1", "fold 2"]
    runs = [tmp_path / "runs" / f"small-fold{fold}of2-001" for fold in (1, 2)]
    tests = [small_job.read_json(run, "result.json")["test"]["metrics"]["test/accuracy"] for run in runs]
    assert summary["metrics"]["test/accuracy"]["values"] == tests
    confusions = [small_job.read_json(run, "result.json")["confusion"][""]["matrix"] for run in runs]
    assert [sum(map(sum, confusion)) for confusion in confusions] == [80, 80]
    assert [sum(sum(confusion[label]) for confusion in confusions) for label in range(3)] == [54, 53, 53]


def test_folds_of_data_that_is_not_split_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = small_job.write_job(tmp_path, validation="images.npz")
    assert main.main(["validate", str(job), "--set", "data.fold=1/3"]) == 2
    assert says(capsys.readouterr().err, "path-images-npz", "data.fold", "1/3", "data.validation")
    job = ROOT / "jobs" / "series.yaml"
    assert main.main(["validate", str(job), "--set", "data.fold=1/3"]) == 2
    text = capsys.readouterr().err
    assert says(text, "series-whose-last-part", "data.fold", "1/3", "data.train")


def test_runs_of_other_data_are_not_averaged(tmp_path: Path, started_runs: list[str]) -> None:
    """Finished runs were kept, and the new seed was trained on the changed file."""
    job = small_job.write_job(tmp_path)
    assert start(job, "--seeds", "2") == 0
    file, runs = tmp_path / "images.npz", [tmp_path / "runs" / f"small-seed{seed}-001" for seed in (0, 1)]

    def record(run: Path) -> None:
        rows = fingerprint.fingerprint_files(tmp_path, [file.name])
        (run / "inputs.json").write_text(json.dumps({"files": {"data.train": {"folder": False, "rows": rows}}}))

    for run in runs:
        record(run)
    assert not same_conditions.find_changed_file(runs[0], SpecSource(job, ()).load())
    same_conditions.check({"seed 0": runs[0], "seed 1": runs[1]})
    file.write_bytes(file.read_bytes() + b" ")
    record(runs[1])
    with pytest.raises(CheckpointError, match=r"seed0-001 and .*seed1-001 were trained with different data"):
        same_conditions.check({"seed 0": runs[0], "seed 1": runs[1]})
    assert start(job, "--seeds", "2") == 4  # the new run of seed 0 recorded nothing
    assert started_runs[2:] == ["small-seed0-002"]


def test_changed_code_is_trained_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was ignored: finished runs of the old code were averaged with runs of the new one."""
    job, runs = own_job.job(tmp_path), [tmp_path / "one", tmp_path / "two"]
    for run in runs:
        run.mkdir()
        (run / "job.yaml").write_text(spec_text(job))
        names = ("my_data.py", "my_model.py")
        code = {n: hash_file(tmp_path / n) for n in names}
        (run / "inputs.json").write_text(json.dumps({"files": {}, "code": code}))
        assert not same_conditions.find_changed_file(run, job)
    (tmp_path / "my_model.py").write_text(own_job.MODEL.replace("relu", "tanh"))
    assert same_conditions.find_changed_file(runs[0], job) == str(tmp_path / "my_model.py")
    code = {"my_model.py": hash_file(tmp_path / "my_model.py")}
    (runs[1] / "inputs.json").write_text(json.dumps({"files": {}, "code": code}))
    with pytest.raises(CheckpointError, match=r"one and .*two were trained with different code"):
        same_conditions.check({"seed 0": runs[0], "seed 1": runs[1]})
