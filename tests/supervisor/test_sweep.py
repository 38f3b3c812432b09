"""`drivetrain sweep`: the same trials after a kill anywhere, pruning, failed trials, and what may not change in between.

Most tests have a trainer that only writes what a real one would; the last one trains.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial

from drivetrain.cli import main
from drivetrain.job_spec.load_job import load
from drivetrain.job_spec.spec_source import COPY_VARIABLE, SpecSource
from drivetrain.job_spec.stored_spec import spec_text
from drivetrain.job_spec.yaml_file import parse
from drivetrain.supervisor import same_conditions, sweep, sweep_folder
from drivetrain.system import child_process
from drivetrain.system.signals import KILLED_EXIT_CODE
from tests.faults import small_job
from tests.messages import says

JOB = """
name: kinds
task: tabular-classification
data: {train: t.csv, target: kind, validation: 0.3}
model: {name: mlp, hidden: [16]}
train: {epochs: 4, optimizer: {name: adamw}}
sweep:
  trials: 6
  seed: 1
  metric: validation/loss
  space:
    train.optimizer.lr: {low: 1e-4, high: 1.0, log: true}
    train.batch_size: {low: 8, high: 64, step: 8}
    model.dropout: {low: 0, high: 0.5}
    model.hidden: [[4], [16, 16]]
"""
METRIC = "validation/loss"


class Killed(BaseException):
    """In place of SIGKILL: nothing of ours catches it."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job whose trainer is replaced; pruning from the third trial on."""
    (tmp_path / "t.csv").write_text("x,kind\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(20)))
    path = tmp_path / "kinds.yaml"
    path.write_text(JOB)
    monkeypatch.setattr(sweep_folder, "MIN_FINISHED_TRIALS", 2)
    monkeypatch.setattr(child_process, "run_child", trainer())
    return path


def trainer(break_after: Callable[[int, int], object] = lambda number, epoch: None) -> Callable[..., int]:
    """Writes the run folder of a trial: its loss is the lower the closer the rate is to 0.01."""

    def train(
        command: list[str], environment: dict[str, str], forward: object, *, output: int, **options: object
    ) -> int:
        sets = [word for before, word in pairwise(command) if before == "--set"]
        trial = SpecSource(Path(command[4]), sets, copy=Path(environment[COPY_VARIABLE])).load()
        folder = Path(command[command.index("--runs") + 1]) / f"{trial.name}-001"
        folder.mkdir(exist_ok=True)
        (folder / "job.yaml").write_text(spec_text(trial))
        rows = []
        for epoch in range(trial.train.epochs):
            rows.append({"step": 1, "epoch": epoch, "lr": 1.0})
            rows.append({"step": 1, "epoch": epoch, METRIC: abs(trial.train.optimizer.lr - 0.01) / (epoch + 1)})
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            break_after(int(trial.name.removeprefix("trial")), epoch)
        result = {"best": {"metrics": {METRIC: rows[-1][METRIC]}}}
        (folder / "result.json").write_text(json.dumps(result))
        os.write(output, json.dumps({"run": str(folder), **result}).encode())
        (folder / "state.json").write_text('{"status": "done"}')
        if trial.train.batch_size == "auto":
            (folder / "batch_size.json").write_text('{"batch_size": 24}')
        return 0

    return train


def run(job: Path, *options: str) -> int:
    return main.main(["sweep", str(job), "--runs", str(job.parent / "runs"), *options])


def table(job: Path, number: int = 1) -> list[tuple[object, ...]]:
    """The trials in the journal of a sweep."""
    spec = load(job)
    study = sweep_folder.open_study(job.parent / "runs" / f"kinds-sweep-{number:03}", spec)
    return [(t.number, t.state.name, t.value, t.params, t.intermediate_values) for t in study.trials]


def test_killed_anywhere_it_ends_with_the_same_trials(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(job) == 0
    expected_table = table(job)
    assert [row[0] for row in expected_table] == list(range(6))
    assert {row[1] for row in expected_table} == {"COMPLETE", "PRUNED"}
    lines = len((job.parent / "runs" / "kinds-sweep-001" / "journal.jsonl").read_text().splitlines())
    append = JournalFileBackend.append_logs
    for at in range(2, lines):
        monkeypatch.setattr(JournalFileBackend, "append_logs", kill_at(at, before=at % 2 == 1))
        with pytest.raises(Killed):
            run(job, "--new")
        monkeypatch.setattr(JournalFileBackend, "append_logs", append)
        assert run(job) == 0
        newest = max(path.name for path in (job.parent / "runs").iterdir())
        assert table(job, int(newest[-3:])) == expected_table, f"killed at line {at}"


def kill_at(line: int, *, before: bool) -> Callable[[Any, list[dict[str, Any]]], None]:
    """Writes to the journal up to a line: the kill is just before or just after it is in the file."""
    append, remaining = JournalFileBackend.append_logs, line

    def write(self: Any, logs: list[dict[str, Any]]) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining or not before:
            append(self, logs)
        if remaining == 0:
            raise Killed

    return write


def test_killed_in_a_training_or_half_way_through_a_line(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(job) == 0
    expected_table = table(job)
    kills = {(1, 2), (3, 0), (5, 3)}

    def kill(number: int, epoch: int) -> None:
        if (number, epoch) in kills:
            kills.remove((number, epoch))
            raise Killed

    monkeypatch.setattr(child_process, "run_child", trainer(kill))
    for options in (("--new",), (), ()):
        with pytest.raises(Killed):
            run(job, *options)
        with (job.parent / "runs" / "kinds-sweep-002" / "journal.jsonl").open("a") as file:
            file.write('{"op_code":4,"worker')
    assert run(job) == 0
    assert table(job, 2) == expected_table


@pytest.mark.parametrize("line", ["5", "null", "[1]", '"x"', "{", "{}"])
def test_a_journal_that_is_damaged(job: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert run(job, "--set", "sweep.trials=1") == 0
    journal = job.parent / "runs" / "kinds-sweep-001" / "journal.jsonl"
    journal.write_text(f"{line}\n{journal.read_text()}")
    assert run(job, "--set", "sweep.trials=2") == 4
    assert says(capsys.readouterr().err, "journal-is-damaged", journal)


def test_later_trials_have_the_defaults_that_the_sweep_began_with(job: Path) -> None:
    assert run(job, "--set", "sweep.trials=3") == 0
    folder = job.parent / "runs" / "kinds-sweep-001"
    spec = (folder / "sweep.yaml").read_text()
    assert spec.count("clip_norm: 1.0") == 1
    (folder / "sweep.yaml").write_text(spec.replace("clip_norm: 1.0", "clip_norm: 0.7"))
    assert run(job, "--set", "sweep.trials=5") == 0
    assert "clip_norm: 0.7" in (folder / "trial4-001" / "job.yaml").read_text()
    assert "clip_norm: 0.7" in (folder / "sweep.yaml").read_text()


def test_more_trials_go_on_and_another_job_does_not(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(job, "--set", "sweep.trials=3") == 0
    assert run(job, "--set", "sweep.trials=5") == 0
    assert "continues: 3 of 5 trials are done" in capsys.readouterr().out
    assert run(job, "--set", "sweep.trials=2") == 0  # nothing is left to do
    assert len(table(job)) == 5
    job.write_text(JOB.replace("high: 0.5", "high: 0.4"))
    assert run(job) == 0
    assert says(capsys.readouterr().out, "finished-job-data-code")
    assert len(table(job, 2)) == 6


def test_what_may_not_change_while_a_sweep_is_unfinished(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "run_child", lambda *arguments, **options: KILLED_EXIT_CODE)
    assert run(job) == KILLED_EXIT_CODE
    assert says(capsys.readouterr().out, "trials-done-same-command", 0, 6)
    monkeypatch.setattr(child_process, "run_child", trainer())
    with monkeypatch.context() as patched:
        patched.setattr(same_conditions, "count_processes", lambda *_: 2)
        assert run(job) == 4
    assert says(capsys.readouterr().err, "started-with-processes", 1, 2)
    job.write_text(JOB.replace("high: 0.5", "high: 0.4"))
    assert run(job) == 4
    output = capsys.readouterr().err
    assert says(output, "unfinished-changed-since-started", "kinds-sweep-001")
    assert "-      high: 0.5" in output
    assert says(output, "begin-new-sweep-new")
    assert run(job, "--new") == 0


def test_changed_data_are_refused(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(job, "--set", "sweep.trials=2") == 0
    for trial_folder in (job.parent / "runs" / "kinds-sweep-001").glob("trial*"):
        row = {"data.train": {"folder": False, "rows": {"t.csv": "1 2 3 4 0000"}}}
        (trial_folder / "inputs.json").write_text(json.dumps({"files": row}))
    monkeypatch.setattr(child_process, "run_child", lambda *arguments, **options: KILLED_EXIT_CODE)
    spec = job.parent / "runs" / "kinds-sweep-001" / "sweep.yaml"
    spec.write_text(spec.read_text().replace("trials: 2", "trials: 6"))
    assert run(job) == 4
    assert says(capsys.readouterr().err, "was-changed-or-deleted", job.parent / "t.csv")


def test_values_that_the_rules_refuse_together_fail_their_trial(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """momentum is valid beside sgd, which the job has, and not beside adamw."""
    job.write_text(
        JOB.replace("{name: adamw}", "{name: sgd}").replace(
            "    model.hidden: [[4], [16, 16]]\n",
            "    train.optimizer.name: [sgd, adamw]\n    train.optimizer.momentum: {low: 0.5, high: 0.9}\n",
        )
    )
    assert run(job) == 0
    states = {(row[1], row[3]["train.optimizer.name"]) for row in table(job)}
    assert ("FAIL", "adamw") in states
    assert ("FAIL", "sgd") not in states
    assert "failed: --set train.optimizer.momentum=" in capsys.readouterr().out


def test_exit_codes(job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that are not finite are a result; missing data are not."""
    codes = iter([5, 6, 3])
    monkeypatch.setattr(child_process, "run_child", lambda *given, **more: next(codes))
    assert run(job) == 3
    assert [row[1] for row in table(job)] == ["FAIL", "FAIL"]
    assert says(capsys.readouterr().out, "trial-failed-exit-code", 0, 5)
    monkeypatch.setattr(sweep, "find_spec", lambda name: None)
    assert run(job) == 9
    assert says(capsys.readouterr().err, "optuna-is-not-installed-here")
    job.write_text(JOB[: JOB.index("sweep:")])
    assert run(job) == 2
    assert "sweep: is missing" in capsys.readouterr().err


def test_the_table_and_the_best_job(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(job, "--set", "train.clip_norm=2") == 0
    output = capsys.readouterr().out
    done = [row for row in table(job) if row[1] == "COMPLETE"]
    number, _, _, values, _ = min(done, key=lambda row: float(str(row[2])))
    folder = job.parent / "runs" / "kinds-sweep-001"
    assert says(output, "sweep-best-trial-job", number, folder / "best.yaml", job)
    assert "--set train.clip_norm=2" in output.splitlines()[-1]
    lines = [line.split(":")[0].split()[:2] for line in output.splitlines() if line.startswith("  trial ")]
    assert lines[0] == ["trial", str(number)]
    assert len(lines) == 6
    best_spec = load(folder / "best.yaml")
    assert isinstance(values, dict)
    assert (best_spec.train.clip_norm, best_spec.train.optimizer.lr) == (2, values["train.optimizer.lr"])
    assert best_spec.resolve(best_spec.data.train).exists()
    assert best_spec.sweep is None
    assert not (folder / "job.yaml").exists()  # it would be a run


def test_a_batch_size_that_the_first_trial_has_measured_holds_for_all(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.write_text(
        JOB.replace("    train.batch_size: {low: 8, high: 64, step: 8}\n", "").replace(
            "epochs: 4,", "epochs: 4, batch_size: auto,"
        )
    )
    assert run(job) == 0
    folder = job.parent / "runs" / "kinds-sweep-001"
    sizes = [
        parse((folder / f"trial{number}-001" / "job.yaml").read_text(), "x").data["train"]["batch_size"]
        for number in range(6)
    ]
    assert sizes == ["auto", 24, 24, 24, 24, 24]
    assert load(folder / "best.yaml").train.batch_size == 24
    assert "--set train.batch_size=24" in capsys.readouterr().out.splitlines()[-1]


def test_a_batch_size_is_that_of_the_first_trial_that_has_one(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trial 0 may fail before it has measured; every later one then measured its own."""
    job.write_text(
        JOB.replace("    train.batch_size: {low: 8, high: 64, step: 8}\n", "").replace(
            "epochs: 4,", "epochs: 4, batch_size: auto,"
        )
    )

    train = trainer()

    def without_first(command: list[str], *arguments: Any, **options: Any) -> int:
        code = train(command, *arguments, **options)
        (job.parent / "runs" / "kinds-sweep-001" / "trial0-001" / "batch_size.json").unlink(missing_ok=True)
        return code

    monkeypatch.setattr(child_process, "run_child", without_first)
    assert run(job) == 0
    folder = job.parent / "runs" / "kinds-sweep-001"
    texts = [(folder / f"trial{number}-001" / "job.yaml").read_text() for number in range(6)]
    assert [parse(text, "x").data["train"]["batch_size"] for text in texts] == ["auto", "auto", 24, 24, 24, 24]


def test_trials_of_another_number_of_processes_are_another_sweep(job: Path) -> None:
    assert run(job, "--set", "sweep.trials=2") == 0
    assert run(job, "--set", "sweep.trials=4", "--set", "limits.processes=2") == 0
    assert (len(table(job)), len(table(job, 2))) == (2, 4)
    assert run(job, "--set", "sweep.trials=4") == 0
    assert len(table(job, 3)) == 4


def test_a_real_trial_is_ended_the_way_a_stop_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    job = small_job.write_job(tmp_path)
    with job.open("a") as file:
        file.write("sweep: {trials: 1, space: {train.optimizer.lr: {low: 1e-3, high: 1e-2, log: true}}}\n")
    monkeypatch.setattr(Trial, "should_prune", lambda self: True)
    assert main.main(["sweep", str(job), "--runs", str(tmp_path / "runs")]) == 1
    output = capfd.readouterr().out
    assert says(output, "trial-ended-early-after", 0, 1)
    assert says(output, "sweep-none-of-trials-done", 1)
    folder = tmp_path / "runs" / "small-sweep-001" / "trial0-001"
    assert small_job.read_json(folder, "state.json")["status"] == "stopped"
    assert 8 <= int(small_job.last_checkpoint(folder).name.removeprefix("step-")) < 200
