"""Regret of short runs: the calibrated plan against the plan without a calibration, and against the best of a grid.

    python benchmarks/calibration.py [C1b C3 C5 C6] [--rounds 8] [--samples 4000] [--folder DIR] [--markdown FILE]

A run of a minute or two is too short to measure anything, so its plan is what the calibration of the machine predicts. For
each row the steps of that plan take turns with those of today's plan (without a calibration) and of every combination of
layout and number format that is possible here; compile is left out, as it does not pay in a short run. Figures are medians
of the ratios of pairs of blocks with their middle half; `cpu` is the same with CPU time in place of wall-clock time, which a
busy machine hardly changes. Regret is how many times faster the best combination is, measured again once it is known to be
the best; at least 1. Threads and preloaded libraries stay as they are in this process.

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
BLOCK = 0.5
"""Seconds of a block of steps."""
TARGET = 1.10


def main() -> int:
    """Measure, print; 0 if every regret is within the target."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*", default=["C1b", "C3", "C5", "C6"])
    parser.add_argument("--rounds", type=int, default=8, help="pairs of each comparison")
    parser.add_argument("--samples", type=int, default=4000, help="samples that are generated")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/drivetrain-calibration"))
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    here, head = calibrated(given.folder)
    lines = [head, "", "| row | calibrated plan | over today's plan | cpu | best of the grid | regret | cpu |"]
    lines.append("|---|---|---|---|---|---|---|")
    print("\n".join(lines), flush=True)
    worst = 1.0
    for name in given.rows:
        regret, line = row(name, here, given)
        worst = max(worst, regret)
        lines.append(line)
        print(line, flush=True)
    if given.markdown:
        given.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if worst <= TARGET else 1


def calibrated(folder: Path) -> tuple[Any, str]:
    """This machine with its calibration, and a line about both."""
    from drivetrain.hardware.detect import detect
    from drivetrain.tuning.calibration import calibrate

    folder.mkdir(parents=True, exist_ok=True)
    here = detect(folder)
    start = time.monotonic()
    outcome = calibrate.load_or_measure(here, limit=calibrate.ON_REQUEST)
    spent = time.monotonic() - start
    if outcome.calibration is None:
        raise SystemExit(f"no calibration: {'; '.join(outcome.events)}")
    how = "kept" if outcome.was_stored else f"made in {spent:.1f} s"
    head = (
        f"{here.cpu.model}, {here.cpu.budget} CPUs, {here.cpu.capped or 'no'} cap, torch {here.torch.version}; calibration of "
        f"{outcome.calibration.date}, {how}, {outcome.calibration.waited:.0%} of its CPU time taken by others; load {os.getloadavg()[0]:.1f}"
    )
    return replace(here, calibration=outcome.calibration), head


def row(name: str, here: Any, given: argparse.Namespace) -> tuple[float, str]:
    """The regret of a row, and its line of the table."""
    with tempfile.TemporaryDirectory() as scratch:
        tuner, today = ready(name, here, given, Path(scratch))
        plan = tuner.run.plan
        chosen = warm(tuner, plan)
        same = all(plan.value(key) == today.value(key) for key in SWITCHED)
        gain = None if same else paired(warm(tuner, today), chosen, given.rounds)
        found = {}
        for values in combinations(tuner):
            if values != {key: plan.value(key) for key in SWITCHED}:
                wall, cpu = paired(chosen, warm(tuner, plan.with_values(values)), max(3, given.rounds // 2))
                found[tuple(values.items())] = statistics.median(cpu)
        best = max(found, key=lambda key: found[key], default=None)
        regret, text, shown = 1.0, "the choice", "1.00 | 1.00"
        if best is not None and found[best] > 1:
            wall, cpu = paired(chosen, warm(tuner, plan.with_values(dict(best))), 2 * given.rounds)
            regret, text = max(1.0, statistics.median(cpu)), words(dict(best))
            shown = f"{spread(wall)} | {spread(cpu)}"
        gains = "the same plan | " if gain is None else f"{spread(gain[0])} | {spread(gain[1])}"
        return regret, f"| {name} | {words({key: plan.value(key) for key in SWITCHED})} | {gains} | {text} | {shown} |"


def ready(name: str, here: Any, given: argparse.Namespace, scratch: Path) -> tuple[Any, Any]:
    """A tuner over the calibrated plan of a row, and the plan without a calibration."""
    from benchmarks.contest.rows import ROWS
    from drivetrain.data.load_data import load
    from drivetrain.job_spec import load_job as job_spec
    from drivetrain.models import inspection
    from drivetrain.models.build import build
    from drivetrain.plan import plan as plans
    from drivetrain.system.signals import Signals
    from drivetrain.training import run as runs
    from drivetrain.training.phase_timer import PhaseTimer
    from drivetrain.tuning.tuner import Tuner

    found = replace(ROWS[name], samples=min(ROWS[name].samples, max(ROWS[name].few, given.samples)))
    found.make(given.folder, False)
    job = job_spec.load(found.job(given.folder, False, long=False))
    dataset = load(job)
    network = build(job, dataset)
    facts = inspection.inspect_workload(dataset, network.module)
    plan = plans.resolve(job, here, facts)
    today = plans.resolve(job, replace(here, calibration=None), facts)
    run = runs.assemble(job, here, plan, scratch, dataset, network, Signals(), PhaseTimer())
    return Tuner(run, dataset, network, lambda text: None), today


def combinations(tuner: Any) -> Iterator[dict[str, Any]]:
    """Every combination of layout, number format and padding that is possible here."""
    from drivetrain import optimizations

    made, lists = tuner.run, []
    for name in SWITCHED:
        one = next(o for o in optimizations.every() if o.name == name)
        values = one.candidates(made.job, made.hardware, tuner.facts)
        if one.off not in values and one.refuse(made.job, made.hardware, tuner.facts, one.off) is None:
            values = [*values, one.off]
        lists.append(dict.fromkeys(values))
    return (dict(zip(SWITCHED, each, strict=True)) for each in itertools.product(*lists))


def warm(tuner: Any, plan: Any) -> Any:
    """A variant that has seen a few batches."""
    arm = tuner.build(plan)
    arm.time_steps(3)
    return arm


def paired(first: Any, second: Any, rounds: int) -> tuple[list[float], list[float]]:
    """How many times faster the second is, by pairs of blocks: in wall-clock time and in CPU time."""
    count = max(1, round(BLOCK / (first.time_steps(2) / 2)))
    ratios: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        times = {}
        for side in (first, second) if number % 2 == 0 else (second, first):
            begun = time.process_time()
            times[id(side)] = side.time_steps(count), time.process_time() - begun
        for place in (0, 1):
            ratios[place].append(times[id(first)][place] / times[id(second)][place])
    return ratios


def spread(ratios: list[float]) -> str:
    """The median and the middle half."""
    low, _, high = statistics.quantiles(ratios, n=4)
    return f"{statistics.median(ratios):.2f} [{low:.2f}-{high:.2f}]"


def words(values: dict[str, Any]) -> str:
    """`channels_last true, precision bf16`; what is off is left out."""
    shown = {name: str(value).lower() for name, value in values.items() if value not in (False, "off")}
    return ", ".join(f"{name} {value}" for name, value in shown.items()) or "nothing"


if __name__ == "__main__":
    sys.exit(main())
