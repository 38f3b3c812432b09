"""Recomputes the activations of repeated blocks in the backward pass: less memory, for about a third more compute."""

from __future__ import annotations

from drivetrain.hardware import gpu_selection
from drivetrain.optimizations import Choice, Effect, Hardware, Job, NetworkRun, Stage, Value, Workload
from drivetrain.system.units import format_bytes

STAGE = Stage.MODEL
IN_LOOP = True
# The same operations on the same numbers, with the same dropout masks.
EFFECT = Effect.EXACT
OFF = False
UNMEASURED = "it never makes a step faster"
Values = bool
TORCH_BYTES = 300 << 20
"""Bytes that torch itself needs: code and threads on the host, its context on a GPU."""
MAX_SAMPLE_BYTES = 2 << 30
"""Bytes; the activations of one sample are assumed never to need more."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Keep it off, since it takes time, unless a single sample does not fit without it."""
    obstacle = refuse(job, hardware, workload, True)
    if obstacle or workload is None or not workload.activations:
        return Choice(OFF, obstacle or "slower; only needed when memory is short")
    fixed_bytes = count_fixed_bytes(job, workload)
    available = available_bytes(job, hardware)
    needed = count_bytes_for_one_sample(job, workload)
    needed_with_recomputing = fixed_bytes + workload.recomputed
    figures = f"{format_bytes(needed)} with micro-batch 1, {format_bytes(available)} available"
    if needed <= available:
        return Choice(OFF, f"not needed: {figures}")
    if fixed_bytes > available:
        reason = f"it would not help: weights, gradients and optimizer state alone take {format_bytes(fixed_bytes)}, {format_bytes(available)} available"
        return Choice(OFF, reason)
    # Even if that is not enough for one sample, it comes closest.
    return Choice(True, f"{figures}; recomputing activations reduces it to {format_bytes(needed_with_recomputing)}")


def needs_count_of_activations(job: Job, hardware: Hardware, workload: Workload) -> bool:
    """Return whether one sample might not fit into memory, so that activations must be counted."""
    requested = job.optimize.get("gradient_checkpointing", "auto")
    if requested != "auto" or workload.blocks <= 1:
        return False
    # If not even the weights fit, a count changes nothing.
    return 0 < bytes_for_activations(job, hardware, workload) < MAX_SAMPLE_BYTES


def bytes_for_activations(job: Job, hardware: Hardware, workload: Workload) -> int:
    """Return the bytes left for activations after weights, gradients and optimizer state; negative if they do not fit."""
    return available_bytes(job, hardware) - count_fixed_bytes(job, workload)


def count_bytes_for_one_sample(job: Job, workload: Workload) -> int:
    """Count the bytes for training with one sample at a time; uncounted activations add 0."""
    return count_fixed_bytes(job, workload) + workload.activations


def count_fixed_bytes(job: Job, workload: Workload) -> int:
    """Count the bytes of weights and, for trainable ones, of gradients and optimizer state, in float32."""
    return 4 * (workload.parameters + (1 + job.train.optimizer.moments) * workload.trainable)


def available_bytes(job: Job, hardware: Hardware) -> int:
    """Return the bytes available for weights and activations; a tenth of the memory stays free."""
    if hardware.gpu:
        requested = job.limits.gpu_memory
        free = gpu_selection.count_available_bytes(hardware.gpu, requested)
        total = gpu_selection.count_allowed_bytes(hardware.gpu, requested)
    else:
        free = hardware.memory.available
        total = hardware.memory.limit or hardware.memory.host
    return max(0, free - TORCH_BYTES - total // 10)


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: without repeated blocks, where it would save nothing."""
    if workload is not None and workload.blocks < 2:
        return "the network has no repeated blocks, such as encoder layers or residual blocks"
    return None


def apply(run: NetworkRun, value: Value) -> None:
    """Make the blocks save only their inputs."""
    from drivetrain.models import recompute

    recompute.recompute(run.model)


def effective(run: NetworkRun) -> Value:
    """Return whether the blocks save only their inputs."""
    from drivetrain.models import recompute

    return recompute.is_recomputed(run.model)
