"""Whether a finished run counts as one that a command would train: the same spec is not enough."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runtime.distributed import world
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.plan import plan as plans


def difference(run: Path, job: Job, machine: Hardware, others: Sequence[Path], *, plain: bool) -> str:
    """In what a finished run was trained otherwise than the command asks, in words; empty if in nothing.

    Args:
        run: its folder.
        job: the present spec, equal to that of the run but for what may change within a run.
        machine: on which the command would train.
        others: runs that are counted together with it.
        plain: whether the command has all optimizations off.
    """
    if not (run / "plan.json").is_file():
        return "has no plan.json"
    plan = plans.load(run / "plan.json")
    was_plain = all(row.source == "plain" for row in plan.decisions)
    if was_plain != plain:
        return "was trained with --plain" if was_plain else "was trained without --plain"
    processes, asked = 1 + len(list((run / "ranks").glob("*"))), world.local_ranks(job, machine)
    if processes != asked:
        return f"was trained by {processes} processes, now {asked}"
    for other in others[:1]:
        formats = [plan.value("precision"), plans.load(other / "plan.json").value("precision")]
        if formats[0] != formats[1]:
            return f"was trained in {formats[0]}, and {other.name} in {formats[1]}"
    return ""
