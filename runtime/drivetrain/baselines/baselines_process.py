"""Fits the simple models beside a run that has ended; the child of `drivetrain.supervisor.baseline_run`.

python -m drivetrain.baselines.baselines_process RUN SPEC SECONDS [--set key=value ...] [--source JSON]

After each of them it writes baselines.json, so that what is there when its time is over counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from drivetrain.errors import DrivetrainError
from drivetrain.inference import thread_limits
from drivetrain.job_spec import spec_source
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.report import baseline_results
from drivetrain.system import interpreter
from drivetrain.system.console import guard_output, say_error
from drivetrain.system.run_files import BASELINES_FILE, RunFiles


def main() -> int:
    """Fit, evaluate and record; returns the exit code."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("run", type=Path)
    spec_source.add_options(arguments)
    arguments.add_argument("seconds", type=float)
    options = arguments.parse_args()
    guard_output()
    try:
        record(options.run, SpecSource.from_arguments(options), options.seconds)
    except DrivetrainError as error:
        say_error(error)
        return error.exit_code
    return 0


def record(run: Path, source: SpecSource, seconds: float) -> None:
    """Measure within this time, and write each result into the run folder.

    Raises:
        DataError: if the data cannot be read any more.
        StorageError: if the folder cannot be written.
    """
    thread_limits.limit_threads()
    from drivetrain.baselines.measure import measure
    from drivetrain.data.load_data import add_test
    from drivetrain.inference.evaluate import read_run_data
    from drivetrain.training.phase_timer import process_seconds

    job = source.load()
    dataset = read_run_data(run, job)
    add_test(job, dataset)
    test_samples = len(dataset.test.split) if dataset.test else None
    outcomes = []
    for outcome in measure(job, dataset, seconds - process_seconds()):
        outcomes.append(outcome)
        content = baseline_results.to_json(
            outcomes,
            samples=len(dataset.validation),
            seconds=seconds,
            test_samples=test_samples,
            time_order=dataset.preprocessing.get("time_order", ""),
        )
        RunFiles(run).write_json(BASELINES_FILE, content)


if __name__ == "__main__":
    interpreter.exit_process(main())
