"""A death of the trainer that another plan may avoid: at the memory limit, or inside a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime.errors import DrivetrainError, PeerError, RestartSmaller
from runtime.hardware.facts import Hardware
from runtime.plan import plan as plans
from runtime.supervisor import memory_kill
from runtime.system import signals
from runtime.system.exit_codes import KILLED
from runtime.tuning import kernel_crash

RESTARTING = "restarting from its last checkpoint"


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

    def avoided(self, plan: plans.Plan, share: int) -> plans.Plan | None:
        """The plan with optimizations off, or with half the micro-batch; None if there is nothing left to change.

        Args:
            plan: under which it died.
            share: samples of a batch for each process.
        """
        return kernel_crash.without(plan, self.why) if self.crashed else plans.smaller(plan, share, self.why)

    def consequence(self, plan: plans.Plan, instead: plans.Plan) -> str:
        """What follows from it, for an event."""
        if self.crashed:
            return f"{self.why}; {kernel_crash.consequence(plan, RESTARTING)}"
        size = instead.value("micro_batch")
        return f"{self.why}; {RESTARTING} with optimize.micro_batch {size}, train.batch_size as it is"

    def final(self) -> DrivetrainError:
        """The error if no other plan is left."""
        return kernel_crash.hopeless(self.why) if self.crashed else memory_kill.too_large(self.why)


def avoidable(code: int, run: Path, machine: Hardware, kills: int | None, *, told: bool) -> TrainerDeath | None:
    """The death behind an exit code; None if another plan would change nothing.

    Args:
        code: of the trainer.
        run: its folder.
        machine: with its memory limit.
        kills: how many processes the kernel had killed at the limit before.
        told: whether the trainer was told to end by a signal.
    """
    if code == RestartSmaller.exit_code:
        return TrainerDeath(False, "memory ran out in one of the processes that share the weights (optimize.sharding)")
    if code in signals.CRASHES and not told:
        return TrainerDeath(True, kernel_crash.told(run, code))
    if code in (KILLED, PeerError.exit_code) and memory_kill.killed_since(kills):
        return TrainerDeath(False, memory_kill.told(machine))
    return None
