"""Time left and the cost of being watched, on real trainings at a terminal.

    python benchmarks/watched.py JOB [--set key=value ...] [--keep FILE.json]

Trains the job on a pseudo-terminal with the live view painted, then prints how far the time left was from the truth after
the first minute (by the wall clock, from the same readings that the live view had), and what the threads of live view and
monitor took of the run by their own CPU clocks. `--keep` stores the readings as tests/traces has them.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from drivetrain.tracking.live.time_left import TimeLeft  # noqa: E402


def main() -> int:
    """Train, judge, print; 1 if a goal is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--runs", type=Path, help="where the run folder goes, to look at it again; nowhere if absent")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = options.runs or Path(folder)
        arguments = [word for setting in options.set for word in ("--set", setting)]
        train_at_terminal([str(options.job), *arguments, "--runs", str(runs), "--new"])
        run = max(runs.glob("*-[0-9]*"), key=lambda path: path.stat().st_mtime)
        readings, result = read_readings(run), json.loads((run / "result.json").read_text())
    if options.keep:
        recorded = " ".join([str(options.job), *options.set])
        trace = {"recorded": f"{recorded}; wall clock", **readings}
        options.keep.write_text(json.dumps(trace, separators=(",", ":")) + "\n")
    errors = compute_errors(readings)
    watching = {name: seconds / result["seconds"] for name, seconds in result["watching"].items()}
    end = readings["rows"][-1][0]
    verdict = "too short to judge the time left"
    if errors:
        share_beyond = sum(error > 0.1 for error in errors) / len(errors)
        verdict = (
            f"time left after a minute, off by {statistics.median(errors):.1%} (median), {max(errors):.1%} (worst), "
            f"over 10 % in {share_beyond:.0%} of {len(errors)} readings"
        )
    costs = ", ".join(f"{name} {part:.2%}" for name, part in watching.items())
    print(f"{options.job.stem}: {end:.0f} s of training; {verdict}; {costs} of the run")
    return int(max(errors, default=0.0) > 0.1 or sum(watching.values()) > 0.01)


def train_at_terminal(options: list[str]) -> None:
    """Run `drivetrain train` at a terminal of 80 columns; what it paints is thrown away."""
    os.environ.update(PYTHONPATH=f"{ROOT / 'runtime'}:{ROOT}", TERM="xterm-256color", COLUMNS="80", LINES="24")
    os.environ.pop("NO_COLOR", None)
    tail: list[bytes] = []

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 65536)
        tail[:] = [*tail[-20:], data]
        return b"."

    stdout_copy = os.dup(1)
    with open(os.devnull, "wb") as devnull:
        os.dup2(devnull.fileno(), 1)
        code = os.waitstatus_to_exitcode(pty.spawn([sys.executable, "-m", "drivetrain", "train", *options], read))
        os.dup2(stdout_copy, 1)
    if code:
        raise SystemExit(f"the training ended with {code}:\n{b''.join(tail).decode(errors='replace')}")


def read_readings(run: Path) -> dict[str, Any]:
    """Readings of (seconds, steps done) from the first step to the end, with the numbers of steps in progress.json."""
    rows = [json.loads(line) for line in (run / "telemetry.jsonl").read_text().splitlines()]
    steps = [[round(row["seconds"], 2), row["step"]] for row in rows if row.get("step")]
    return {**json.loads((run / "progress.json").read_text()), "rows": steps}


def compute_errors(readings: dict[str, Any]) -> list[float]:
    """How far the guess is from the truth, as a share of the truth, after a minute and until 15 s before the end."""
    time_left = TimeLeft(readings["steps"], readings["steps_per_epoch"], readings["evaluation_steps"])
    start, end, errors = readings["rows"][0][0], readings["rows"][-1][0], []
    for seconds, step in readings["rows"]:
        time_left.add(seconds, step)
        guess = time_left.estimate(seconds)
        if guess is not None and seconds - start >= 60 and end - seconds > 15:
            errors.append(abs(guess - (end - seconds)) / (end - seconds))
    return errors


if __name__ == "__main__":
    sys.exit(main())
