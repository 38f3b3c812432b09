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
    "patterns": 300,
    "reports": 1000,
    "series": 16000,
    "table": 4000,
}
"""Images, texts or rows of the generated data of a job."""
OPTIONS = ("train.epochs=1", "optimize.measure=off")


@dataclass(frozen=True)
class RunTimes:
    """Seconds of one run, by the clock and of CPU time; CPU time is 0 in a container."""

    start: float
    start_cpu: float
    end: float
    end_cpu: float


def main() -> int:
    """Measure, and print a table for each part."""
    options = parse_arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    write_data(options.folder, options.jobs)
    sides = [ROOT, *filter(None, [options.against])]
    print(f"load {os.getloadavg()[0]:.1f} at the start, {options.repeats} repeats, {options.image or 'natively'}\n")
    print("| job | command to first step | CPU time | last evaluation to exit | CPU time |\n|---|---|---|---|---|")
    for job in options.jobs:
        runs_by_side: list[list[RunTimes]] = [[] for _ in sides]
        # The first turn only warms the file cache.
        for turn in range(options.repeats + 1):
            for side, checkout in enumerate(sides):
                times = time_run(checkout, job, options.folder, options.image)
                if turn:
                    runs_by_side[side].append(times)
        cells = (
            format_times([[getattr(run, part) for run in side] for side in runs_by_side])
            for part in RunTimes.__dataclass_fields__
        )
        print(f"| {job} | {' | '.join(cells)} |", flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout, for pairs")
    parser.add_argument("--image", help="a CPU image")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/drivetrain-startup"))
    return parser.parse_args()


def format_times(sides: Sequence[Sequence[float]]) -> str:
    """Median with lowest and highest of each side, the other checkout first, and the ratio of the medians."""
    if not any(map(any, sides)):
        return ""
    times = [
        f"{statistics.median(seconds):.2f} s [{min(seconds):.2f}-{max(seconds):.2f}]" for seconds in reversed(sides)
    ]
    ratio = f" ({statistics.median(sides[0]) / statistics.median(sides[1]):.2f})" if len(sides) > 1 else ""
    return " -> ".join(times) + ratio


def write_data(folder: Path, jobs: Sequence[str]) -> None:
    """Write the jobs and their data below a folder, as the jobs' comments say."""
    subprocess.run(["cp", "-r", str(ROOT / "jobs"), str(folder)], check=True)
    for job in jobs:
        if job in SAMPLES and not (folder / "jobs" / "data" / job).exists():
            command = [sys.executable, "-m", "jobs.samples.write", job, "--size", str(SAMPLES[job])]
            subprocess.run(command, cwd=folder, env=make_environment(ROOT), check=True, stdout=subprocess.DEVNULL)


def make_environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{checkout}/runtime:{checkout}"}


def time_run(checkout: Path, job: str, folder: Path, image: str | None) -> RunTimes:
    """Train a job for an epoch; returns the seconds of its start and end."""
    options = [word for option in OPTIONS for word in ("--set", option)]
    arguments = ["train", f"jobs/{job}.yaml", "--new", *options]
    command = (
        make_container_command(checkout, folder, image, arguments)
        if image
        else [sys.executable, "-m", "drivetrain", *arguments]
    )
    start, first, last = time.monotonic(), (0.0, 0.0), (0.0, 0.0)
    cpu_before = os.times()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, env=make_environment(checkout)
    ) as process:
        assert process.stdout is not None
        tail = ""
        for line in process.stdout:
            tail = line
            if "step 1/" in line and not first[0]:
                first = (time.monotonic(), read_cpu_seconds(process.pid))
            elif "validation/" in line and line.startswith("epoch"):
                last = (time.monotonic(), read_cpu_seconds(process.pid))
    end, cpu_after = time.monotonic(), os.times()
    if process.returncode or not (first[0] and last[0]):
        raise SystemExit(f"{job} ended with {process.returncode}: {tail}")
    cpu_seconds = (
        cpu_after.children_user + cpu_after.children_system - cpu_before.children_user - cpu_before.children_system
    )
    cpu = 0.0 if image else 1.0
    return RunTimes(first[0] - start, first[1] * cpu, end - last[0], (cpu_seconds - last[1]) * cpu)


def make_container_command(checkout: Path, folder: Path, image: str, train_arguments: Sequence[str]) -> list[str]:
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
        *train_arguments,
    ]


def read_cpu_seconds(pid: int) -> float:
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
