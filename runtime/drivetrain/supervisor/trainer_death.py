"""A death of the trainer that another plan may avoid: at the memory limit, or inside a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drivetrain.errors import DrivetrainError, OutOfMemory, PeerError, RestartSmaller
from drivetrain.hardware import cgroup
from drivetrain.hardware.facts import Hardware
from drivetrain.plan import plan as plans
from drivetrain.system import signals
from drivetrain.system.signals import KILLED
from drivetrain.system.units import format_bytes
from drivetrain.tuning import kernel_crash

RESTARTING = "restarting from its last checkpoint"
KILLED_AS_ONE = (
    "memory.oom.group is set (Kubernetes does it): at the memory limit the kernel kills the whole container, and no "
    "smaller micro-batch can be tried; optimize.micro_batch: auto measures one that fits"
)


@dataclass(frozen=True)
class TrainerDeath:
    """Why the trainer died, and what follows."""

    crashed: bool
    """Whether inside a kernel; else at the memory limit."""
    why: str

    @property
    def kind(self) -> str:
        """The kind of its events."""
        return "crash" if self.crashed else "memory"

    def avoid(self, plan: plans.Plan, share: int) -> plans.Plan | None:
        """The plan with optimizations off, or with half the micro-batch; None if there is nothing left to change.

        Args:
            plan: under which it died.
            share: samples of a batch for each process.
        """
        return (
            kernel_crash.turn_optimizations_off(plan, self.why)
            if self.crashed
            else plans.smaller(plan, share, self.why)
        )

    def consequence(self, plan: plans.Plan, instead: plans.Plan) -> str:
        """What follows from it, for an event."""
        if self.crashed:
            return f"{self.why}; {kernel_crash.explain(plan, RESTARTING)}"
        size = instead.value("micro_batch")
        return f"{self.why}; {RESTARTING} with optimize.micro_batch {size}, train.batch_size as it is"

    def final(self) -> DrivetrainError:
        """The error if no other plan is left."""
        return kernel_crash.final_error(self.why) if self.crashed else too_large(self.why)


def avoidable(
    code: int, run: Path, machine: Hardware, kills: int | None, *, was_signalled: bool
) -> TrainerDeath | None:
    """The death behind an exit code; None if another plan would change nothing.

    Args:
        code: of the trainer.
        run: its folder.
        machine: with its memory limit.
        kills: how many processes the kernel had killed at the limit before.
        was_signalled: whether the trainer was told to end by a signal.
    """
    if code == RestartSmaller.exit_code:
        return TrainerDeath(False, "memory ran out in one of the processes that share the weights (optimize.sharding)")
    if code in signals.CRASHES and not was_signalled:
        return TrainerDeath(True, kernel_crash.describe(run, code))
    if code in (KILLED, PeerError.exit_code) and was_killed_since(kills):
        return TrainerDeath(False, describe_kill(machine))
    return None


def was_killed_since(before: int | None) -> bool:
    """Whether a process of ours has been killed at the memory limit since then."""
    after = cgroup.oom_kills(Path("/"))
    return before is not None and after is not None and after > before


def describe_kill(machine: Hardware) -> str:
    """What happened."""
    peak = format_bytes(cgroup.peak_memory(Path("/")))
    return f"the trainer was killed at the memory limit of {format_bytes(machine.memory.limit)} (peak {peak})"


def too_large(reason: str) -> OutOfMemory:
    """The error of a job that does not fit."""
    return OutOfMemory(
        f"{reason} with micro-batch 1",
        "a job that fits the limit",
        "raise limits.memory, or use a smaller network or smaller samples",
    )
