"""Start-up: from the command to the first step of the digits job, beside a bare `import torch`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

NAME = "C7"
ROOT = Path(__file__).resolve().parents[2]
GOAL = 1.5
"""Seconds that the first step may come after the time of the import."""


def measure_startup(pair_count: int, folder: Path) -> dict[str, Any]:
    """Both in turn; the first pair only warms the file cache."""
    pairs = [(time_first_step(folder), time_torch_import()) for _ in range(pair_count + 1)][1:]
    ours, bare = ([pair[side] for pair in pairs] for side in (0, 1))
    return {
        "row": NAME,
        "date": datetime.now(UTC).date().isoformat(),
        "first_step": ours,
        "import_torch": bare,
        "over": statistics.median(job_seconds - torch_seconds for job_seconds, torch_seconds in pairs),
        "goal": GOAL,
    }


def time_first_step(folder: Path) -> float:
    """Seconds from the command to the line of the first step."""
    command = [
        sys.executable,
        "-m",
        "drivetrain",
        "train",
        "jobs/digits.yaml",
        "--runs",
        str((folder / "starts").resolve()),
        "--new",
    ]
    start, seconds = time.monotonic(), 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=_make_environment()) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "step 1/" in line:
                seconds = time.monotonic() - start
                process.terminate()
    if not seconds:
        raise SystemExit("C7: the digits job did not come to its first step")
    return seconds


def time_torch_import() -> float:
    """Seconds of a process that imports torch and ends."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - start


def format_result(result: dict[str, Any]) -> str:
    """In words."""
    first, bare = (statistics.median(result[key]) for key in ("first_step", "import_torch"))
    return (
        f"### {NAME}: start-up\n\nFrom the command to the first step of the digits job {first:.2f} s, `import torch` alone "
        f"{bare:.2f} s: {result['over']:.2f} s more (goal {result['goal']} s; medians of {len(result['first_step'])} pairs)."
    )


def _make_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT}"}
