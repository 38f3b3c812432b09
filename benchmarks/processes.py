"""The same jobs with 1, 2 and 4 processes on this machine: samples per second, and memory.

    python -m benchmarks.processes [--jobs digits,patterns,...] [--counts 1,2,4] [--rounds 3] [--root BEFORE AFTER]

The default is all example jobs, one for each task; their sample data is written anew. `images` and `texts` are larger data
sets in memory: 60,000 images of 3 x 32 x 32 numbers, and 50,000 reports. `--root` names checkouts whose code is run, in turn,
to compare two versions; the order changes from round to round. Memory is the proportional set size (PSS) of all processes of a
run, anonymous and shared memory without the files of libraries: a page that several share counts once. The table has
the largest sum while training. Samples per second are those of training and input, without the start, evaluations and
checkpoints.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from jobs.samples.write import SIZES, write  # noqa: E402

MIB = 2**20
STEPS = {"digits": 150, "patterns": 60, "reports": 60, "series": 40, "table": 300, "own-model": 100}
"""Steps of the example jobs: some seconds on a machine of 2 CPUs."""
DEFAULT_STEPS = 40
DATA = {"patterns": "", "reports": "reports.csv", "series": "train.csv", "table": "train.parquet"}
"""Files of the data of example jobs, in the folder that is made for each; the others bring their own."""
SMALL_VALIDATION = "data.validation=0.01"
COMMON_SETTINGS = ["optimize.measure=off", "limits.memory=16g"]
RunsByWay = dict[tuple[str, str, int], list["RunFigures"]]


@dataclass(frozen=True)
class RunFigures:
    """One run: samples per second of its steps, and bytes of all its processes."""

    speed: float
    memory: float


def main() -> None:
    """Print a line for each run, and the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=",".join(STEPS))
    parser.add_argument("--counts", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, help="of each run; by default 40 to 300, by the job")
    parser.add_argument("--root", nargs="+", type=Path, default=[ROOT])
    options = parser.parse_args()
    runs_by_way: RunsByWay = {}
    roots = [root.resolve() for root in options.root]
    with tempfile.TemporaryDirectory() as folder:
        jobs = {job: prepare_job(job, Path(folder)) for job in options.jobs.split(",")}
        for number in range(options.rounds):
            for job, job_arguments in jobs.items():
                steps = f"train.steps={options.steps or STEPS.get(job, DEFAULT_STEPS)}"
                for count in map(int, options.counts.split(",")):
                    for root in roots[:: -1 if number % 2 else 1]:
                        figures = train_job(root, [*job_arguments, steps], count, Path(tempfile.mkdtemp(dir=folder)))
                        runs_by_way.setdefault((job, root.name, count), []).append(figures)
                        print(f"# {job} {root.name} {count} load {os.getloadavg()[0]:.1f}: {figures}", flush=True)
    _print_medians(runs_by_way)
    if len(roots) == 2:
        _print_comparison(runs_by_way, roots[0].name, roots[1].name)


def _print_medians(runs_by_way: RunsByWay) -> None:
    """Medians, and their ratio to one process."""
    print("| job | code | processes | samples/s | ratio | memory | ratio |\n" + "|---" * 7 + "|")
    for (job, name, count), runs in runs_by_way.items():
        speed, memory = (_compute_median(runs, kind) for kind in ("speed", "memory"))
        first = runs_by_way.get((job, name, 1), runs)
        sizes = f"{memory / MIB:,.0f} MiB | {memory / _compute_median(first, 'memory'):.2f}"
        print(f"| {job} | {name} | {count} | {speed:,.0f} | {speed / _compute_median(first, 'speed'):.2f} | {sizes} |")


def _print_comparison(runs_by_way: RunsByWay, before: str, after: str) -> None:
    """Ratios of two versions in the same round, one after the other."""
    print("\n| job | processes | speed, after / before | memory, after / before |\n|---|---|---|---|")
    for job, name, count in runs_by_way:
        if name == before:
            pairs = list(zip(runs_by_way[job, before, count], runs_by_way[job, after, count], strict=True))
            speed = _format_spread([new.speed / old.speed for old, new in pairs])
            print(f"| {job} | {count} | {speed} | {_format_spread([new.memory / old.memory for old, new in pairs])} |")


def _compute_median(runs: Sequence[RunFigures], kind: str) -> float:
    return statistics.median(getattr(run, kind) for run in runs)


def _format_spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def prepare_job(job: str, folder: Path) -> list[str]:
    """A job file and its overrides; writes the data."""
    if job == "images":
        noise = np.random.default_rng(0)
        labels = noise.integers(0, 10, 60_000)
        images = noise.integers(0, 200, (60_000, 3, 32, 32), dtype=np.uint8) + labels[:, None, None, None].astype(
            np.uint8
        )
        np.savez(folder / "images.npz", images=images, labels=labels)
        return [
            str(ROOT / "jobs/digits.yaml"),
            f"data.train={folder}/images.npz",
            "train.batch_size=128",
            SMALL_VALIDATION,
        ]
    if job == "texts":
        write("reports", folder / "many", 50_000)
        return [str(ROOT / "jobs/reports.yaml"), f"data.train={folder}/many/reports.csv", SMALL_VALIDATION]
    job_arguments = [str(ROOT / f"jobs/{job}.yaml"), f"train.epochs={DEFAULT_STEPS}"]
    if job not in DATA:
        return job_arguments
    write(job, folder / job, SIZES[job])
    return [*job_arguments, f"data.train={folder / job / DATA[job]}"]


def train_job(root: Path, job_arguments: list[str], count: int, runs: Path) -> RunFigures:
    """Train a job with the code of a checkout; raises if that fails."""
    job, *settings = job_arguments
    options = [
        part for setting in [*settings, *COMMON_SETTINGS, f"limits.processes={count}"] for part in ("--set", setting)
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "drivetrain", "train", job, "--runs", str(runs), "--new", *options],
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    sizes: list[int] = []
    while process.poll() is None:
        time.sleep(0.25)
        has_begun = any(path.stat().st_size for path in runs.glob("*/metrics.jsonl"))
        if has_begun and (size := sum(_read_memory(process.pid))):
            sizes.append(size)
    if process.returncode:
        raise SystemExit(process.communicate()[1].decode())
    result = json.loads(next(runs.glob("*/result.json")).read_text(encoding="utf-8"))
    return RunFigures(result["samples_per_second"], max(sizes))


def _read_memory(pid: int) -> Iterator[int]:
    """Proportional set sizes of a process and all below it."""
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
                lines = [line.split() for line in text.splitlines()]
                yield sum(int(fields[1]) * 1024 for fields in lines if fields[0] in ("Pss_Anon:", "Pss_Shmem:"))


if __name__ == "__main__":
    main()
