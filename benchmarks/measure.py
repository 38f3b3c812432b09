"""What measuring costs: `measure: auto` against `measure: off` from command to report, and how soon a job takes its first step.

    python benchmarks/measure.py whole [--jobs digits,own-model,...] [--pairs 5] [--seconds 120] [--folder DIR]
    python benchmarks/measure.py start [--pairs 5] [--folder DIR]

`whole` trains the example jobs, shortened or (`--seconds`) as many epochs as take so long, in pairs that take turns; auto
may be slower by its budget at most, 2 % of the run, and the ratios of the pairs are printed beside it. `start` trains
the digits job: seconds from the command to its first step, less those of a Python that only imports torch, in turn.
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
sys.path.insert(0, str(ROOT))

from jobs.samples.write import write  # noqa: E402

SHORT_SETTINGS = {
    "digits": ["train.epochs=12"],
    "own-model": ["train.epochs=4"],
    "patterns": ["train.epochs=4"],
    "reports": ["train.epochs=2"],
    "series": ["train.epochs=2"],
    "table": ["train.epochs=3"],
}
DATA = {"patterns": 600, "reports": 3000, "series": 32000, "table": 20000}
DATA_FILES = {"patterns": "", "reports": "reports.csv", "series": "train.csv", "table": "train.parquet"}
BEYOND_TORCH = 1.5
"""Seconds that the first step may come later than torch is imported."""
MAX_SHARE = 0.02


def main() -> int:
    """Measure, print, write; 0 if the goal is met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("measurement", choices=("whole", "start"))
    parser.add_argument("--jobs", default=",".join(SHORT_SETTINGS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="of a run without measuring; shortened jobs if absent")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/drivetrain-measure"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = (
        [measure_start(options)]
        if options.measurement == "start"
        else [measure_whole(name, options) for name in options.jobs.split(",")]
    )
    report = {"date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0], "rows": rows}
    (options.folder / f"{options.measurement}-{options.jobs.replace(',', '-')}.json").write_text(
        json.dumps(report, indent=1)
    )
    return 0 if all(row["met"] for row in rows) else 1


def measure_whole(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Pairs of one job, auto against off."""
    settings = prepare_data(name, options.folder)
    settings += (
        [f"train.epochs={choose_epochs(name, settings, options.seconds, options.folder)}"]
        if options.seconds
        else SHORT_SETTINGS[name]
    )
    pairs = []
    for number in range(options.pairs):
        sides = ("auto", "off") if number % 2 == 0 else ("off", "auto")
        seconds = {
            side: time_training(name, [*settings, f"optimize.measure={side}"], options.folder)[1] for side in sides
        }
        pairs.append((seconds["auto"], seconds["off"]))
    ratio = statistics.median(auto / off_seconds for auto, off_seconds in pairs)
    off_seconds = statistics.median(second for _, second in pairs)
    print(
        f"{name}: off {off_seconds:.1f} s, auto {ratio:.3f} times that (pairs "
        f"{' '.join(f'{auto / off_seconds:.3f}' for auto, off_seconds in pairs)})",
        flush=True,
    )
    return {"job": name, "off": off_seconds, "ratio": ratio, "pairs": pairs, "met": ratio <= 1 + MAX_SHARE}


def choose_epochs(name: str, settings: list[str], seconds: float, folder: Path) -> int:
    """So many epochs of an example job take about `seconds`, by two runs of different length."""

    def time_run(count: int) -> float:
        return time_training(name, [*settings, f"train.epochs={count}", "optimize.measure=off"], folder)[1]

    short_epochs = int(SHORT_SETTINGS[name][0].rpartition("=")[2])
    time_run(short_epochs)
    short_seconds, long_seconds = time_run(short_epochs), time_run(5 * short_epochs)
    epoch_seconds = max((long_seconds - short_seconds) / (4 * short_epochs), 1e-3)
    count = short_epochs + round(max(seconds - short_seconds, 0) / epoch_seconds)
    print(f"{name}: {count} epochs, {epoch_seconds:.2f} s each", flush=True)
    return count


def prepare_data(name: str, folder: Path) -> list[str]:
    """Write the data of an example job if they are not there; returns the settings that name them."""
    if name not in DATA:
        return []
    target = folder / name
    if not target.exists():
        write(name, target, DATA[name])
    return [f"data.train={target / DATA_FILES[name]}"]


def time_training(name: str, settings: list[str], folder: Path) -> tuple[float, float]:
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
    start, first_seconds = time.perf_counter(), 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=make_environment()) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not first_seconds and "step 1/" in line:
                first_seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return first_seconds, time.perf_counter() - start


def measure_start(options: argparse.Namespace) -> dict[str, Any]:
    """The digits job's first step against `import torch`."""
    time_training("digits", ["train.epochs=1"], options.folder)
    pairs = []
    for _ in range(options.pairs):
        start = time.perf_counter()
        run_command([sys.executable, "-c", "import torch"])
        torch_seconds = time.perf_counter() - start
        pairs.append((time_training("digits", ["train.epochs=1"], options.folder)[0], torch_seconds))
    seconds_beyond = statistics.median(first_seconds - torch_seconds for first_seconds, torch_seconds in pairs)
    print(
        f"first step of digits after {statistics.median(p[0] for p in pairs):.2f} s, import torch takes "
        f"{statistics.median(p[1] for p in pairs):.2f} s: {seconds_beyond:.2f} s beyond (goal: {BEYOND_TORCH})"
    )
    return {"job": "digits", "pairs": pairs, "beyond": seconds_beyond, "met": seconds_beyond <= BEYOND_TORCH}


def run_command(command: list[str]) -> None:
    """A command that must succeed."""
    subprocess.run(command, cwd=ROOT, env=make_environment(), check=True, stdout=subprocess.DEVNULL)


def make_environment() -> dict[str, str]:
    """The environment, with this checkout first."""
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT}"}


if __name__ == "__main__":
    sys.exit(main())
