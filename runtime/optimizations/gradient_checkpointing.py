"""Makes activations of repeated blocks again in the backward pass: less memory, for about a third more computing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.optimizations import Choice, Effect, Stage, Value

if TYPE_CHECKING:
    from runtime.hardware import Hardware
    from runtime.job import Job
    from runtime.workload import Workload

STAGE = Stage.MODEL
# The same operations on the same numbers with the same draws.
EFFECT = Effect.EXACT
OFF = False
Values = bool


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Off: it takes time."""
    return Choice(
        OFF, refuse(job, hardware, workload, True) or "it costs time, and is needed only where memory is short"
    )


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """There must be blocks, or nothing would be saved."""
    if value and workload is not None and workload.blocks < 2:
        return "the network has no repeated blocks, such as encoder layers or residual blocks"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """It never makes a step faster, so there is nothing to measure."""
    return [OFF]


def apply(run: Any, value: Value) -> None:
    """Let the blocks keep their inputs only."""
    from runtime import blocks

    blocks.recompute(run.model)


def seen(run: Any) -> Value:
    """Whether the blocks keep their inputs only."""
    from runtime import blocks

    return blocks.recomputes(run.model)
