"""The same jobs with 1, 2 and 4 processes on this machine: samples per second, and memory.

    python -m benchmarks.processes [--jobs digits,reports,images,texts] [--counts 1,2,4] [--rounds 1] [--root DIR ...]

`images` and `texts` are larger data sets in memory: 60,000 images of 3 x 32 x 32 numbers, and 50,000 reports. The others are
the example jobs. `--root` names checkouts whose code is run, in turn, to compare two versions. Memory is the proportional set
size (PSS) of all processes of a run, anonymous and shared memory without the files of libraries: a page that several share
counts once. Told is the largest sum while training.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
STEPS = 40
LITTLE = "data.validation=0.01"
PLAIN = ["optimize.measure=off", "limits.memory=16g"]


@dataclass(frozen=True)
class Trained:
    """One run: samples per second of its steps, and bytes of all its processes."""

    speed: float
    memory: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default="images,texts")
    parser.add_argument("--counts", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--root", nargs="+", type=Path, default=[ROOT])
    given = parser.parse_args()
    found: dict[tuple[str, str, int], list[Trained]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for job in given.jobs.split(","):
            request = _request(job, Path(folder))
            for _ in range(given.rounds):
                for count in map(int, given.counts.split(",")):
                    for root in given.root:
                        runs = Path(tempfile.mkdtemp(dir=folder))
                        one = trained(root, [*request, f"train.steps={given.steps}"], count, runs)
                        found.setdefault((job, root.name, count), []).append(one)
                        print(f"# {job} {root.name} {count}: {one}", flush=True)
    print("| job | code | processes | samples/s | ratio | memory | ratio |\n" + "|---" * 7 + "|")
    for (job, name, count), runs_ in found.items():
        speed, memory = (statistics.median(getattr(one, k) for one in runs_) for k in ("speed", "memory"))
        first = found.get((job, name, 1), runs_)
        base = [statistics.median(getattr(one, k) for one in first) for k in ("speed", "memory")]
        sizes = f"{memory / MIB:,.0f} MiB | {memory / base[1]:.2f}"
        print(f"| {job} | {name} | {count} | {speed:,.0f} | {speed / base[0]:.2f} | {sizes} |")


def _request(job: str, folder: Path) -> list[str]:
    """A job file and its overrides; writes the data."""
    if job == "images":
        noise = np.random.default_rng(0)
        labels = noise.integers(0, 10, 60_000)
        images = noise.integers(0, 200, (60_000, 3, 32, 32), dtype=np.uint8) + labels[:, None, None, None].astype(
            np.uint8
        )
        np.savez(folder / "images.npz", images=images, labels=labels)
        return [str(ROOT / "jobs/digits.yaml"), f"data.train={folder}/images.npz", "train.batch_size=128", LITTLE]
    if job == "texts":
        command = [sys.executable, "-m", "runtime", "sample", "texts", str(folder / "texts"), "--size", "50000"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return [str(ROOT / "jobs/reports.yaml"), f"data.train={folder}/texts/reports.csv", LITTLE]
    return [str(ROOT / f"jobs/{job}.yaml")]


def trained(root: Path, request: list[str], count: int, runs: Path) -> Trained:
    """Train a job with the code of a checkout; raises if that fails."""
    job, *sets = request
    pairs = [part for one in [*sets, *PLAIN, f"limits.processes={count}"] for part in ("--set", one)]
    process = subprocess.Popen(
        [sys.executable, "-m", "runtime", "train", job, "--runs", str(runs), "--new", *pairs],
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    sizes: list[int] = []
    while process.poll() is None:
        time.sleep(0.25)
        begun = any(path.stat().st_size for path in runs.glob("*/metrics.jsonl"))
        if begun and (size := sum(_pss(process.pid))):
            sizes.append(size)
    if process.returncode:
        raise SystemExit(process.communicate()[1].decode())
    result = json.loads(next(runs.glob("*/result.json")).read_text(encoding="utf-8"))
    return Trained(result["samples_per_second"], max(sizes))


def _pss(pid: int) -> Iterator[int]:
    """Proportional set sizes of a process and all below it."""
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
                lines = [line.split() for line in text.splitlines()]
                yield sum(int(words[1]) * 1024 for words in lines if words[0] in ("Pss_Anon:", "Pss_Shmem:"))


if __name__ == "__main__":
    main()
