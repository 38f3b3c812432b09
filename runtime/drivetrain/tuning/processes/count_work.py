"""Times a job here and counts what a step computes, as a child of `drivetrain plan --on`.

python -m drivetrain.tuning.processes.count_work FOLDER SPEC [--set key=value ...]
"""

from __future__ import annotations

import contextlib
import io
import itertools
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from drivetrain.training.phase_timer import process_seconds
from drivetrain.tuning import measuring_child
from drivetrain.tuning.elsewhere.operation_counter import count_step_work, measure_rates
from drivetrain.tuning.measuring_child import MeasuringCall
from drivetrain.tuning.processes.run_times import assemble_longest_epoch, time_run, time_step

if TYPE_CHECKING:
    from drivetrain.optimizations import Value
    from drivetrain.training.run import Run

RECORDABLE: Mapping[str, Value] = {"compile": False, "cuda_graphs": False, "step_graph": False, "loader_workers": 0}
"""Settings under which every operation can be seen, in this process."""
LOADED_BATCHES = 20


def measure(call: MeasuringCall) -> None:
    """Store times and rates of this machine, and the work of a step in fp32 and in bf16."""
    # The training prints the same notes on the data again.
    with contextlib.redirect_stdout(io.StringIO()):
        search = call.load_search()
        run = assemble_longest_epoch(search)
        figures: dict[str, object] = {
            "times": asdict(time_run(run, process_seconds())),
            "rates": asdict(measure_rates(run)),
            "data_bytes": search.facts.samples * search.facts.sample_bytes,
        }
        if not run.ends_solved:
            run = assemble_longest_epoch(search, RECORDABLE)
            figures["load_seconds"] = time_loading(run)
            for precision in ("fp32", "bf16"):
                run = assemble_longest_epoch(search, {**RECORDABLE, "precision": precision})
                if precision == "fp32":
                    figures["fp32_step"] = time_step(run)
                figures[precision] = asdict(count_step_work(run))
    call.store(figures)


def time_loading(run: Run) -> float:
    """Seconds in which this process reads and prepares a batch."""
    batches = itertools.chain.from_iterable(run.batches.epoch(epoch, 0) for epoch in itertools.count())
    run.preprocess(next(batches), 0)
    begin = time.perf_counter()
    for batch in itertools.islice(batches, LOADED_BATCHES):
        run.preprocess(batch, 0)
    return (time.perf_counter() - begin) / LOADED_BATCHES


if __name__ == "__main__":
    measuring_child.run_program(measure)
