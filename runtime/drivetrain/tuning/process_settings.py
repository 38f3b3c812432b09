"""Measures threads, OpenMP runtime and allocator in short child processes, as they are fixed when a process starts.

Each child trains a copy of the network under one plan; candidate and baseline take turns, as in the tuner. The children
die with this process, and are stopped at the end of the measurement.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from drivetrain import optimizations
from drivetrain.hardware import cgroup
from drivetrain.hardware.detect import read_memory
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.optimizations import Effect, Optimization, Stage, Value
from drivetrain.plan import calibrated, evidence
from drivetrain.plan.evidence import Measurement
from drivetrain.plan.plan import OPEN, Plan, format_value
from drivetrain.system.files import write_json
from drivetrain.system.units import format_bytes
from drivetrain.tuning.bench.variant import Failed, RunningVariant, VariantPool
from drivetrain.tuning.paired_timing import compare

if TYPE_CHECKING:
    from drivetrain.tuning import variants

MIN_BUDGET_SECONDS = 30.0
"""Seconds of budget from which on children are worth starting."""
MIN_START_SECONDS = 5.0
"""Seconds that a child needs at least until it is ready."""
START_MULTIPLES = 3
"""Required time as a multiple of a child's start: two starts, and as much for the comparison."""
ORDER = ("cpu_threads", "allocator", "openmp_runtime")
"""Settings that may gain most come first."""

Rival = tuple[Optimization, Value]


def names() -> set[str]:
    """The decisions that are fixed when a process starts."""
    return {o.name for o in optimizations.every() if o.stage is Stage.PROCESS}


def list_contested(job: Job, hardware: Hardware, plan: Plan) -> list[Rival]:
    """Values worth measuring in a child, in order of their expected gain."""
    rivals = [
        (optimization, value)
        for optimization in optimizations.every()
        if optimization.stage is Stage.PROCESS and plan.row(optimization.name).source in OPEN
        for value in optimization.candidates(job, hardware, None)
        if value != (present := plan.row(optimization.name).value)
        and not calibrated.is_hopeless(optimization, job, hardware, None, value, present)
    ]
    return sorted(rivals, key=lambda rival: ORDER.index(rival[0].name) if rival[0].name in ORDER else len(ORDER))


def measure(
    source: SpecSource,
    hardware: Hardware,
    plan: Plan,
    rivals: Sequence[Rival],
    total: float,
    seconds: float,
    say: Callable[[str], None],
    standing: float = MIN_START_SECONDS,
) -> dict[str, Measurement]:
    """The results for candidate values of the effective plan.

    Args:
        source: the spec.
        hardware: the machine.
        plan: all decisions; its values are the baselines.
        rivals: the candidates, in order.
        total: predicted seconds of the run.
        seconds: time limit.
        say: reports progress.
        standing: seconds that a child is expected to need until it is ready.
    """
    end, measurements = time.monotonic() + seconds, dict[str, Measurement]()
    obstacle = _no_room()
    if obstacle or seconds < START_MULTIPLES * max(standing, MIN_START_SECONDS):
        say(f"tune: threads, OpenMP runtime and allocator not measured: {obstacle or 'not enough time'}")
        return measurements
    with tempfile.TemporaryDirectory(prefix="tune-") as scratch:
        write_json(Path(scratch) / "hardware.json", hardware.to_json())
        with VariantPool(hardware, Path(scratch), source, keep=True) as shop:
            try:
                _all(shop, plan, rivals, total, end, say, measurements)
            except Failed as error:
                say(f"tune: threads, OpenMP runtime and allocator not measured: {error}")
    return measurements


def _no_room() -> str | None:
    """Why two more processes like this one would not fit in memory; None if they would."""
    own_bytes = psutil.Process().memory_info().rss
    free = read_memory(Path("/"), cgroup.read_limits(Path("/"))).available
    return (
        f"two more processes of {format_bytes(own_bytes)} each do not fit into {format_bytes(free)} of free memory"
        if 2.5 * own_bytes > free
        else None
    )


def _all(
    shop: VariantPool,
    plan: Plan,
    rivals: Sequence[Rival],
    total: float,
    end: float,
    say: Callable[[str], None],
    measurements: dict[str, Measurement],
) -> None:

    start = time.monotonic()
    incumbent = shop.side(plan, patience=end - start)
    standing = time.monotonic() - start
    for optimization, value in rivals:
        name, seconds_left = optimization.name, end - time.monotonic()
        if seconds_left < 1.5 * standing:
            say(f"tune: {name} {format_value(value)} not measured: no time left")
            continue
        challenger = plan.with_values({name: value})
        side, verdict = _verdict(shop, incumbent, challenger, optimization, total, end)
        text, before = f"{format_value(value)} {verdict.text}", measurements.get(name)
        if verdict.wins:
            plan = challenger
        loser, incumbent = (incumbent, side) if verdict.wins and side else (side, incumbent)
        if loser:
            loser.close()
        measurements[name] = Measurement(
            plan.value(name), f"{before.text}; {text}" if before else text, evidence.today()
        )
        say(f"tune: {name} {text}{'; accepted' if verdict.wins else ''}")


def _verdict(
    shop: VariantPool, incumbent: RunningVariant, plan: Plan, optimization: Optimization, total: float, end: float
) -> tuple[RunningVariant | None, variants.Verdict]:
    """Compare a candidate with the baseline, each in its own child; both use the same random numbers."""
    from drivetrain.tuning import variants as arms

    try:
        side = shop.side(plan, patience=end - time.monotonic())
        exact = optimization.effect(None) is Effect.EXACT
        allowed = arms.TOLERANCE[Effect.EXACT] if exact else arms.tolerance(plan)
        wrong = arms.differs(side.ready.numbers, incumbent.ready.numbers, allowed, "the other")
        if wrong:
            return side, arms.Verdict(False, f"vetoed: {wrong}")
        pair = compare(
            lambda count: incumbent.steps(count).seconds,
            lambda count: side.steps(count).seconds,
            incumbent.ready.step,
            end - time.monotonic(),
        )
    except Failed as error:
        return None, arms.Verdict(False, f"failed: {error}")
    return side, arms.judge(pair, 0.0, total)
