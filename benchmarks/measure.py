"""What measuring costs: `measure: auto` against `measure: off` from command to report, and how soon a job takes its first step.

    python benchmarks/measure.py whole [--jobs digits,own-model,...] [--pairs 5] [--seconds 120] [--folder DIR]
    python benchmarks/measure.py start [--pairs 5] [--folder DIR]

`whole` trains the example jobs, shortened or (`--seconds`) as many epochs as take so long, in pairs that take turns; auto
may be slower by its budget at most, 2 % of the run, and the noise of the pairs is told beside it. `start` trains the digits job: seconds from the command to its
first step, less those of a Python that only imports torch, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHORT = {
    "digits": ["train.epochs=12"],
    "own-model": ["train.epochs=4"],
    "patterns": ["train.epochs=4"],
    "reports": ["train.epochs=2"],
    "series": ["train.epochs=2"],
    "table": ["train.epochs=3"],
}
DATA = {"patterns": ("images", 600), "reports": ("texts", 3000), "series": ("series", 32000), "table": ("table", 20000)}
INPUT = {"patterns": "", "reports": "reports.csv", "series": "train.csv", "table": "train.parquet"}
BEYOND_TORCH = 1.5
"""Seconds that the first step may come later than torch is imported."""
SHARE = 0.02


def main() -> int:
    """Measure, print, write; 0 if the goal is met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("whole", "start"))
    parser.add_argument("--jobs", default=",".join(SHORT))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="of a run without measuring; shortened jobs if absent")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/drivetrain-measure"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    rows = [start(given)] if given.what == "start" else [whole(name, given) for name in given.jobs.split(",")]
    told = {"date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0], "rows": rows}
    (given.folder / f"{given.what}-{given.jobs.replace(',', '-')}.json").write_text(json.dumps(told, indent=1))
    return 0 if all(row["met"] for row in rows) else 1


def whole(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Pairs of one job, auto against off."""
    settings = data(name, given.folder)
    settings += (
        [f"train.epochs={epochs(name, settings, given.seconds, given.folder)}"] if given.seconds else SHORT[name]
    )
    pairs = []
    for number in range(given.pairs):
        sides = ("auto", "off") if number % 2 == 0 else ("off", "auto")
        seconds = {side: trained(name, [*settings, f"optimize.measure={side}"], given.folder)[1] for side in sides}
        pairs.append((seconds["auto"], seconds["off"]))
    ratio = statistics.median(auto / off for auto, off in pairs)
    off = statistics.median(second for _, second in pairs)
    print(
        f"{name}: off {off:.1f} s, auto {ratio:.3f} times that (pairs "
        f"{' '.join(f'{auto / off:.3f}' for auto, off in pairs)})",
        flush=True,
    )
    return {"job": name, "off": off, "ratio": ratio, "pairs": pairs, "met": ratio <= 1 + SHARE}


def epochs(name: str, settings: list[str], seconds: float, folder: Path) -> int:
    """So many epochs of an example job take about `seconds`, by two runs of different length."""

    def timed(count: int) -> float:
        return trained(name, [*settings, f"train.epochs={count}", "optimize.measure=off"], folder)[1]

    short = int(SHORT[name][0].rpartition("=")[2])
    timed(short)
    first, more = timed(short), timed(5 * short)
    each = max((more - first) / (4 * short), 1e-3)
    count = short + round(max(seconds - first, 0) / each)
    print(f"{name}: {count} epochs, {each:.2f} s each", flush=True)
    return count


def data(name: str, folder: Path) -> list[str]:
    """The data of an example job as settings; made if they are not there."""
    if name not in DATA:
        return []
    kind, size = DATA[name]
    target = folder / kind
    if not target.exists():
        run([sys.executable, "-m", "drivetrain", "sample", kind, str(target), "--size", str(size)])
    return [f"data.train={target / INPUT[name]}"]


def trained(name: str, settings: list[str], folder: Path) -> tuple[float, float]:
    """Seconds from the command to the first step, and to the end."""
    command = [
        sys.executable,
        "-m",
        "drivetrain",
        "train",
        f"jobs/{name}.yaml",
        "--runs",
        str(folder / "runs"),
        "--new",
    ]
    for setting in settings:
        command += ["--set", setting]
    begin, first = time.perf_counter(), 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=surroundings()) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not first and "step 1/" in line:
                first = time.perf_counter() - begin
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return first, time.perf_counter() - begin


def start(given: argparse.Namespace) -> dict[str, Any]:
    """The digits job's first step against `import torch`."""
    trained("digits", ["train.epochs=1"], given.folder)
    pairs = []
    for _ in range(given.pairs):
        begin = time.perf_counter()
        run([sys.executable, "-c", "import torch"])
        torch = time.perf_counter() - begin
        pairs.append((trained("digits", ["train.epochs=1"], given.folder)[0], torch))
    beyond = statistics.median(first - torch for first, torch in pairs)
    print(
        f"first step of digits after {statistics.median(p[0] for p in pairs):.2f} s, import torch takes "
        f"{statistics.median(p[1] for p in pairs):.2f} s: {beyond:.2f} s beyond (goal: {BEYOND_TORCH})"
    )
    return {"job": "digits", "pairs": pairs, "beyond": beyond, "met": beyond <= BEYOND_TORCH}


def run(command: list[str]) -> None:
    """A command that must succeed."""
    subprocess.run(command, cwd=ROOT, env=surroundings(), check=True, stdout=subprocess.DEVNULL)


def surroundings() -> dict[str, str]:
    """The environment, with this checkout first."""
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT}"}


if __name__ == "__main__":
    sys.exit(main())
