"""Divides weights, gradients and optimizer state among the processes (FSDP2), for networks that do not fit one of them.

Each process holds an equal part, and gets the rest of a block while that computes: one and a half times the traffic of
plain data parallelism, and less memory with every process. The sums are the same; they round in another order.
"""

from __future__ import annotations

from drivetrain.distributed import world
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.train import Sgd
from drivetrain.job.workload import Workload
from drivetrain.optimizations import AssembledRun, Choice, Effect, Stage, Value, gradient_checkpointing, pick_requested
from drivetrain.system.units import format_bytes

STAGE = Stage.MODEL
EFFECT = Effect.ROUNDING
OFF = False
UNMEASURED = "it saves memory and costs time"
Values = bool
OLDEST = (2, 9)
"""The first torch that writes parts of tensors as safetensors."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """On if several processes train a network whose weights, gradients and optimizer state do not fit each of them."""
    if obstacle := refuse(job, hardware, workload, True):
        return Choice(OFF, obstacle)
    if world.seems_alone(job, hardware):
        return Choice(OFF, "one process here, as far as limits.nodes says; used if requested")
    if workload is None:
        return Choice(OFF, "used only if the network does not fit each process, or if requested")
    state_bytes = gradient_checkpointing.count_fixed_bytes(job, workload)
    processes = 1 if hardware.gpu else world.count_local_ranks(job, hardware)
    most = gradient_checkpointing.available_bytes(job, hardware) // processes
    figures = f"weights, gradients and optimizer state take {format_bytes(state_bytes)}, {format_bytes(most)} available to each process"
    if state_bytes <= most:
        return Choice(OFF, f"not needed: {figures}")
    return Choice(True, f"{figures}; all processes share them")


def lacks(job: Job, hardware: Hardware) -> str | None:
    """What is missing for it to apply, or None: it applies to several processes only; how many machines there are may
    be known only when they meet.
    """
    return "one process here" if world.seems_alone(job, hardware) else None


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Why the value is impossible, or None: with one process, with what needs whole weights, or with a torch that
    cannot save parts.
    """
    if job.task == "python":
        return "a training of a Python program has whole weights, which its callbacks may read"
    if world.seems_alone(job, hardware) and job.limits.nodes is not None:
        return "there is only one process, which holds the whole network"
    if hardware.torch and _release(hardware.torch.version) < OLDEST:
        return f"torch {hardware.torch.version} cannot save parts of tensors without pickle; {'.'.join(map(str, OLDEST))} can"
    if getattr(getattr(job, "model", None), "unfreeze", ()):
        return "model.unfreeze changes what is trained in the middle of a run, and a divided network cannot"
    if isinstance(job.train.optimizer, Sgd) and job.optimize.get("fused_optimizer") not in (None, "auto", False):
        return "optimize.fused_optimizer updates whole weights with torch's fused sgd kernel"
    return next(
        (reason for name, reason in _WHOLE.items() if job.optimize.get(name) not in (None, "auto", False)), None
    )


_WHOLE = {
    "compile": "optimize.compile compiles whole weights",
    "cuda_graphs": "optimize.cuda_graphs records whole weights",
    "step_graph": "optimize.step_graph records whole weights",
    "channels_last": "optimize.channels_last lays weights out in an order that cannot be divided",
    "feature_cache": "optimize.feature_cache computes a part of the network by itself",
}
"""Optimizations that cannot be had together with it."""


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def obstacle(job: Job, hardware: Hardware, workload: Workload | None) -> str | None:
    """Why an optimization that needs whole weights is not possible, if the weights are divided."""
    divides = pick_requested(job, "sharding", choose(job, hardware, workload))
    return "optimize.sharding divides the weights among the processes" if divides else None


def apply(run: AssembledRun, value: Value) -> None:
    """Divide the network, the optimizer and the average of its weights, if there are several processes."""
    run.divide()


def effective(run: AssembledRun) -> Value:
    """Whether the processes share the weights."""
    from drivetrain.models import sharding

    return sharding.is_divided(run.model)
