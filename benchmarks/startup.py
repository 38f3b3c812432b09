"""Start-up and end of short runs: from the command to the first step, and from the last evaluation to the exit.

    python benchmarks/startup.py [--jobs digits series] [--repeats 3] [--against CHECKOUT] [--image NAME] [--folder DIR]

Every example job trains for one epoch, without measurements. CPU seconds are those of all of its processes, and depend
less on what else the machine does than seconds by the clock. With `--against` another checkout takes turns with this
one, run by run. With `--image` the runs are in containers of that image, with the runtime of each checkout mounted over
its own, and only the clock is read.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
JOBS = ("digits", "own-model", "patterns", "reports", "series", "table")
SAMPLES = {
    "patterns": ("images", 300),
    "reports": ("texts", 1000),
    "series": ("series", 16000),
    "table": ("table", 4000),
}
"""Generated data of a job: kind and size."""
OPTIONS = ("train.epochs=1", "optimize.measure=off")


@dataclass(frozen=True)
class Spent:
    """Seconds of one run, by the clock and of CPU time; CPU time is 0 in a container."""

    start: float
    start_cpu: float
    end: float
    end_cpu: float


def main() -> int:
    """Measure, and print a table for each part."""
    given = arguments()
    given.folder.mkdir(parents=True, exist_ok=True)
    generate(given.folder, given.jobs)
    sides = [ROOT, *filter(None, [given.against])]
    print(f"load {os.getloadavg()[0]:.1f} at the start, {given.repeats} repeats, {given.image or 'natively'}\n")
    print("| job | command to first step | CPU time | last evaluation to exit | CPU time |\n|---|---|---|---|---|")
    for job in given.jobs:
        found: list[list[Spent]] = [[] for _ in sides]
        # The first turn only warms the file cache.
        for turn in range(given.repeats + 1):
            for side, checkout in enumerate(sides):
                spent = run(checkout, job, given.folder, given.image)
                if turn:
                    found[side].append(spent)
        cells = (words([[getattr(s, part) for s in side] for side in found]) for part in Spent.__dataclass_fields__)
        print(f"| {job} | {' | '.join(cells)} |", flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout, for pairs")
    parser.add_argument("--image", help="a CPU image")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/drivetrain-startup"))
    return parser.parse_args()


def words(sides: Sequence[Sequence[float]]) -> str:
    """Median with lowest and highest of each side, the other checkout first, and the ratio of the medians."""
    if not any(map(any, sides)):
        return ""
    told = [f"{statistics.median(s):.2f} s [{min(s):.2f}-{max(s):.2f}]" for s in reversed(sides)]
    ratio = f" ({statistics.median(sides[0]) / statistics.median(sides[1]):.2f})" if len(sides) > 1 else ""
    return " -> ".join(told) + ratio


def generate(folder: Path, jobs: Sequence[str]) -> None:
    """The jobs and their data below a folder, as the jobs' comments say."""
    subprocess.run(["cp", "-r", str(ROOT / "jobs"), str(folder)], check=True)
    for job in jobs:
        if job in SAMPLES and not (folder / "jobs" / "data" / job).exists():
            kind, size = SAMPLES[job]
            words = ["sample", kind, f"jobs/data/{job}", "--size", str(size)]
            subprocess.run([sys.executable, "-m", "drivetrain", *words], cwd=folder, env=environment(ROOT), check=True,
                           stdout=subprocess.DEVNULL)  # fmt: skip


def environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{checkout}/runtime:{checkout}"}


def run(checkout: Path, job: str, folder: Path, image: str | None) -> Spent:
    """Train a job for an epoch; the seconds of its parts."""
    options = [word for option in OPTIONS for word in ("--set", option)]
    words = ["train", f"jobs/{job}.yaml", "--new", *options]
    command = contained(checkout, folder, image, words) if image else [sys.executable, "-m", "drivetrain", *words]
    begun, first, last = time.monotonic(), (0.0, 0.0), (0.0, 0.0)
    before = os.times()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, env=environment(checkout)
    ) as process:
        assert process.stdout is not None
        tail = ""
        for line in process.stdout:
            tail = line
            if "step 1/" in line and not first[0]:
                first = (time.monotonic(), tree_seconds(process.pid))
            elif "validation/" in line and line.startswith("epoch"):
                last = (time.monotonic(), tree_seconds(process.pid))
    ended, after = time.monotonic(), os.times()
    if process.returncode or not (first[0] and last[0]):
        raise SystemExit(f"{job} ended with {process.returncode}: {tail}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    cpu = 0.0 if image else 1.0
    return Spent(first[0] - begun, first[1] * cpu, ended - last[0], (used - last[1]) * cpu)


def contained(checkout: Path, folder: Path, image: str, words: Sequence[str]) -> list[str]:
    """The command in a container as it is launched, without network; the runs lie in its memory."""
    mounts = [f"{checkout}/runtime:/opt/drivetrain/runtime:ro", f"{folder}/jobs:/workspace/jobs:ro"]
    volumes = [word for mount in mounts for word in ("-v", mount)]
    return [
        "docker",
        "run",
        "--rm",
        "--init",
        "--network=none",
        "--tmpfs",
        "/workspace/runs:mode=1777",
        *volumes,
        image,
        *words,
    ]


def tree_seconds(pid: int) -> float:
    """CPU seconds of a process, its living descendants, and those that it has waited for."""
    total = 0.0
    for process in (top := psutil.Process(pid), *top.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system
        if process is top:
            total += times.children_user + times.children_system
    return total


if __name__ == "__main__":
    sys.exit(main())
