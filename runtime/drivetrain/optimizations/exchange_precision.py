"""Sends gradients between processes in bf16, which halves what travels.

Each process rounds its gradients to eight bits, and the sums are rounded again. Weights, moments and the computation keep
their format. It pays where the network is slower than the backward pass: Ethernet between machines, not one host.
"""

from __future__ import annotations

from typing import Literal

from drivetrain.distributed import world
from drivetrain.optimizations import AssembledRun, Choice, Effect, Hardware, Job, Stage, Value, Workload, sharding

STAGE = Stage.STEP
EFFECT = Effect.ROUNDING
OFF = "fp32"
lacks = sharding.lacks
UNMEASURED = "the process that measures is alone"
Values = Literal["fp32", "bf16"]


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Off: what is gained depends on the network between the machines, and measurements run in one process."""
    return Choice(
        OFF,
        refuse(job, hardware, workload, "bf16")
        or "used only if requested: what it gains depends on the network, and one process alone cannot measure it",
    )


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Why the value is impossible, or None: if there is certainly one process."""
    if not world.seems_alone(job, hardware) or (job.limits.nodes is None and job.task != "python"):
        return None
    return "there is only one process, so no gradients travel"


def apply(run: AssembledRun, value: Value) -> None:
    """Sum the gradients in bf16."""
    import torch

    run.step.options.exchange.send_as(torch.bfloat16)


def effective(run: AssembledRun) -> Value:
    """The format in which gradients travel; fp32 stands for their own, also if there is one process."""
    return OFF if run.step.options.exchange.dtype is None else "bf16"
