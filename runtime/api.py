"""Alone: facts, plan and memory for a Python program that only wants to know; no torch is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.errors import DrivetrainError
from runtime.hardware.detect import detect
from runtime.hardware.facts import Hardware, load
from runtime.job import Job
from runtime.job.workload import Workload
from runtime.job_spec import load as job_spec
from runtime.plan import plan as plans


def facts_here(runs: Path | str = "runs") -> Hardware:
    """What this process may really use of the machine.

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
    """Every decision for a job, with its reason.

    Args:
        job: a spec, or the path of one.
        hardware: facts, or the path of recorded ones; those of this machine if None.
        workload: facts of network and data; without them some rows are provisional.
        plain: everything off.

    Raises:
        SpecError: if the spec or the facts are wrong, or the spec asks for what cannot be had.
    """
    if isinstance(hardware, str | Path):
        hardware = load(Path(hardware))
    asked = job if isinstance(job, Job) else job_spec.load(job)
    return plans.resolve(asked, hardware or detect(Path("runs")), workload, plain=plain)


def memory_for(
    job: Path | str, assignments: Sequence[str] = (), *, output: Path | str = "runs/memory"
) -> dict[str, Any]:
    """Memory at the peak by micro-batch, measured in a process of its own, as `drivetrain memory` does it.

    Args:
        job: the path of a spec.
        assignments: `key.path=value`, as for `--set`.
        output: folder for table and picture.

    Returns:
        `ceiling` in bytes, and `rows` with `micro_batch`, `predicted` and `measured` bytes.

    Raises:
        DrivetrainError: with the command's own words, if it ends with another exit code than 0.
    """
    command = [sys.executable, "-m", "runtime", "memory", str(job), "--output", str(output)]
    for assignment in assignments:
        command += ["--set", assignment]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DrivetrainError(done.stderr.strip())
    found: dict[str, Any] = json.loads((Path(output) / "memory.json").read_text(encoding="utf-8"))
    return found
