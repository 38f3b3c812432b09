"""Times a few steps and evaluation batches of a job, as a child of `drivetrain train` and `drivetrain plan --time`.

It assembles the run as a training would, trains some steps and discards them.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from drivetrain.training.phase_timer import PhaseTimer, process_seconds
from drivetrain.tuning import measuring_child
from drivetrain.tuning.measuring_child import MeasuringCall
from drivetrain.tuning.run_length import RunTimes

if TYPE_CHECKING:
    from drivetrain.optimizations import Value
    from drivetrain.training.run import Run
    from drivetrain.tuning.memory.micro_batch import MicroBatchSearch

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
    from drivetrain.tuning import assembly

    # The training prints the same notes on the data again.
    with contextlib.redirect_stdout(io.StringIO()):
        run = assemble_longest_epoch(assembly.load_search(call.folder, call.job, call.signals, PhaseTimer()))
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
    peak_kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_bytes = peak_kilobytes if sys.platform == "darwin" else peak_kilobytes * 1024
    evaluation_seconds = batch_seconds * batch_count
    test_samples = len(run.dataset.test.split) if run.dataset.test else 0
    return RunTimes(
        start_seconds,
        step_seconds,
        evaluation_seconds,
        run.batches.per_epoch,
        peak_bytes,
        test=evaluation_seconds * test_samples / max(1, len(run.dataset.validation)),
        is_solved=is_solved,
    )


def time_step(run: Run) -> float:
    """Seconds of a training step, its batch included."""
    return _trim(list(_time_steps(run)))


def _time_steps(run: Run) -> Iterator[float]:
    """Seconds of steps from one to the next, with the loading of their batches."""
    run.train_mode()
    # A second epoch follows where the first is too short; no step of it is read, so its order does not matter.
    batches = itertools.chain.from_iterable(run.batches.epoch(epoch, 0) for epoch in itertools.count())
    begin = first_begin = time.perf_counter()
    end = None
    for number, batch in enumerate(batches):
        run.set_learning_rates()
        run.step(run.mix(run.preprocess(batch, 0)), run.list_local_parts(len(batch)))
        run.counters.step += 1
        _synchronize(run)
        now = time.perf_counter()
        # Steps of seconds need no warming.
        if number >= WARMING_STEPS or now - first_begin > MAX_SECONDS:
            yield now - begin
            end = end or now + MAX_SECONDS
            if now > end or number - WARMING_STEPS >= MAX_TIMED:
                return
        begin = now


def _time_evaluation(run: Run) -> tuple[float, float]:
    """Seconds of an evaluation batch, and the number of batches of an evaluation."""
    import torch

    from drivetrain.training.evaluation.validation import default_batch_size, micro_batches

    size = run.step.micro_batch or default_batch_size(run)
    run.model.eval()
    seconds: list[float] = []
    begin = time.perf_counter()
    with torch.inference_mode():
        for batch, _ in itertools.islice(micro_batches(run, run.dataset.validation, size), MAX_TIMED):
            run.step.outputs_in_fp32(batch.inputs)
            _synchronize(run)
            seconds.append(time.perf_counter() - begin)
            begin += seconds[-1]
            if sum(seconds) > MAX_SECONDS / 2:
                break
    return _trim(seconds), len(run.dataset.validation) / size


def _synchronize(run: Run) -> None:
    import torch

    if run.device.type == "cuda":
        torch.cuda.synchronize()


def _trim(seconds: list[float]) -> float:
    """The mean without the longest and the shortest times, which others on the machine cause."""
    cut = int(TRIMMED_SHARE * len(seconds))
    return statistics.fmean(sorted(seconds)[cut : len(seconds) - cut])


if __name__ == "__main__":
    measuring_child.run_program(measure)
