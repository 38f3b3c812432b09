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
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = given.runs or Path(folder)
        options = [word for one in given.set for word in ("--set", one)]
        trained([str(given.job), *options, "--runs", str(runs), "--new"])
        run = max(runs.glob("*-[0-9]*"), key=lambda found: found.stat().st_mtime)
        readings, result = traced(run), json.loads((run / "result.json").read_text())
    if given.keep:
        recorded = " ".join([str(given.job), *given.set])
        trace = {"recorded": f"{recorded}; wall clock", **readings}
        given.keep.write_text(json.dumps(trace, separators=(",", ":")) + "\n")
    late = errors(readings)
    watching = {name: seconds / result["seconds"] for name, seconds in result["watching"].items()}
    end = readings["rows"][-1][0]
    judged = "too short to judge the time left"
    if late:
        beyond = sum(error > 0.1 for error in late) / len(late)
        judged = (
            f"time left after a minute, off by {statistics.median(late):.1%} (median), {max(late):.1%} (worst), "
            f"over 10 % in {beyond:.0%} of {len(late)} readings"
        )
    took = ", ".join(f"{name} {part:.2%}" for name, part in watching.items())
    print(f"{given.job.stem}: {end:.0f} s of training; {judged}; {took} of the run")
    return int(max(late, default=0.0) > 0.1 or sum(watching.values()) > 0.01)


def trained(options: list[str]) -> None:
    """`drivetrain train` at a terminal of 80 columns; what it paints is thrown away."""
    os.environ.update(PYTHONPATH=f"{ROOT / 'runtime'}:{ROOT}", TERM="xterm-256color", COLUMNS="80", LINES="24")
    os.environ.pop("NO_COLOR", None)
    tail: list[bytes] = []

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 65536)
        tail[:] = [*tail[-20:], data]
        return b"."

    saved = os.dup(1)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        code = os.waitstatus_to_exitcode(pty.spawn([sys.executable, "-m", "drivetrain", "train", *options], read))
        os.dup2(saved, 1)
    if code:
        raise SystemExit(f"the training ended with {code}:\n{b''.join(tail).decode(errors='replace')}")


def traced(run: Path) -> dict[str, Any]:
    """Readings of (seconds, steps done) from the first step to the end, and what the trainer knew of the way ahead."""
    rows = [json.loads(line) for line in (run / "telemetry.jsonl").read_text().splitlines()]
    steps = [[round(row["seconds"], 2), row["step"]] for row in rows if row.get("step")]
    return {**json.loads((run / "progress.json").read_text()), "rows": steps}


def errors(readings: dict[str, Any]) -> list[float]:
    """How far the guess is from the truth, as a share of the truth, after a minute and until 15 s before the end."""
    left = TimeLeft(readings["steps"], readings["steps_per_epoch"], readings["evaluation_steps"])
    start, end, found = readings["rows"][0][0], readings["rows"][-1][0], []
    for seconds, step in readings["rows"]:
        left.add(seconds, step)
        guess = left.estimate(seconds)
        if guess is not None and seconds - start >= 60 and end - seconds > 15:
            found.append(abs(guess - (end - seconds)) / (end - seconds))
    return found


if __name__ == "__main__":
    sys.exit(main())
