"""Regret of short runs: the calibrated plan against the plan without a calibration, and against the best of a grid.

    python benchmarks/calibration.py [C1b C3 C5 C6] [--rounds 8] [--samples 4000] [--folder DIR] [--markdown FILE]

A run of a minute or two is too short to measure anything, so its plan is what the calibration of the machine predicts. For
each row the steps of that plan take turns with those of today's plan (without a calibration) and of every combination of
layout and number format that is possible here; compile is left out, as it does not pay in a short run. Figures are medians
of the ratios of pairs of blocks with their middle half; `cpu` is the same with CPU time in place of wall-clock time, which a
busy machine hardly changes. Regret is how many times faster the best combination is, measured again once it has won; at
least 1. Threads and preloaded libraries stay as they are in this process.

Repeat it on a quiet machine; with an older instruction set:

    ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2 python benchmarks/calibration.py
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
SWITCHED = ("channels_last", "precision", "unpadding")
BLOCK_SECONDS = 0.5
"""Seconds of a block of steps."""
MAX_REGRET = 1.10


def main() -> int:
    """Measure, print; 0 if every regret is within the target."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*", default=["C1b", "C3", "C5", "C6"])
    parser.add_argument("--rounds", type=int, default=8, help="pairs of each comparison")
    parser.add_argument("--samples", type=int, default=4000, help="samples that are generated")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/drivetrain-calibration"))
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    machine, head = calibrate_machine(options.folder)
    lines = [head, "", "| row | calibrated plan | over today's plan | cpu | best of the grid | regret | cpu |"]
    lines.append("|---|---|---|---|---|---|---|")
    print("\n".join(lines), flush=True)
    worst_regret = 1.0
    for name in options.rows:
        regret, line = measure_row(name, machine, options)
        worst_regret = max(worst_regret, regret)
        lines.append(line)
        print(line, flush=True)
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if worst_regret <= MAX_REGRET else 1


def calibrate_machine(folder: Path) -> tuple[Any, str]:
    """This machine with its calibration, and a line about both."""
    from drivetrain.hardware.detect import detect
    from drivetrain.tuning.calibration import calibrate

    folder.mkdir(parents=True, exist_ok=True)
    machine = detect(folder)
    start = time.monotonic()
    outcome = calibrate.load_or_measure(machine, limit=calibrate.ON_REQUEST)
    seconds = time.monotonic() - start
    if outcome.calibration is None:
        raise SystemExit(f"no calibration: {'; '.join(outcome.events)}")
    origin = "kept" if outcome.was_stored else f"made in {seconds:.1f} s"
    head = (
        f"{machine.cpu.model}, {machine.cpu.budget} CPUs, {machine.cpu.capped or 'no'} cap, "
        f"torch {machine.torch.version}; calibration of {outcome.calibration.date}, {origin}, "
        f"{outcome.calibration.waited:.0%} of its CPU time taken by others; load {os.getloadavg()[0]:.1f}"
    )
    return replace(machine, calibration=outcome.calibration), head


def measure_row(name: str, machine: Any, options: argparse.Namespace) -> tuple[float, str]:
    """The regret of a row, and its line of the table."""
    with tempfile.TemporaryDirectory() as scratch:
        tuner, plan_today = prepare_tuner(name, machine, options, Path(scratch))
        plan = tuner.run.plan
        chosen_variant = warm_up(tuner, plan)
        is_same_plan = all(plan.value(key) == plan_today.value(key) for key in SWITCHED)
        gain = None if is_same_plan else time_pairs(warm_up(tuner, plan_today), chosen_variant, options.rounds)
        cpu_ratios = {}
        for values in list_combinations(tuner):
            if values != {key: plan.value(key) for key in SWITCHED}:
                wall, cpu = time_pairs(
                    chosen_variant, warm_up(tuner, plan.with_values(values)), max(3, options.rounds // 2)
                )
                cpu_ratios[tuple(values.items())] = statistics.median(cpu)
        best = max(cpu_ratios, key=lambda key: cpu_ratios[key], default=None)
        regret, best_values, regret_cells = 1.0, "the choice", "1.00 | 1.00"
        if best is not None and cpu_ratios[best] > 1:
            wall, cpu = time_pairs(chosen_variant, warm_up(tuner, plan.with_values(dict(best))), 2 * options.rounds)
            regret, best_values = max(1.0, statistics.median(cpu)), format_values(dict(best))
            regret_cells = f"{format_spread(wall)} | {format_spread(cpu)}"
        gains = "the same plan | " if gain is None else f"{format_spread(gain[0])} | {format_spread(gain[1])}"
        choice = format_values({key: plan.value(key) for key in SWITCHED})
        return regret, f"| {name} | {choice} | {gains} | {best_values} | {regret_cells} |"


def prepare_tuner(name: str, machine: Any, options: argparse.Namespace, scratch: Path) -> tuple[Any, Any]:
    """A tuner over the calibrated plan of a row, and the plan without a calibration."""
    from benchmarks.contest.rows import ROWS
    from drivetrain.data.load_data import load
    from drivetrain.job_spec import load_job as job_spec
    from drivetrain.models import inspection
    from drivetrain.models.build import build
    from drivetrain.plan import plan as plans
    from drivetrain.system.signals import Signals
    from drivetrain.tuning.memory.micro_batch import MicroBatchSearch
    from drivetrain.tuning.tuner import Tuner

    row = replace(ROWS[name], samples=min(ROWS[name].samples, max(ROWS[name].smoke_samples, options.samples)))
    row.write_data(options.folder, False)
    job = job_spec.load(row.write_job(options.folder, False, long=False))
    dataset = load(job)
    network = build(job, dataset)
    facts = inspection.inspect_workload(dataset, network.module)
    plan = plans.resolve(job, machine, facts)
    plan_today = plans.resolve(job, replace(machine, calibration=None), facts)
    search = MicroBatchSearch(job, machine, plan, dataset, network, facts, scratch, Signals(), lambda text: None)
    return Tuner(search), plan_today


def list_combinations(tuner: Any) -> Iterator[dict[str, Any]]:
    """Every combination of layout, number format and padding that is possible here."""
    from drivetrain import optimizations

    run, value_lists = tuner.run, []
    for name in SWITCHED:
        optimization = next(candidate for candidate in optimizations.every() if candidate.name == name)
        values = optimization.candidates(run.job, run.hardware, tuner.facts)
        if (
            optimization.off not in values
            and optimization.refuse(run.job, run.hardware, tuner.facts, optimization.off) is None
        ):
            values = [*values, optimization.off]
        value_lists.append(dict.fromkeys(values))
    return (dict(zip(SWITCHED, combination, strict=True)) for combination in itertools.product(*value_lists))


def warm_up(tuner: Any, plan: Any) -> Any:
    """Build a variant and run it on a few batches."""
    variant = tuner.build(plan)
    variant.time_steps(3)
    return variant


def time_pairs(first: Any, second: Any, rounds: int) -> tuple[list[float], list[float]]:
    """How many times faster the second is, by pairs of blocks: in wall-clock time and in CPU time."""
    count = max(1, round(BLOCK_SECONDS / (first.time_steps(2) / 2)))
    ratios: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        times = {}
        for side in (first, second) if number % 2 == 0 else (second, first):
            start = time.process_time()
            times[id(side)] = side.time_steps(count), time.process_time() - start
        for clock in (0, 1):
            ratios[clock].append(times[id(first)][clock] / times[id(second)][clock])
    return ratios


def format_spread(ratios: list[float]) -> str:
    """The median and the middle half."""
    low, _, high = statistics.quantiles(ratios, n=4)
    return f"{statistics.median(ratios):.2f} [{low:.2f}-{high:.2f}]"


def format_values(values: dict[str, Any]) -> str:
    """`channels_last true, precision bf16`; what is off is left out."""
    active_values = {name: str(value).lower() for name, value in values.items() if value not in (False, "off")}
    return ", ".join(f"{name} {value}" for name, value in active_values.items()) or "nothing"


if __name__ == "__main__":
    sys.exit(main())
