"""What continuing a finished run means: how far it goes, and what its schedule and early stopping do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runtime.errors import SpecError
from runtime.job import Job
from runtime.job import extension as records
from runtime.job.extension import Extension
from runtime.job.formatting import shown
from runtime.job.train import EarlyStopping
from runtime.supervisor.finished_run import MAY_CHANGE, FinishedRun
from runtime.supervisor.spec_difference import FREE

ENDING = ("one-cycle", "cosine", "linear")
"""Schedules whose rate depends on the length of the run."""


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
    _check_stopping(done, job)
    restarts = _restarts(done, job, restart)
    before = records.read(done.path)
    origin = done.step if restarts else before.origin if before else 0
    name = done.path.resolve().name
    return Extension(name, done.step, done.epochs, "restarts" if restarts else "continues", origin)


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
    stopping, counted = job.train.early_stopping, _counted(done, job)
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
    if schedule.name not in ENDING or restart or not longer:
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


def kept_watch(done: FinishedRun, job: Job, extension: Extension) -> dict[str, Any]:
    """The state of the best metric in the checkpoint, without what starts anew."""
    watch: dict[str, Any] = dict(done.state["watch"])
    if _counted(done, job) is None:
        watch["stopping"] = None
    if extension.schedule == "restarts":
        watch |= {"plateau": None, "drops": 0}
    return watch


def _counted(done: FinishedRun, job: Job) -> Mapping[str, Any] | None:
    """The count of early stopping, if the job goes on with it: another metric has another count."""
    counted, now = done.state["watch"]["stopping"], job.train.early_stopping
    same = counted and now and (counted["metric"], counted["min_delta"]) == (now.metric, now.min_delta)
    return counted if same else None


def told(done: FinishedRun, job: Job, extension: Extension, name: str) -> list[str]:
    """What the run `name` will do, one line each, for its events."""
    end = f"epoch {job.train.epochs}" + (f" or step {job.train.steps}" if job.train.steps else "")
    trained = f"{_count(extension.epoch, 'epoch')} ({_count(extension.step, 'step')})"
    lines = [f"{name} continues {extension.run}, which trained {trained}, up to {end}"]
    lines += [f"{key} is {now}, was {before}" for key, before, now in _changes(done.job.dumped(), job.dumped())]
    train, before = job.train, done.job.train
    if extension.schedule == "restarts":
        again = "again " if train.schedule == before.schedule else ""
        lines.append(
            f"schedule {train.schedule.name} starts {again}at step {extension.step}, with train.optimizer.lr "
            f"{train.optimizer.lr:g}; optimizer state, averaged weights and best value continue"
        )
    else:
        lines.append(f"schedule {train.schedule.name} continues")
    if train.early_stopping and _counted(done, job) is None:
        lines.append("early stopping counts from here")
    if _is_exact(done, job, extension):
        lines.append(
            f"the result will be that of one run up to {end} under the same plan, as exactly as after a resume"
        )
    return lines


def _is_exact(done: FinishedRun, job: Job, extension: Extension) -> bool:
    """Whether one run with this spec would have been the same up to the checkpoint."""
    stopping: tuple[EarlyStopping | None, ...] = (job.train.early_stopping, done.job.train.early_stopping)
    watched = stopping == (None, None) or _counted(done, job) is not None
    rate = job.train.optimizer.lr == done.job.train.optimizer.lr
    return extension.schedule == "continues" and rate and watched and not done.within_epoch()


def _changes(
    before: Mapping[str, object], now: Mapping[str, object], above: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Keys that affect the training and differ, with both values."""
    for key in now:
        one, two, place = before.get(key), now[key], f"{above}{key}"
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            yield from _changes(one, two, f"{place}.")
        elif one != two and any(place == free or place.startswith(f"{free}.") for free in set(MAY_CHANGE) - {*FREE}):
            yield place, shown(one), shown(two)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
