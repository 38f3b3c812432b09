"""Fits the simple models beside a run that has ended; the child of `drivetrain.supervisor.baseline_run`.

python -m drivetrain.baselines.baselines_process RUN SPEC SECONDS LIMIT [--set key=value ...] [--source JSON]

After each of them it writes baselines.json, so that what is there when its time is over counts.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.errors import DrivetrainError
from drivetrain.hardware import device_check
from drivetrain.hardware.facts import Hardware
from drivetrain.inference import thread_limits
from drivetrain.job import Job
from drivetrain.job_spec import spec_source
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.report import baseline_results
from drivetrain.system import interpreter
from drivetrain.system.console import guard_output, say, say_aside, say_error
from drivetrain.system.run_files import BASELINES_FILE, RunFiles

if TYPE_CHECKING:
    from drivetrain.baselines.paired_errors import NetworkOutputs
    from drivetrain.data.dataset import Dataset

NETWORK_SHARE = 0.2
"""Largest share of the time for the outputs of the network."""


def main() -> int:
    """Fit, evaluate and record; returns the exit code."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("run", type=Path)
    spec_source.add_options(arguments)
    arguments.add_argument("seconds", type=float)
    arguments.add_argument("limit", type=float)
    options = arguments.parse_args()
    guard_output()
    try:
        record(options.run, SpecSource.from_arguments(options), options.seconds, options.limit)
    except DrivetrainError as error:
        say_error(error)
        return error.exit_code
    return 0


def record(run: Path, source: SpecSource, seconds: float, limit: float) -> None:
    """Fit the simple models, and write each result into the run folder.

    Args:
        run: the run folder.
        source: source of the spec.
        seconds: time for computing; reading the data and starting this process are not part of it.
        limit: seconds of this process after which it is ended.

    Raises:
        DataError: if the data cannot be read any more.
        StorageError: if the folder cannot be written.
    """
    machine = thread_limits.limit_threads()
    from drivetrain.baselines.measure import measure
    from drivetrain.data.load_data import add_test
    from drivetrain.inference.evaluate import read_run_data
    from drivetrain.training.phase_timer import process_seconds

    job = source.load()
    dataset = read_run_data(run, job)
    add_test(job, dataset)
    test_samples = len(dataset.test.split) if dataset.test else None
    outcomes = []
    end = min(process_seconds() + seconds, limit)

    def compute_networks() -> dict[str, NetworkOutputs]:
        return _compute_network_outputs(run, job, dataset, machine, NETWORK_SHARE * (end - process_seconds()))

    for outcome in measure(job, dataset, end - process_seconds(), compute_networks=compute_networks):
        outcomes.append(outcome)
        content = baseline_results.to_json(
            outcomes,
            samples=len(dataset.validation),
            seconds=seconds,
            test_samples=test_samples,
            time_order=dataset.preprocessing.get("time_order", ""),
        )
        RunFiles(run).write_json(BASELINES_FILE, content)


def _compute_network_outputs(
    run: Path, job: Job, dataset: Dataset, machine: Hardware, seconds: float
) -> dict[str, NetworkOutputs]:
    """Compute the outputs of the trained network for some of the evaluated samples; an error is only printed."""
    if getattr(job.data, "groups", None):
        return {}  # samples of one group are alike, and which group each is in is not kept
    import torch

    from drivetrain.baselines.paired_errors import compute_network_outputs
    from drivetrain.models import saved_model

    outputs = {}
    try:
        # The code of this job has just been trained here.
        network = saved_model.load(run, consent=True).network
        device = torch.device(device_check.select_usable_device(machine, say_aside))
        splits = {"validation/": (dataset.validation, dataset.prepare)}
        if dataset.test:
            splits["test/"] = dataset.test.split, dataset.test.prepare
        for prefix, (split, prepare) in splits.items():
            computed = compute_network_outputs(network, dataset.heads, split, prepare, device, seconds / len(splits))
            if computed:
                has_neighbors = dataset.preprocessing.get("kind") == "series"
                outputs[prefix] = replace(computed, has_neighbors=has_neighbors)
    except Exception as error:
        # The simple models have metrics without it.
        say(f"baselines: how much of the differences is chance cannot be said: {error}")
    return outputs


if __name__ == "__main__":
    interpreter.exit_process(main())
