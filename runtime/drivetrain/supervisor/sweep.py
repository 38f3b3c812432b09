"""`drivetrain sweep`: trains a job with values suggested by Optuna, each in a separate run, one after the other.

`runs/NAME-sweep-001/` contains the spec (sweep.yaml), Optuna's journal, the run folders of the trials, and the best
trial's job (best.yaml). The same command continues a sweep that was stopped or killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from drivetrain.errors import DeviceError, SpecError
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.supervisor import child_runs
from drivetrain.system import signals
from drivetrain.system.installation import INSTALL_SWEEP

EXAMPLE = "sweep: {space: {train.optimizer.lr: {low: 1e-4, high: 1e-1, log: true}}}"


@dataclass(frozen=True)
class SweepRequest:
    """Options of `drivetrain sweep`."""

    spec: Path
    assignments: Sequence[str] = ()
    runs: Path = Path("runs")
    new: bool = False


def sweep(request: SweepRequest) -> int:
    """Train all trials that are not done; returns 0, or the exit code of the run that ended the sweep early.

    Raises:
        SpecError: if the job has no sweep, or Optuna refuses a range.
        DeviceError: if Optuna is not installed.
        CheckpointError: if the unfinished sweep had another spec, other data or other code.
    """
    signals.stop_early()
    source = SpecSource(request.spec, request.assignments).read()
    job = source.load()
    if job.sweep is None:
        raise SpecError(f"{request.spec}: sweep: is missing", "keys to vary, with their ranges", f"add `{EXAMPLE}`")
    if find_spec("optuna") is None:
        raise DeviceError(
            "optuna, which chooses the values of a sweep, is not installed here",
            "the extra `sweep`",
            f"`{INSTALL_SWEEP}`",
        )

    # These modules import Optuna.
    from drivetrain.supervisor import sweep_folder, sweep_trials

    sweep_trials.make_distributions(job)
    with (
        sweep_folder.open_folder(request.runs, job, new=request.new) as folder,
        child_runs.open_child_runs(source, folder.job, folder.path) as children,
    ):
        return sweep_trials.SweepTrials(folder, children).train()
