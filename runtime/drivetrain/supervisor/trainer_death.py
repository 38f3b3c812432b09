"""Explains why the trainer died at the memory limit or inside a kernel, and makes a plan that may avoid it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drivetrain.errors import DrivetrainError, OutOfMemory, PeerError, RestartSmaller
from drivetrain.hardware import cgroup
from drivetrain.hardware.facts import Hardware
from drivetrain.plan import plan as plans
from drivetrain.system import signals
from drivetrain.system.signals import KILLED_EXIT_CODE
from drivetrain.system.units import format_bytes
from drivetrain.tuning import kernel_crash

RESTARTING = "restarting from its last checkpoint"
KILLED_AS_ONE_NOTE = (
    "memory.oom.group is set (Kubernetes does it): at the memory limit the kernel kills the whole container, and no "
    "smaller micro-batch can be tried; optimize.micro_batch: auto measures one that fits"
)


@dataclass(frozen=True)
class TrainerDeath:
    """Why the trainer died, and which plan to try next."""

    in_kernel: bool
    """Whether it crashed inside a kernel; else memory ran out."""
    reason: str

    @property
    def kind(self) -> str:
        """The kind of the events about it."""
        return "crash" if self.in_kernel else "memory"

    def plan_next(self, plan: plans.Plan, process_batch: int) -> plans.Plan | None:
        """The plan with optimizations off, or with half the micro-batch; None if there is nothing left to change.

        Args:
            plan: the plan under which the trainer died.
            process_batch: how many samples of a batch each process computes.
        """
        if self.in_kernel:
            return kernel_crash.turn_optimizations_off(plan, self.reason)
        return plans.halve_micro_batch(plan, process_batch, self.reason)

    def describe_restart(self, plan: plans.Plan, next_plan: plans.Plan) -> str:
        """Say why the trainer died and what the next plan changes, for an event."""
        if self.in_kernel:
            return f"{self.reason}; {kernel_crash.describe_repetition(plan, RESTARTING)}"
        size = next_plan.value("micro_batch")
        return f"{self.reason}; {RESTARTING} with optimize.micro_batch {size}, train.batch_size as it is"

    def final_error(self) -> DrivetrainError:
        """The error if no other plan is left."""
        if self.in_kernel:
            return kernel_crash.make_final_error(self.reason)
        return OutOfMemory(
            f"{self.reason} with micro-batch 1",
            "a job that fits the limit",
            "raise limits.memory, or use a smaller network or smaller samples",
        )


def find_avoidable(
    exit_code: int, run: Path, machine: Hardware, kills_before: int | None, was_signalled: bool
) -> TrainerDeath | None:
    """The death behind an exit code of the trainer; None if another plan would change nothing.

    Args:
        exit_code: how the trainer ended.
        machine: the hardware, with its memory limit.
        kills_before: how many processes the kernel had killed at the limit before the trainer started; None if unknown.
        was_signalled: whether the trainer was told to end by a signal.
    """
    if exit_code == RestartSmaller.exit_code:
        return TrainerDeath(False, "memory ran out in one of the processes that share the weights (optimize.sharding)")
    if exit_code in signals.CRASH_EXIT_CODES and not was_signalled:
        return TrainerDeath(True, kernel_crash.describe(run, exit_code))
    kills_now = cgroup.read_oom_kills(Path("/"))
    was_killed = kills_before is not None and kills_now is not None and kills_now > kills_before
    if exit_code in (KILLED_EXIT_CODE, PeerError.exit_code) and was_killed:
        limit, peak = (format_bytes(size) for size in (machine.memory.limit, cgroup.read_peak_memory(Path("/"))))
        return TrainerDeath(False, f"the trainer was killed at the memory limit of {limit} (peak {peak})")
    return None
