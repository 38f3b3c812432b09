"""Whether a finished run counts as one that a command would train: the same spec is not enough."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runtime.distributed import world
from runtime.hardware import gpu_selection
from runtime.hardware.detect import detect
from runtime.job import Job
from runtime.plan import plan as plans


def processes(job: Job, runs: Path) -> int:
    """How many processes a command would train a job with on this machine.

    Raises:
        DeviceError: if a GPU that the job names does not exist.
    """
    return world.local_ranks(job, gpu_selection.select_gpus(detect(runs), job.limits.gpus))


def difference(run: Path, asked: int, others: Sequence[Path], *, plain: bool) -> str:
    """In what a finished run was trained otherwise than the command asks, in words; empty if in nothing.

    Args:
        run: its folder.
        asked: processes with which the command would train.
        others: runs that are counted together with it.
        plain: whether the command has all optimizations off.
    """
    if not (run / "plan.json").is_file():
        return "has no plan.json"
    plan = plans.load(run / "plan.json")
    if plan.is_plain != plain:
        return "was trained with --plain" if plan.is_plain else "was trained without --plain"
    count = 1 + len(list((run / "ranks").glob("*")))
    if count != asked:
        return f"was trained by {count} processes, now {asked}"
    for other in others[:1]:
        formats = [plan.value("precision"), plans.load(other / "plan.json").value("precision")]
        if formats[0] != formats[1]:
            return f"was trained in {formats[0]}, and {other.name} in {formats[1]}"
    return ""
