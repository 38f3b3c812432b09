"""The same network with whole and with divided weights: memory of all processes, and samples per second.

    python -m benchmarks.sharding [--counts 2,3] [--rounds 3] [--layers 12] [--width 512]

The encoder of the reports job, so deep and wide that weights, gradients and moments are most of its memory. The ways take turns;
medians. Memory is that of benchmarks.processes: the largest sum over all processes while they train.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.processes import MIB, ROOT, RunFigures, prepare_job, train_job

WAYS = {"whole": "false", "divided": "true"}


def main() -> None:
    """Print a line for each run, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="2,3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    runs_by_way: dict[tuple[int, str], list[RunFigures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        job_arguments = [*prepare_job("reports", Path(folder)), f"train.steps={options.steps}", "data.validation=0.01"]
        job_arguments += [f"model.layers={options.layers}", f"model.width={options.width}", "checkpoint.keep=1"]
        for number in range(options.rounds):
            for count in map(int, options.counts.split(",")):
                for way in list(WAYS)[:: -1 if number % 2 else 1]:
                    runs_folder = Path(tempfile.mkdtemp(dir=folder))
                    figures = train_job(ROOT, [*job_arguments, f"optimize.sharding={WAYS[way]}"], count, runs_folder)
                    runs_by_way.setdefault((count, way), []).append(figures)
                    print(f"# {count} {way} load {os.getloadavg()[0]:.1f}: {figures}", flush=True)
    print("| processes | weights | memory | samples/s |\n|---|---|---|---|")
    for (count, way), runs in runs_by_way.items():
        memory, speed = (statistics.median(getattr(figures, kind) for figures in runs) for kind in ("memory", "speed"))
        print(f"| {count} | {way} | {memory / MIB:,.0f} MiB | {speed:,.1f} |")


if __name__ == "__main__":
    main()
