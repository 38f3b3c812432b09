"""Recomputes the activations of repeated blocks in the backward pass: less memory, for about a third more compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.hardware import gpu_selection
from runtime.optimizations import AssembledRun, Choice, Effect, Stage, Value
from runtime.system.units import format_bytes

if TYPE_CHECKING:
    from runtime.hardware.facts import Hardware
    from runtime.job import Job
    from runtime.job.workload import Workload

STAGE = Stage.MODEL
# The same operations on the same numbers, with the same dropout masks.
EFFECT = Effect.EXACT
OFF = False
Values = bool
TORCH = 300 << 20
"""Bytes that torch itself needs: code and threads on the host, its context on a GPU."""
PLENTY = 2 << 30
"""Bytes; the activations of one sample are assumed never to need more."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Off, since it takes time, unless a single sample does not fit without it."""
    obstacle = refuse(job, hardware, workload, True)
    if obstacle or workload is None or not workload.activations:
        return Choice(OFF, obstacle or "slower; only needed when memory is short")
    always, most = fixed(job, workload), room(job, hardware)
    plain, saving = needed(job, workload), always + workload.recomputed
    figures = f"{format_bytes(plain)} with micro-batch 1, {format_bytes(most)} available"
    if plain <= most:
        return Choice(OFF, f"not needed: {figures}")
    if always > most:
        return Choice(
            OFF,
            f"it would not help: weights, gradients and optimizer state alone take {format_bytes(always)}, {format_bytes(most)} available",
        )
    return Choice(True, f"{figures}; recomputing activations reduces it to {format_bytes(saving)}")


def doubtful(job: Job, hardware: Hardware, workload: Workload) -> bool:
    """Whether memory is so short that one sample might not fit, so that activations should be counted."""
    requested = job.optimize.get("gradient_checkpointing", "auto")
    return requested == "auto" and workload.blocks > 1 and 0 < spare(job, hardware, workload) < PLENTY


def spare(job: Job, hardware: Hardware, workload: Workload) -> int:
    """Bytes left for activations beside weights, gradients and optimizer state; negative if those do not fit."""
    return room(job, hardware) - fixed(job, workload)


def needed(job: Job, workload: Workload) -> int:
    """Bytes for training with one sample at a time, as far as activations were counted."""
    return fixed(job, workload) + workload.activations


def fixed(job: Job, workload: Workload) -> int:
    """Bytes of weights and, for trainable ones, of gradients and optimizer state, in float32."""
    moments = 1 if job.train.optimizer.name == "sgd" else 2
    return 4 * (workload.parameters + (1 + moments) * workload.trainable)


def room(job: Job, hardware: Hardware) -> int:
    """Bytes available for weights and activations."""
    free, whole = hardware.memory.available, hardware.memory.limit or hardware.memory.host
    if hardware.gpu:
        requested = job.limits.gpu_memory
        free, whole = (
            gpu_selection.available_bytes(hardware.gpu, requested),
            gpu_selection.allowed_bytes(hardware.gpu, requested),
        )
    return max(0, free - TORCH - whole // 10)


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Without repeated blocks, where it would save nothing."""
    if value and workload is not None and workload.blocks < 2:
        return "the network has no repeated blocks, such as encoder layers or residual blocks"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """Not measured: it never makes a step faster."""
    return [OFF]


def apply(run: AssembledRun, value: Value) -> None:
    """Make the blocks save only their inputs."""
    from runtime.models import recompute

    recompute.recompute(run.model)


def effective(run: AssembledRun) -> Value:
    """Whether the blocks save only their inputs."""
    from runtime.models import recompute

    return recompute.recomputes(run.model)
