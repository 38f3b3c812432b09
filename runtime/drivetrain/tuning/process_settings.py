"""Measures threads, OpenMP runtime and allocator in short child processes, as they are fixed when a process starts.

Each child trains a copy of the network under one plan; candidate and baseline take turns, as in the tuner. The children
die with this process, and are stopped at the end of the measurement.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from drivetrain import optimizations
from drivetrain.data.decoded_size import free_memory
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.optimizations import Effect, Optimization, Stage, Value
from drivetrain.plan.plan import CHOICE, Plan, format_value
from drivetrain.system import process_tree
from drivetrain.system.child_process import ChildEnded
from drivetrain.system.files import write_json
from drivetrain.system.units import format_bytes
from drivetrain.tuning import variants
from drivetrain.tuning.measuring_child import RunningVariant, VariantPool
from drivetrain.tuning.paired_timing import compare
from drivetrain.tuning.tuner_state import TunerState

MIN_BUDGET_SECONDS = 30.0
"""Seconds of budget from which on children are worth starting."""
MIN_START_SECONDS = 5.0
"""Seconds that a child needs at least until it is ready."""
START_MULTIPLES = 3
"""Required time as a multiple of a child's start: two starts, and as much for the comparison."""
ORDER = ("cpu_threads", "allocator", "openmp_runtime")
"""Settings that may gain most come first."""

Candidate = tuple[Optimization, Value]


def list_candidates(job: Job, hardware: Hardware, plan: Plan) -> list[Candidate]:
    """Values worth measuring in a child, in order of their expected gain."""
    candidates = [
        (optimization, value)
        for optimization in optimizations.every()
        if optimization.stage is Stage.PROCESS and plan.row(optimization.name).source == CHOICE
        for value in optimization.candidates(job, hardware, None)
        if value != plan.value(optimization.name)
    ]
    return sorted(candidates, key=lambda pair: ORDER.index(pair[0].name) if pair[0].name in ORDER else len(ORDER))


def measure(
    source: SpecSource,
    hardware: Hardware,
    state: TunerState,
    candidates: Sequence[Candidate],
    run_seconds: float,
    seconds: float,
    say: Callable[[str], None],
    start_seconds: float = MIN_START_SECONDS,
) -> None:
    """Measure candidate values against those of a plan.

    Args:
        state: has the plan, and gets the results.
        run_seconds: predicted seconds of the run.
        seconds: time limit.
        start_seconds: seconds that a child is expected to need until it is ready.
    """
    deadline = time.monotonic() + seconds
    obstacle = _describe_lack_of_memory()
    if obstacle or seconds < START_MULTIPLES * max(start_seconds, MIN_START_SECONDS):
        say(f"tune: threads, OpenMP runtime and allocator not measured: {obstacle or 'not enough time'}")
        return
    with tempfile.TemporaryDirectory(prefix="tune-") as scratch:
        write_json(Path(scratch) / "hardware.json", hardware.to_json())
        with VariantPool(hardware, Path(scratch), source, shares_compile_cache=True) as pool:
            start_time = time.monotonic()
            try:
                incumbent = pool.start(state.plan, timeout=deadline - start_time)
            except ChildEnded as error:
                say(f"tune: threads, OpenMP runtime and allocator not measured: {error}")
                return
            start_seconds = time.monotonic() - start_time
            for optimization, value in candidates:
                name = optimization.name
                # A candidate's process takes one start; the comparison should have half of that at least.
                if deadline - time.monotonic() < 1.5 * start_seconds:
                    say(f"tune: {name} {format_value(value)} not measured: no time left")
                    continue
                plan = state.plan.with_values({name: value})
                challenger, verdict = _compare(pool, incumbent, plan, optimization, run_seconds, deadline)
                # Only the better of the two keeps its process, which serves the next comparison.
                loser, incumbent = (incumbent, challenger) if verdict.wins and challenger else (challenger, incumbent)
                if loser:
                    loser.close()
                say(f"tune: {name} {state.record(name, value, verdict)}")


def _describe_lack_of_memory() -> str | None:
    """Why two more processes like this one would not fit in memory; None if they would."""
    process_bytes, free_bytes = process_tree.sum_memory_bytes(), free_memory()
    if 2.5 * process_bytes <= free_bytes:
        return None
    sizes = f"{format_bytes(process_bytes)} each do not fit into {format_bytes(free_bytes)}"
    return f"two more processes of {sizes} of free memory"


def _compare(
    pool: VariantPool,
    incumbent: RunningVariant,
    plan: Plan,
    optimization: Optimization,
    run_seconds: float,
    deadline: float,
) -> tuple[RunningVariant | None, variants.Verdict]:
    """Compare a candidate with the baseline, each in its own child; both use the same random numbers."""
    try:
        challenger = pool.start(plan, timeout=deadline - time.monotonic())
        exact = optimization.effect(None) is Effect.EXACT
        tolerance = variants.TOLERANCE[Effect.EXACT] if exact else variants.choose_tolerance(plan)
        wrong = variants.find_difference(challenger.ready.numbers, incumbent.ready.numbers, tolerance, "the other")
        if wrong:
            return challenger, variants.Verdict(False, f"vetoed: {wrong}")
        pair = compare(
            lambda count: incumbent.time_steps(count).seconds,
            lambda count: challenger.time_steps(count).seconds,
            incumbent.ready.step,
            deadline - time.monotonic(),
        )
    except ChildEnded as error:
        return None, variants.Verdict(False, f"failed: {error}")
    return challenger, variants.judge(pair, 0.0, run_seconds)
