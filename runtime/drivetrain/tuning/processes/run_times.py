"""Times a few steps and evaluation batches of a job, as a child of `drivetrain train`.

It assembles the run as a training would, trains some steps and discards them.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict

import torch

from drivetrain.hardware.used_memory import read_peak_memory
from drivetrain.optimizations import Value
from drivetrain.training.evaluation.validation import default_batch_size, micro_batches
from drivetrain.training.phase_timer import process_seconds
from drivetrain.training.run import Run
from drivetrain.training.torch_setup import synchronize
from drivetrain.tuning import assembly
from drivetrain.tuning.measuring_child import MeasuringCall
from drivetrain.tuning.memory.micro_batch import MicroBatchSearch
from drivetrain.tuning.run_length import RunTimes
from drivetrain.tuning.variants import Variant

NO_CHANGES: Mapping[str, Value] = {}
WARMING_STEPS = 3
"""Steps that are not timed: the first ones allocate memory and choose kernels."""
MAX_SECONDS = 4.0
"""Of timed training steps; evaluation batches get half of it."""
MAX_TIMED = 200
"""Most steps or batches that are timed."""
TRIMMED_SHARE = 0.1
"""Share of the longest and of the shortest times that do not count."""


def measure(call: MeasuringCall) -> None:
    """Store the times of a run that is assembled as a training would assemble it."""
    # The training prints the same notes on the data again.
    with contextlib.redirect_stdout(io.StringIO()):
        run = assemble_longest_epoch(assembly.load_search(call.folder, call.job, call.signals))
        call.store(asdict(time_run(run, process_seconds())))


def assemble_longest_epoch(search: MicroBatchSearch, changed_values: Mapping[str, Value] = NO_CHANGES) -> Run:
    """The run in the epoch that trains most layers, which takes longest and has no cached features."""
    last_epoch = search.network.unfreezing.last
    values = {"feature_cache": False, **changed_values} if last_epoch else changed_values
    return search.assemble_copy(search.plan.with_values(values), last_epoch)


def time_run(run: Run, start_seconds: float) -> RunTimes:
    """Time the steps and the evaluation of an assembled run, which is used for nothing else afterwards."""
    is_solved = run.ends_solved  # the timed steps make a run of steps of it
    step_seconds = time_step(run)
    batch_seconds, batch_count = _time_evaluation(run)
    evaluation_seconds = batch_seconds * batch_count
    test_samples = len(run.dataset.test.split) if run.dataset.test else 0
    return RunTimes(
        start_seconds,
        step_seconds,
        evaluation_seconds,
        run.batches.per_epoch,
        read_peak_memory(alone=True),
        test=evaluation_seconds * test_samples / max(1, len(run.dataset.validation)),
        is_solved=is_solved,
    )


def time_step(run: Run) -> float:
    """Seconds of a training step, its batch included."""
    return _trim(list(_time_steps(run)))


def _time_steps(run: Run) -> Iterator[float]:
    """Seconds of steps from one to the next, with the loading of their batches."""
    # A second epoch follows where the first is too short; no step of it is read, so its order does not matter.
    variant, begin, end = Variant.over_epochs(run), time.perf_counter(), None
    for number in itertools.count():
        seconds, now = variant.time_steps(1), time.perf_counter()
        # Steps of seconds need no warming.
        if number >= WARMING_STEPS or now - begin > MAX_SECONDS:
            yield seconds
            end = end or now + MAX_SECONDS
            if now > end or number - WARMING_STEPS >= MAX_TIMED:
                return


def _time_evaluation(run: Run) -> tuple[float, float]:
    """Seconds of an evaluation batch, and the number of batches of an evaluation."""
    size = run.step.micro_batch or default_batch_size(run)
    run.model.eval()
    seconds: list[float] = []
    begin = time.perf_counter()
    with torch.inference_mode():
        for batch in itertools.islice(micro_batches(run, run.dataset.validation, size), MAX_TIMED):
            run.step.outputs_in_fp32(batch.inputs)
            synchronize(run.device)
            seconds.append(time.perf_counter() - begin)
            begin += seconds[-1]
            if sum(seconds) > MAX_SECONDS / 2:
                break
    return _trim(seconds), len(run.dataset.validation) / size


def _trim(seconds: list[float]) -> float:
    """The mean without the longest and the shortest times, which others on the machine cause."""
    cut = int(TRIMMED_SHARE * len(seconds))
    return statistics.fmean(sorted(seconds)[cut : len(seconds) - cut])
