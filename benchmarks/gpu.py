"""A GPU machine measured in one go: the tutorial loop against the plan on five networks, four precisions, compile.

    python benchmarks/gpu.py [--folder DIR] [--minutes 8] [--rows resnet18 ...] [--out DIR] [--smoke]

Needs torch for the chip and this repository's packages; no Docker. Writes gpu-<chip>-<date>.md and .json into
docs/measurements. What the time does not suffice for is named as not measured. `--smoke` tries the script out on any
machine, with networks and data so small that its figures say nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gpu_page import page, slug  # noqa: E402
from gpu_rows import ROWS  # noqa: E402

from runtime.errors import SpecError  # noqa: E402
from runtime.hardware import gpu_selection  # noqa: E402
from runtime.hardware.detect import detect  # noqa: E402
from runtime.hardware.facts import Hardware  # noqa: E402
from runtime.job_spec import load as job_spec  # noqa: E402
from runtime.plan import plan  # noqa: E402

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
COMPILED = "{compile: true, measure: off}"
LONGEST = 150.0
"""Seconds that one arm may take, compiling included."""


def main() -> int:
    """Measure everything, write and print the page."""
    given = arguments()
    start = time.monotonic()
    machine = gpu_selection.select_gpus(detect(given.folder))
    if machine.gpu is None and not given.smoke:
        print(
            f"no GPU can be used here: {machine.gpu_trouble or 'none was found'}; --smoke tries the script out",
            file=sys.stderr,
        )
        return 9
    found: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": machine.to_json(),
        "smoke": given.smoke,
        "rows": {},
        "precisions": {},
        "compiled": {},
    }
    for name in given.rows:
        folder = given.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        ROWS[name].write(folder, given.smoke)
        found["rows"][name] = {arm: left(given, start, machine, folder, name, arm) for arm in ("tutorial", "plan")}
    curves = "resnet18" if "resnet18" in given.rows else given.rows[0]
    for precision in PRECISIONS:
        settings = f"{{precision: {precision}, compile: false, measure: off}}"
        found["precisions"][precision] = left(given, start, machine, given.folder / curves, curves, "plan", settings)
    # Last, since compiling takes longest.
    for name in given.rows:
        found["compiled"][name] = left(given, start, machine, given.folder / name, name, "plan", COMPILED)
    found["curves"], found["seconds"] = curves, round(time.monotonic() - start, 1)
    name = f"gpu-{slug(machine)}-{found['date']}"
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (given.out / f"{name}.md").write_text(page(found, machine))
    print((given.out / f"{name}.md").read_text())
    return 0


def left(
    given: argparse.Namespace,
    start: float,
    machine: Hardware,
    folder: Path,
    name: str,
    arm: str,
    optimize: str = "{measure: off}",
) -> dict[str, Any]:
    """One arm in a process of its own, if there is time; else why there is no figure."""
    seconds = min(LONGEST, 60 * given.minutes - (time.monotonic() - start))
    if seconds < 15:
        return {"missing": "not measured, the time was spent"}
    job = folder / "job.yaml"
    job.write_text(ROWS[name].job(given.smoke) + f"optimize: {optimize}\n")
    environ = dict(os.environ)
    if arm == "plan":
        try:
            environ |= plan.resolve(job_spec.load(job), machine).environment(machine)
        except SpecError as error:
            return {"missing": f"cannot be had: {error.problems[0].possible}"}
    told = f"{name} {arm} {optimize}"
    print(f"{time.monotonic() - start:5.0f} s  {told}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / "gpu_arm.py"), str(folder), str(job), arm, str(given.seconds)],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env=environ,
        )
    except subprocess.TimeoutExpired:
        return {"missing": f"not measured, {seconds:.0f} s were not enough"}
    if done.returncode:
        return {"missing": f"failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1][:200]}"}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {"missing": f"cannot be had: {result['impossible']}"} if "impossible" in result else result


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "drivetrain-gpu")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--seconds", type=float, help="timed seconds of each arm")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "measurements")
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    given.seconds = given.seconds or (0.2 if given.smoke else 6.0)
    given.folder.mkdir(parents=True, exist_ok=True)
    return given


if __name__ == "__main__":
    sys.exit(main())
