"""Captures a whole optimizer step as one CUDA graph and replays it: small networks no longer wait for the host."""

from __future__ import annotations

from drivetrain.distributed import world
from drivetrain.optimizations import (
    AssembledRun,
    Choice,
    Effect,
    Hardware,
    Job,
    Stage,
    Value,
    Workload,
    fused_optimizer,
    gradient_checkpointing,
    pick_requested,
    unpadding,
)
from drivetrain.tasks import modality_of

STAGE = Stage.COMPILE
# Learning rates are rounded to float32; nothing else differs.
EFFECT = Effect.ROUNDING
OFF = False
GPU_ONLY = True
QUICK = True
Values = bool

MIN_CAPABILITY = (7, 0)
"""Older GPUs are not tried."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Keep it off: it holds the memory of a step, and only a measurement shows whether launches are the bottleneck."""
    obstacle = refuse(job, hardware, workload, True)
    return Choice(OFF, obstacle or "used if measured faster, also in runs of a minute, or requested")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: without a GPU of capability 7.0, with several processes,
    with batches of many shapes, with code of the user in a step, with dropout between LSTM layers, without
    fused_optimizer, or beside compile: graphs.
    """
    gpu = hardware.gpu
    if gpu is None:
        return "CUDA graphs need a GPU; this job runs on a CPU"
    if gpu.capability < MIN_CAPABILITY:
        capability = f"{gpu.capability[0]}.{gpu.capability[1]}"
        return f"{gpu.name} has capability {capability}; whole steps are captured from 7.0 on"
    modality = modality_of(job)
    if modality.is_user_code or hasattr(getattr(job, "model", None), "file"):
        return "a replay does not run your own code, which may decide something in each step"
    if not world.seems_alone(job, hardware):
        return "steps of several processes exchange numbers that the host reads"
    if (workload or modality.expected).ragged:
        return "samples have different lengths, and every shape would need a graph of its own"
    if job.optimize.get("micro_batch", "auto") not in ("auto", "off"):
        return "optimize.micro_batch computes a batch in parts"
    if job.optimize.get("compile") == "graphs":
        return "the job sets compile: graphs, which captures the network by itself"
    return _refuse_settings(job, hardware, workload)


def _refuse_settings(job: Job, hardware: Hardware, workload: Workload | None) -> str | None:
    """Name the part of network, loss or other optimizations that cannot be captured."""
    model = getattr(job, "model", None)
    if getattr(model, "lstm_layers", 1) > 1 and getattr(model, "dropout", 0):
        return "cuDNN's dropout between LSTM layers reads its seed on the host in each step"
    if getattr(job.train.loss, "alpha", None) is not None:
        return "train.loss.alpha is copied to the GPU in each step"
    if not pick_requested(job, "fused_optimizer", fused_optimizer.choose(job, hardware, workload)):
        return "without fused_optimizer the host decides whether an update is made"
    if pick_requested(job, "gradient_checkpointing", gradient_checkpointing.choose(job, hardware, workload)):
        return "gradient_checkpointing reads the state of the random generators, which a captured step cannot"
    if pick_requested(job, "unpadding", unpadding.choose(job, hardware, workload)) != unpadding.OFF:
        return "unpadding gives every step another input shape"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """List the values to measure: all, wherever it is possible."""
    return [OFF] if workload is None or refuse(job, hardware, workload, True) else [OFF, True]


def apply(run: AssembledRun, value: Value) -> None:
    """Capture steps from the third of each shape on; until then, and for smaller batches, they are computed as usual."""
    run.capture_steps()


def effective(run: AssembledRun) -> Value:
    """Return whether steps are captured, and no capture has failed."""
    return run.step.forward.is_captured
