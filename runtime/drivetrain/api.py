"""Hardware, plan and memory profile for a Python program; torch is not loaded in its process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drivetrain.errors import DrivetrainError
from drivetrain.hardware.detect import detect
from drivetrain.hardware.facts import Hardware, read_hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.job_spec import load_job as job_spec
from drivetrain.plan import plan as plans
from drivetrain.system.child_process import build_environment
from drivetrain.system.files import parse_json


def facts_here(runs: Path | str = "runs") -> Hardware:
    """Detect the share of the machine that this process may actually use.

    Args:
        runs: the folder whose free space counts.
    """
    return detect(Path(runs))


def plan_for(
    job: Job | Path | str,
    *,
    hardware: Hardware | Path | str | None = None,
    workload: Workload | None = None,
    plain: bool = False,
) -> plans.Plan:
    """Return all decisions for a job, with their reasons.

    Args:
        job: a job, or the path of its spec.
        hardware: the hardware, or the path of a recorded one; this machine's if None.
        workload: properties of network and data; without them some rows are provisional.
        plain: turn everything off.

    Raises:
        SpecError: if spec or hardware are invalid, or the spec requests something that is not possible.
    """
    if isinstance(hardware, str | Path):
        hardware = read_hardware(Path(hardware))
    spec = job if isinstance(job, Job) else job_spec.load(job)
    return plans.resolve(spec, hardware or detect(Path("runs")), workload, plain=plain)


def memory_for(job: Path | str, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure the peak memory by micro-batch in a child process, as `drivetrain bench memory` does.

    Args:
        job: the path of a spec.
        assignments: `key.path=value`, as for `--set`.

    Returns:
        `ceiling` in bytes, and `rows` with `micro_batch` and its `measured` bytes.

    Raises:
        DrivetrainError: with the command's message, if its exit code is not 0.
    """
    command = [sys.executable, "-m", "drivetrain", "bench", "memory", str(job)]
    for assignment in assignments:
        command += ["--set", assignment]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=build_environment({}))
    if done.returncode:
        raise DrivetrainError(done.stderr.strip())
    file = Path("runs", f"bench-memory-{job_spec.load(Path(job), assignments).name}", "memory.json")
    measured: dict[str, Any] = parse_json(file.read_text(encoding="utf-8"), dict)
    return measured
