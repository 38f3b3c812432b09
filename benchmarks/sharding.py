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

from benchmarks.processes import MIB, ROOT, Trained, requested, trained

WAYS = {"whole": "false", "divided": "true"}


def main() -> None:
    """Print a line for each run, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="2,3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=6)
    given = parser.parse_args()
    found: dict[tuple[int, str], list[Trained]] = {}
    with tempfile.TemporaryDirectory() as folder:
        request = [*requested("reports", Path(folder)), f"train.steps={given.steps}", "data.validation=0.01"]
        request += [f"model.layers={given.layers}", f"model.width={given.width}", "checkpoint.keep=1"]
        for number in range(given.rounds):
            for count in map(int, given.counts.split(",")):
                for way in list(WAYS)[:: -1 if number % 2 else 1]:
                    runs = Path(tempfile.mkdtemp(dir=folder))
                    one = trained(ROOT, [*request, f"optimize.sharding={WAYS[way]}"], count, runs)
                    found.setdefault((count, way), []).append(one)
                    print(f"# {count} {way} load {os.getloadavg()[0]:.1f}: {one}", flush=True)
    print("| processes | weights | memory | samples/s |\n|---|---|---|---|")
    for (count, way), runs_ in found.items():
        memory, speed = (statistics.median(getattr(one, kind) for one in runs_) for kind in ("memory", "speed"))
        print(f"| {count} | {way} | {memory / MIB:,.0f} MiB | {speed:,.1f} |")


if __name__ == "__main__":
    main()
