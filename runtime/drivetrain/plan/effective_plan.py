"""The plan of a run folder as its trainer left it, and the check that a resume requests the same plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drivetrain.errors import CheckpointError
from drivetrain.optimizations import Value
from drivetrain.plan.plan import Decision, Plan, read_plan
from drivetrain.system.run_files import CHECKPOINTS, PLAN_FILE, STATE_FILE, RunFiles, list_checkpoints
from drivetrain.system.run_records import RunState


@dataclass(frozen=True)
class PlanRequest:
    """Options of the command line about the plan; fixed once a run has made its first step."""

    plain: bool
    """Whether --plain was given."""
    plan: Mapping[str, Value] | None
    """The values of --plan FILE; None without it."""

    def __str__(self) -> str:
        return "with --plain" if self.plain else "without --plain and --plan" if self.plan is None else "with --plan"

    def resume(
        self, run: Path, state: RunState, stored: Plan, alternative: str = "start a new run with --new"
    ) -> PlanRequest:
        """Return the request that the run was started with.

        Args:
            run: its folder.
            state: its state, which records the request unless it is damaged.
            stored: its plan.
            alternative: what to do to train under the other plan.

        Raises:
            CheckpointError: if the present request differs.
        """
        is_plain = stored.is_plain if state.plain is None else state.plain
        request_before = PlanRequest(is_plain, self.plan if state.plain is None and not is_plain else state.plan)
        if self in (request_before, PlanRequest(False, stored.values())):
            return request_before
        raise CheckpointError(
            f"{run} was started {request_before}; this command is {self._describe_difference(request_before)}",
            "one plan for the whole run",
            f"run it {request_before}, or {alternative}",
        )

    def _describe_difference(self, earlier: PlanRequest) -> str:
        """Return the request as text, with the first value that differs from the other plan."""
        if self.plan is None or earlier.plan is None:
            return str(self)
        name = next(name for name in {**earlier.plan, **self.plan} if earlier.plan.get(name) != self.plan.get(name))
        return f"with another, in which {name} is {self.plan.get(name)}, not {earlier.plan.get(name)}"


def load_plan(run: Path) -> Plan:
    """Load the plan in a run folder; raises CheckpointError if it has no readable plan."""
    plan = read_plan(run)
    return plan.with_rows(_learn_micro_batch(row, run) for row in plan.decisions if row.name == "micro_batch")


def has_trained(run: Path) -> bool:
    """Return whether the run has trained a step; a run stopped before that is planned and measured again."""
    return (run / PLAN_FILE).exists() and bool(list_checkpoints(run / CHECKPOINTS))


def _learn_micro_batch(row: Decision, run: Path) -> Decision:
    """Return the row with a smaller micro-batch, if the trainer ran out of memory in a step and continued with less."""
    newest = list_checkpoints(run / CHECKPOINTS)[-1:]
    reduced_size = RunFiles(newest[0]).read_object(STATE_FILE).get("micro_batch") if newest else None
    if not isinstance(reduced_size, int) or (row.value != "off" and reduced_size >= int(row.value)):
        return row
    return row.learn(reduced_size, "memory", f"out of memory with a micro-batch above {reduced_size}")
