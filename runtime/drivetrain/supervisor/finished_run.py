"""A finished run that another one may continue: its spec, the checkpoint at its end, and what continuing it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.errors import CheckpointError, DrivetrainError, SpecError
from drivetrain.job import Job
from drivetrain.job import extension as records
from drivetrain.job.extension import Extension
from drivetrain.job.formatting import format_value
from drivetrain.job.train import EarlyStopping
from drivetrain.job_spec.yaml_file import parse
from drivetrain.supervisor import run_folder
from drivetrain.supervisor.spec_difference import FREE, difference, load_stored_job
from drivetrain.system.console import say
from drivetrain.system.files import parse_json
from drivetrain.system.run_files import JOB_FILE, RunFiles
from drivetrain.training.checkpoints.manifest import is_divided, list_files, verify

MAY_CHANGE = (
    *FREE,
    "name",
    "train.epochs",
    "train.steps",
    "train.schedule",
    "train.early_stopping",
    "train.optimizer.lr",
)
"""Keys that may differ from those of the finished run."""
FALLING_SCHEDULES = ("one-cycle", "cosine", "linear")
"""Schedules whose rate depends on the length of the run."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, checked against the job that continues it."""

    path: Path
    job: Job
    """What it was trained with."""
    checkpoint: Path
    state: dict[str, Any]
    """Of the checkpoint."""

    @property
    def step(self) -> int:
        """Optimizer steps of the checkpoint."""
        return int(self.state["counters"]["step"])

    @property
    def epochs(self) -> int:
        """Whole epochs of the checkpoint; one that `train.steps` ended is not whole."""
        return int(self.state["counters"]["epoch"]) - self.within_epoch()

    def within_epoch(self) -> bool:
        """Whether `train.steps` ended the run within an epoch."""
        ahead = RunFiles(self.path).read_json("progress.json")
        epoch_steps = ahead.get("steps_per_epoch") if isinstance(ahead, dict) else None
        ended = self.job.train.steps is not None and self.step >= self.job.train.steps
        return ended and not (isinstance(epoch_steps, int) and epoch_steps > 0 and self.step % epoch_steps == 0)


def find(path: Path, job: Job) -> FinishedRun:
    """The finished run of a folder.

    Raises:
        CheckpointError: if it has not finished, was trained with another job, or has no checkpoint to continue from.
        SpecError: if its stored spec is damaged.
    """
    if not (path / JOB_FILE).is_file():
        raise CheckpointError(
            f"{path} has no job.yaml, so it is no run folder",
            "a finished run: its folder holds job.yaml, state.json and checkpoints/",
            "name a folder that `drivetrain train` created; model: {from: FOLDER} starts from a model alone",
        )
    _check_finished(path)
    lines = difference(path, job, MAY_CHANGE, path.name)
    before = None if lines else load_stored_job(path, job)
    if before is None:
        raise CheckpointError(
            f"{path} was trained with another job file:\n" + "\n".join(f"    {line}" for line in lines),
            f"other values of {', '.join(MAY_CHANGE)}",
            "undo the change, or train without --extend; model: {from: FOLDER} starts a new training from its model",
        )
    checkpoint = _checkpoint(path)
    return FinishedRun(path, before, checkpoint, parse_json(RunFiles(checkpoint).read_text("state.json")))


def _check_finished(path: Path) -> None:
    status = run_folder.status(path)
    if status == "done":
        return
    try:
        epochs = parse(RunFiles(path).read_text(JOB_FILE), JOB_FILE).data["train"]["epochs"]
        action = f"train it to its end first: the same command without --extend, with --set train.epochs={int(epochs)}"
    except (DrivetrainError, LookupError, TypeError, ValueError):
        action = "train it to its end first: `drivetrain train JOB` resumes it"
    raise CheckpointError(
        f"{path} is unfinished (status: {status or 'not recorded'})",
        "--extend continues a finished run",
        action,
    )


def _checkpoint(path: Path) -> Path:
    """The newest checkpoint that verifies and holds what training needs."""
    candidates = sorted((path / "checkpoints").glob("step-*"), key=_number, reverse=True)
    wrong: list[str] = []
    for candidate in candidates:
        problem = verify(candidate)
        if problem is None and not is_divided(candidate) and "optimizer.safetensors" not in list_files(candidate):
            problem = "it has weights but no optimizer state"
        if problem is None:
            for line in wrong:
                say(f"{line}; continuing from {candidate.name}")
            return candidate
        wrong.append(f"checkpoint {candidate.name} cannot be used: {problem}")
    raise CheckpointError(
        "\n  ".join([f"{path} has no checkpoint to continue from", *wrong]),
        "a run whose checkpoints/ still holds its last step-... folder, as it was written",
        f"restore it; or start a new training from its model: model: {{from: {path}}}",
    )


def _number(path: Path) -> int:
    number = path.name.removeprefix("step-")
    return int(number) if number.isdigit() else -1


def decide(done: FinishedRun, job: Job, *, restart: bool) -> Extension:
    """How the job continues the finished run.

    Args:
        done: the finished run.
        job: the present spec.
        restart: whether --restart-schedule was given.

    Raises:
        SpecError: if nothing is left to train, or the schedule has come to its end.
    """
    _check_length(done, job)
    _check_solved(done, job)
    _check_stopping(done, job)
    restarts = _restarts(done, job, restart)
    before = records.read(done.path)
    origin = done.step if restarts else before.origin if before else 0
    name = done.path.resolve().name
    return Extension(name, done.step, done.epochs, "restarts" if restarts else "continues", origin)


def _check_solved(done: FinishedRun, job: Job) -> None:
    """Refuse more epochs for solved outputs: their loss has no smaller value."""
    if done.state.get("counters", {}).get("solved") and not getattr(getattr(job, "model", None), "unfreeze", ()):
        raise SpecError(
            [
                job.problem(
                    ("train", "epochs"),
                    f"more of them change nothing: the outputs of {done.path} are solved, and all else is frozen",
                    "a run that trains by steps",
                    f"start from its model: model: {{from: {done.path}}}, with less frozen, or with train.solve_heads: false",
                )
            ]
        )


def _check_length(done: FinishedRun, job: Job) -> None:
    train = job.train
    if train.epochs <= done.epochs:
        raise SpecError(
            [
                job.problem(
                    ("train", "epochs"),
                    f"is {train.epochs}, and {done.path} has trained {_count(done.epochs, 'epoch')}",
                    f"more than {done.epochs}: the epochs of both runs together",
                    f"such as --set train.epochs={2 * max(1, done.epochs)}",
                )
            ]
        )
    if train.steps is not None and train.steps <= done.step:
        raise SpecError(
            [
                job.problem(
                    ("train", "steps"),
                    f"is {train.steps}, and {done.path} has trained {_count(done.step, 'step')}",
                    f"more than {done.step}: the steps of both runs together; or null for no limit but train.epochs",
                    f"such as --set train.steps={2 * done.step}",
                )
            ]
        )


def _check_stopping(done: FinishedRun, job: Job) -> None:
    stopping, counted = job.train.early_stopping, _keep_count(done, job)
    if stopping and counted and counted["waited"] >= stopping.patience:
        raise SpecError(
            [
                job.problem(
                    ("train", "early_stopping", "patience"),
                    f"is {stopping.patience}, and {stopping.metric} has not improved for "
                    f"{_count(counted['waited'], 'evaluation')} of {done.path}, so training would end at once",
                    "a larger patience, or no early stopping",
                    f"such as --set train.early_stopping.patience={2 * counted['waited']}, or "
                    "--set train.early_stopping=null",
                )
            ]
        )


def _restarts(done: FinishedRun, job: Job, restart: bool) -> bool:
    """Whether the schedule starts again."""
    schedule = job.train.schedule
    if schedule != done.job.train.schedule:
        return True
    if restart and schedule.name == "constant":
        raise SpecError(
            "--restart-schedule, and train.schedule is constant",
            "a schedule whose rate changes",
            "remove --restart-schedule",
        )
    longer = (job.train.epochs, job.train.steps) != (done.job.train.epochs, done.job.train.steps)
    if schedule.name not in FALLING_SCHEDULES or restart or not longer:
        return restart
    raise SpecError(
        [
            job.problem(
                ("train", "schedule"),
                f"is {schedule.name}, which was planned for the length of {done.path} and has come to its end there",
                f"a schedule without an end (constant, step, plateau), or {schedule.name} once more over the added epochs",
                "--restart-schedule for once more; or --set train.schedule=constant, with the rate you want: "
                f"--set train.optimizer.lr={job.train.optimizer.lr / 10:.2g}",
            )
        ]
    )


def keep_watch(done: FinishedRun, job: Job, extension: Extension) -> dict[str, Any]:
    """The state of the best metric in the checkpoint, without what starts anew."""
    watch: dict[str, Any] = dict(done.state["watch"])
    if _keep_count(done, job) is None:
        watch["stopping"] = None
    if extension.schedule == "restarts":
        watch |= {"plateau": None, "drops": 0}
    return watch


def _keep_count(done: FinishedRun, job: Job) -> Mapping[str, Any] | None:
    """The count of early stopping, if the job goes on with it: another metric has another count."""
    counted, now = done.state["watch"]["stopping"], job.train.early_stopping
    same = counted and now and (counted["metric"], counted["min_delta"]) == (now.metric, now.min_delta)
    return counted if same else None


def describe(done: FinishedRun, job: Job, extension: Extension, name: str) -> list[str]:
    """What the run `name` will do, one line each, for its events."""
    end = f"epoch {job.train.epochs}" + (f" or step {job.train.steps}" if job.train.steps else "")
    trained = f"{_count(extension.epoch, 'epoch')} ({_count(extension.step, 'step')})"
    lines = [f"{name} continues {extension.run}, which trained {trained}, up to {end}"]
    lines += [f"{key} is {now}, was {before}" for key, before, now in _changes(done.job.dump(), job.dump())]
    train, before = job.train, done.job.train
    if extension.schedule == "restarts":
        repetition = "again " if train.schedule == before.schedule else ""
        lines.append(
            f"schedule {train.schedule.name} starts {repetition}at step {extension.step}, with train.optimizer.lr "
            f"{train.optimizer.lr:g}; optimizer state, averaged weights and best value continue"
        )
    else:
        lines.append(f"schedule {train.schedule.name} continues")
    if train.early_stopping and _keep_count(done, job) is None:
        lines.append("early stopping counts from here")
    if _is_exact(done, job, extension):
        lines.append(
            f"the result will be that of one run up to {end} under the same plan, as exactly as after a resume"
        )
    return lines


def _is_exact(done: FinishedRun, job: Job, extension: Extension) -> bool:
    """Whether one run with this spec would have been the same up to the checkpoint."""
    stopping: tuple[EarlyStopping | None, ...] = (job.train.early_stopping, done.job.train.early_stopping)
    watched = stopping == (None, None) or _keep_count(done, job) is not None
    rate = job.train.optimizer.lr == done.job.train.optimizer.lr
    return extension.schedule == "continues" and rate and watched and not done.within_epoch()


def _changes(
    before: Mapping[str, object], now: Mapping[str, object], above: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Keys that affect the training and differ, with both values."""
    for key in now:
        one, two, key_path = before.get(key), now[key], f"{above}{key}"
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            yield from _changes(one, two, f"{key_path}.")
        elif one != two and any(
            key_path == free or key_path.startswith(f"{free}.") for free in set(MAY_CHANGE) - {*FREE}
        ):
            yield key_path, format_value(one), format_value(two)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
