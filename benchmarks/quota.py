"""Threads under a CPU quota: our thread count against torch's own, in the same image, measured alternately.

    python benchmarks/quota.py [--cpus 1 0.5] [--pairs 3]

Prints samples per second of both, and the median ratio with its spread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path

from drivetrain.launch.project import image_name

ROOT = Path(__file__).resolve().parent.parent
READ_RESULT = "cat /workspace/runs/*/result.json"


def measure_rate(cpus: str, threads: str, epochs: int) -> float:
    """Samples per second of one training in a fresh container; spin time and runtime as torch has them by default."""
    train = (
        f"python -m drivetrain train jobs/digits.yaml --set train.epochs={epochs} --set optimize.cpu_threads={threads} "
        "--set model.name=small-cnn >/dev/null 2>&1"
    )
    command = [
        "docker",
        "run",
        "--rm",
        "--init",
        f"--cpus={cpus}",
        "-v",
        f"{ROOT}/jobs:/workspace/jobs:ro",
        "--tmpfs",
        "/workspace/runs:mode=1777",
        "--entrypoint",
        "sh",
        image_name("cpu"),
        "-c",
        f"{train}; {READ_RESULT}",
    ]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(json.loads(output)["samples_per_second"])


def main() -> None:
    """Measure A B A B, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpus", nargs="+", default=["1", "0.5"])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    for cpus in options.cpus:
        ratios = []
        for _ in range(options.pairs):
            ours, theirs = measure_rate(cpus, "auto", options.epochs), measure_rate(cpus, "off", options.epochs)
            ratios.append(ours / theirs)
            print(f"--cpus {cpus}: plan {ours:.0f} samples/s, torch's default {theirs:.0f} samples/s", flush=True)
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        print(f"--cpus {cpus}: median ratio {statistics.median(ratios):.2f} [{spread}] of {options.pairs} pairs")


if __name__ == "__main__":
    main()
