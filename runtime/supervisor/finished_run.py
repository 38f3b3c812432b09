"""A finished run that another one may continue: its spec, and the checkpoint at its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import CheckpointError, DrivetrainError
from runtime.job import Job
from runtime.job_spec.yaml_file import parse
from runtime.supervisor import run_folder
from runtime.supervisor.spec_difference import FREE, difference, stored_job
from runtime.system.console import say
from runtime.system.files import parse_json
from runtime.system.run_files import RunFiles
from runtime.training.checkpoints.manifest import is_divided, listed, verify

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
        each = ahead.get("steps_per_epoch") if isinstance(ahead, dict) else None
        ended = self.job.train.steps is not None and self.step >= self.job.train.steps
        return ended and not (isinstance(each, int) and each > 0 and self.step % each == 0)


def find(path: Path, job: Job) -> FinishedRun:
    """The finished run of a folder.

    Raises:
        CheckpointError: if it has not finished, was trained with another job, or has no checkpoint to continue from.
        SpecError: if its stored spec is damaged.
    """
    if not (path / "job.yaml").is_file():
        raise CheckpointError(
            f"{path} has no job.yaml, so it is no run folder",
            "a finished run: its folder holds job.yaml, state.json and checkpoints/",
            "name a folder that `drivetrain train` created; model: {from: FOLDER} starts from a model alone",
        )
    _check_finished(path)
    lines = difference(path, job, MAY_CHANGE, path.name)
    before = None if lines else stored_job(path, job)
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
        epochs = parse(RunFiles(path).read_text("job.yaml"), "job.yaml").data["train"]["epochs"]
        again = f"train it to its end first: the same command without --extend, with --set train.epochs={int(epochs)}"
    except (DrivetrainError, LookupError, TypeError, ValueError):
        again = "train it to its end first: `drivetrain train JOB` resumes it"
    raise CheckpointError(
        f"{path} is unfinished (status: {status or 'not recorded'})",
        "--extend continues a finished run",
        again,
    )


def _checkpoint(path: Path) -> Path:
    """The newest checkpoint that verifies and holds what training needs."""
    found = sorted((path / "checkpoints").glob("step-*"), key=_number, reverse=True)
    wrong: list[str] = []
    for place in found:
        problem = verify(place)
        if problem is None and not is_divided(place) and "optimizer.safetensors" not in listed(place):
            problem = "it has weights but no optimizer state"
        if problem is None:
            for line in wrong:
                say(f"{line}; continuing from {place.name}")
            return place
        wrong.append(f"checkpoint {place.name} cannot be used: {problem}")
    raise CheckpointError(
        "\n  ".join([f"{path} has no checkpoint to continue from", *wrong]),
        "a run whose checkpoints/ still holds its last step-... folder, as it was written",
        f"restore it; or start a new training from its model: model: {{from: {path}}}",
    )


def _number(path: Path) -> int:
    number = path.name.removeprefix("step-")
    return int(number) if number.isdigit() else -1
