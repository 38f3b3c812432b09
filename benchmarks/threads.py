"""One thread against two on a machine with two logical CPUs: do they share a core, and which count trains faster?

    python benchmarks/threads.py [JOB ...] [--seconds 120] [--threads 1 2]

First, matrix products in one process pinned to the first CPU, alone and beside a second process pinned to the other, in
turn: hyperthreads of one core slow each other down, separate cores do not. Products are counted per second of CPU time, so
that a busy neighbor hardly matters. Then, for each job, the comparison that a long run makes by itself: child processes
with either count, steps in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from drivetrain import optimizations
from drivetrain.hardware.detect import detect
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.plan import plan
from drivetrain.tuning import process_settings
from drivetrain.tuning.tuner_state import TunerState

ROOT = Path(__file__).resolve().parent.parent
JOBS = ("digits", "series", "reports")
PRODUCTS = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
import torch
torch.set_num_threads(1)
a, b = torch.randn(512, 512), torch.randn(512, 512)
for _ in range(20): a @ b
for line in sys.stdin:
    end, begun, count = time.perf_counter() + 0.5, time.process_time(), 0
    while time.perf_counter() < end:
        a @ b
        count += 1
    print(count / (time.process_time() - begun), flush=True)
"""


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="*", default=[str(ROOT / f"jobs/{name}.yaml") for name in JOBS])
    parser.add_argument("--seconds", type=float, default=120.0, help="limit for each job")
    parser.add_argument("--threads", type=int, nargs=2, default=(1, 2))
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    first, second = sorted(os.sched_getaffinity(0))[:2]
    ratios = measure_interference(first, second, options.pairs)
    hardware = detect(Path("runs"))
    print(f"{hardware.cpu.model}: {hardware.cpu.affinity} logical CPUs, {hardware.cpu.cores} cores as the system tells")
    print(
        f"products of CPU {first} beside CPU {second}, over alone: {format_spread(ratios)} of {len(ratios)} pairs",
        flush=True,
    )
    for job in options.jobs:
        threads, other_threads = options.threads
        compare_threads(Path(job), threads, other_threads, options.seconds)


def measure_interference(first: int, second: int, pairs: int) -> list[float]:
    """Products per second on the first CPU while the second is busy, relative to those while it is not."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PRODUCTS, str(cpu)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for cpu in (first, second)
    ]

    def measure_rates(chosen_processes: list[subprocess.Popen[str]]) -> list[float]:
        for process in chosen_processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        return [float(process.stdout.readline()) for process in chosen_processes]

    measure_rates(processes)
    ratios = []
    for _ in range(pairs):
        alone = measure_rates(processes[:1])[0]
        ratios.append(measure_rates(processes)[0] / alone)
    for process in processes:
        process.stdin.close()
        process.wait()
    return ratios


def compare_threads(job: Path, threads: int, other_threads: int, seconds: float) -> None:
    """Steps of one job with either number of threads, in turn, as the tuner compares them."""
    source, hardware = SpecSource(job), detect(Path("runs"))
    name = "cpu_threads"
    job_plan = plan.resolve(source.load(), hardware).with_values({name: threads})
    candidate = next(o for o in optimizations.every() if o.name == name), other_threads
    unused: Any = None
    state = TunerState(job_plan, unused)
    process_settings.measure(source, hardware, state, [candidate], 3600.0, seconds, lambda text: None)
    verdicts = state.measurements
    print(
        f"{job.stem}: {other_threads} threads against {threads}: {verdicts[name].text if verdicts else 'not measured'}",
        flush=True,
    )


def format_spread(ratios: list[float]) -> str:
    """The median and the range."""
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"


if __name__ == "__main__":
    main()
