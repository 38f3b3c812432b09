"""A finished run that another one may continue: loads its spec and last checkpoint, and decides how it is continued."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.errors import CheckpointError, SpecError
from drivetrain.job import Job
from drivetrain.job import extension as records
from drivetrain.job.extension import Extension
from drivetrain.job.formatting import format_value
from drivetrain.job.train import EarlyStopping
from drivetrain.job_spec.stored_spec import compare_stored_spec, read_stored_spec
from drivetrain.supervisor.run_folder import MAY_CHANGE_ON_RESUME
from drivetrain.system.console import say
from drivetrain.system.run_files import CHECKPOINTS, JOB_FILE, PROGRESS_FILE, STATE_FILE, RunFiles, list_checkpoints
from drivetrain.system.run_records import RunState, read_integer, read_mapping
from drivetrain.training.checkpoints.manifest import is_divided, list_files, verify

MAY_CHANGE_ON_EXTEND = (
    *MAY_CHANGE_ON_RESUME,
    "name",
    "train.epochs",
    "train.steps",
    "train.within",
    "train.schedule",
    "train.early_stopping",
    "train.optimizer.lr",
)
"""Spec keys whose values may differ from those of the finished run."""
FALLING_SCHEDULES = ("one-cycle", "cosine", "linear")
"""Schedules whose learning rate depends on the length of the run."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, checked against the job that continues it."""

    path: Path
    job: Job
    """The spec that it was trained with."""
    checkpoint: Path
    state: dict[str, Any]
    """The content of the checkpoint's state.json."""

    @property
    def step(self) -> int:
        """Optimizer steps of the checkpoint."""
        return int(self.state["counters"]["step"])

    @property
    def epochs(self) -> int:
        """Complete epochs of the checkpoint; one that `train.steps` cut off does not count."""
        return int(self.state["counters"]["epoch"]) - self.ended_within_epoch()

    def ended_within_epoch(self) -> bool:
        """Whether `train.steps` ended the run within an epoch."""
        train = self.job.train
        if not train.within and (train.steps is None or self.step < train.steps):
            return False
        epoch_steps = read_integer(RunFiles(self.path).read_object(PROGRESS_FILE), "steps_per_epoch") or 0
        return epoch_steps <= 0 or self.step % epoch_steps != 0


def load_finished_run(path: Path, job: Job) -> FinishedRun:
    """Load the finished run of a folder, and check that the job may continue it.

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
    comparison = compare_stored_spec(path, job, MAY_CHANGE_ON_EXTEND, path.name)
    if comparison.lines or comparison.stored_job is None:
        raise CheckpointError(
            f"{path} was trained with another job file:\n" + "\n".join(f"    {line}" for line in comparison.lines),
            f"other values of {', '.join(MAY_CHANGE_ON_EXTEND)}",
            "undo the change, or train without --extend; model: {from: FOLDER} starts a new training from its model",
        )
    checkpoint = _find_last_checkpoint(path)
    return FinishedRun(path, comparison.stored_job, checkpoint, RunFiles(checkpoint).read_object(STATE_FILE))


def _check_finished(path: Path) -> None:
    """Raise CheckpointError if the run of a folder has not finished."""
    status = RunState.read(path).status
    if status == "done":
        return
    epochs = read_integer(read_mapping(read_stored_spec(path).data, "train"), "epochs")
    same = f"the same command without --extend, with --set train.epochs={epochs}"
    action = f"train it to its end first: {same if epochs else '`drivetrain train JOB` resumes it'}"
    raise CheckpointError(
        f"{path} is unfinished (status: {status or 'not recorded'})",
        "--extend continues a finished run",
        action,
    )


def _find_last_checkpoint(path: Path) -> Path:
    """The newest checkpoint whose digests are right and which has the optimizer's state."""
    complaints: list[str] = []
    for candidate in reversed(list_checkpoints(path / CHECKPOINTS)):
        problem = verify(candidate)
        if problem is None and not is_divided(candidate) and "optimizer.safetensors" not in list_files(candidate):
            problem = "it has weights but no optimizer state"
        if problem is None:
            for line in complaints:
                say(f"{line}; continuing from {candidate.name}")
            return candidate
        complaints.append(f"checkpoint {candidate.name} cannot be used: {problem}")
    raise CheckpointError(
        "\n  ".join([f"{path} has no checkpoint to continue from", *complaints]),
        "a run whose checkpoints/ still holds its last step-... folder, as it was written",
        f"restore it; or start a new training from its model: model: {{from: {path}}}",
    )


def plan_extension(finished: FinishedRun, job: Job, *, restart: bool) -> Extension:
    """Decide how the job continues the finished run.

    Args:
        finished: the finished run.
        job: the present spec.
        restart: whether --restart-schedule was given.

    Raises:
        SpecError: if nothing is left to train, or the schedule has ended.
    """
    _check_length(finished, job)
    _check_solved(finished, job)
    _check_early_stopping(finished, job)
    restarts = _restarts_schedule(finished, job, restart)
    # The finished run may itself be an extension whose schedule began at a later step.
    earlier_extension = records.read(finished.path)
    earlier_origin = earlier_extension.origin if earlier_extension else 0
    return Extension(
        run=finished.path.resolve().name,
        step=finished.step,
        epoch=finished.epochs,
        schedule="restarts" if restarts else "continues",
        origin=finished.step if restarts else earlier_origin,
    )


def _check_solved(finished: FinishedRun, job: Job) -> None:
    """Refuse more epochs if the output layer was solved exactly and nothing else trains: its loss is minimal."""
    is_solved = finished.state.get("counters", {}).get("solved")
    unfrozen = getattr(getattr(job, "model", None), "unfreeze", ())
    if is_solved and not unfrozen:
        raise job.spec_error(
            ("train", "epochs"),
            f"more of them change nothing: the outputs of {finished.path} are solved, and nothing else is trained",
            "a run that trains by steps",
            f"start from its model, model: {{from: {finished.path}}}, with train.solve_heads: false or less frozen",
        )


def _check_length(finished: FinishedRun, job: Job) -> None:
    """Refuse a job that has no more epochs or steps than the finished run, or leaves the length to a measurement."""
    train, trained = job.train, f"{finished.path} has trained {_count(finished.epochs, 'epoch')}"
    longer = f"--set train.epochs={2 * max(1, finished.epochs)}"
    if train.within:  # the length would be chosen as if nothing were trained yet
        raise job.spec_error(
            ("train", "within"),
            f"is {train.within}, and {trained}",
            "train.epochs: the epochs of both runs together",
            f"such as --set train.within=null {longer}",
        )
    if train.epochs <= finished.epochs:
        raise job.spec_error(
            ("train", "epochs"),
            f"is {train.epochs}, and {trained}",
            f"more than {finished.epochs}: the epochs of both runs together",
            f"such as {longer}",
        )
    if train.steps is not None and train.steps <= finished.step:
        raise job.spec_error(
            ("train", "steps"),
            f"is {train.steps}, and {finished.path} has trained {_count(finished.step, 'step')}",
            f"more than {finished.step}: the steps of both runs together; or null for no limit but train.epochs",
            f"such as --set train.steps={2 * finished.step}",
        )


def _check_early_stopping(finished: FinishedRun, job: Job) -> None:
    """Refuse a job that early stopping would end at once."""
    stopping, stopping_state = job.train.early_stopping, _select_stopping_state(finished, job)
    if stopping and stopping_state and stopping_state["waited"] >= stopping.patience:
        raise job.spec_error(
            ("train", "early_stopping", "patience"),
            f"is {stopping.patience}, and {stopping.metric} has not improved for "
            f"{_count(stopping_state['waited'], 'evaluation')} of {finished.path}, so training would end at once",
            "a larger patience, or no early stopping",
            f"such as --set train.early_stopping.patience={2 * stopping_state['waited']}, or "
            "--set train.early_stopping=null",
        )


def _restarts_schedule(finished: FinishedRun, job: Job, restart: bool) -> bool:
    """Whether the schedule starts again; SpecError if it cannot, or if it has ended and must."""
    schedule = job.train.schedule
    if schedule != finished.job.train.schedule:
        return True
    if restart and schedule.name == "constant":
        raise SpecError(
            "--restart-schedule, and train.schedule is constant",
            "a schedule whose rate changes",
            "remove --restart-schedule",
        )
    # A schedule of train.within has ended with its run, too.
    earlier = finished.job.train
    longer = earlier.within or (job.train.epochs, job.train.steps) != (earlier.epochs, earlier.steps)
    if schedule.name not in FALLING_SCHEDULES or restart or not longer:
        return restart
    raise job.spec_error(
        ("train", "schedule"),
        f"is {schedule.name}, which was planned for the length of {finished.path} and has come to its end there",
        f"a schedule without an end (constant, step, plateau), or {schedule.name} once more over the added epochs",
        "--restart-schedule for once more; or --set train.schedule=constant, with the rate you want: "
        f"--set train.optimizer.lr={job.train.optimizer.lr / 10:.2g}",
    )


def select_watch_state(finished: FinishedRun, job: Job, extension: Extension) -> dict[str, Any]:
    """The checkpoint's state of the best metric, early stopping and plateaus, without what starts anew."""
    watch: dict[str, Any] = dict(finished.state["watch"])
    if _select_stopping_state(finished, job) is None:
        watch["stopping"] = None
    if extension.schedule == "restarts":
        watch |= {"plateau": None, "drops": 0}
    return watch


def _select_stopping_state(finished: FinishedRun, job: Job) -> Mapping[str, Any] | None:
    """The finished run's state of early stopping, if the job watches the same metric; else counting starts anew."""
    stored: Mapping[str, Any] | None = finished.state["watch"]["stopping"]
    stopping = job.train.early_stopping
    if not stored or stopping is None:
        return None
    is_same = (stored["metric"], stored["min_delta"]) == (stopping.metric, stopping.min_delta)
    return stored if is_same else None


def describe_extension(finished: FinishedRun, job: Job, extension: Extension, name: str) -> list[str]:
    """Describe what the run `name` will do, in lines for its event log."""
    end = f"epoch {job.train.epochs}" + (f" or step {job.train.steps}" if job.train.steps else "")
    trained = f"{_count(extension.epoch, 'epoch')} ({_count(extension.step, 'step')})"
    lines = [f"{name} continues {extension.run}, which trained {trained}, up to {end}"]
    changes = _list_changes(finished.job.dump(), job.dump())
    lines += [f"{key} is {new_value}, was {old_value}" for key, old_value, new_value in changes]
    train = job.train
    if extension.schedule == "restarts":
        repetition = "again " if train.schedule == finished.job.train.schedule else ""
        lines.append(
            f"schedule {train.schedule.name} starts {repetition}at step {extension.step}, with train.optimizer.lr "
            f"{train.optimizer.lr:g}; optimizer state, averaged weights and best value continue"
        )
    else:
        lines.append(f"schedule {train.schedule.name} continues")
    if train.early_stopping and _select_stopping_state(finished, job) is None:
        lines.append("early stopping counts from here")
    if _is_reproducible(finished, job, extension):
        lines.append(
            f"the result will be that of one run up to {end} under the same plan, as exactly as after a resume"
        )
    return lines


def _is_reproducible(finished: FinishedRun, job: Job, extension: Extension) -> bool:
    """Whether a single run with this spec would have reached the same checkpoint."""
    stopping: tuple[EarlyStopping | None, ...] = (job.train.early_stopping, finished.job.train.early_stopping)
    same_stopping = stopping == (None, None) or _select_stopping_state(finished, job) is not None
    same_rate = job.train.optimizer.lr == finished.job.train.optimizer.lr
    return extension.schedule == "continues" and same_rate and same_stopping and not finished.ended_within_epoch()


def _list_changes(
    old_spec: Mapping[str, object], new_spec: Mapping[str, object], prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Each key that affects the training and differs, with old and new value; `prefix` is the keys above, with a dot."""
    training_keys = set(MAY_CHANGE_ON_EXTEND) - set(MAY_CHANGE_ON_RESUME)
    for name, new_value in new_spec.items():
        old_value, key = old_spec.get(name), f"{prefix}{name}"
        if isinstance(old_value, Mapping) and isinstance(new_value, Mapping):
            yield from _list_changes(old_value, new_value, f"{key}.")
        elif old_value != new_value and any(key == above or key.startswith(f"{above}.") for above in training_keys):
            yield key, format_value(old_value), format_value(new_value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
