"""Compiles the network with torch.compile: fused kernels, at the cost of compile time; `graphs` also replays them as CUDA graphs."""

from __future__ import annotations

import os
from typing import Literal

from drivetrain.distributed import world
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import Workload
from drivetrain.optimizations import Choice, Effect, NetworkRun, Stage, Value, pick_requested, unpadding

STAGE = Stage.COMPILE
IN_LOOP = True
EFFECT = Effect.ROUNDING
OFF = False
GRAPHS = "graphs"
Values = bool | Literal["graphs"]

MAX_SMALL_NETWORK = 30_000_000
"""Parameters; in smaller networks a GPU may wait for the host to launch kernels, which graphs avoid."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Keep it off: only a measurement shows whether a run is long enough to pay for it."""
    obstacle = refuse(job, hardware, workload, True)
    if obstacle:
        return Choice(False, obstacle)
    if hardware.gpu is None:
        reason = "on CPUs the speedup is 0.8x to 1.2x and compiling takes up to a minute; used only if measured faster or requested"
        return Choice(False, reason)
    return Choice(False, "compiling takes up to a minute; used only if measured faster over the whole run or requested")


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: without a GPU that Triton supports, a C++ compiler, or a
    cache folder that allows execution; with gradient_checkpointing or packed texts. Graphs also on a CPU, with a fixed
    micro_batch, or with several processes.
    """
    if job.optimize.get("gradient_checkpointing") is True:
        return "the job sets gradient_checkpointing, whose blocks cannot be compiled"
    if pick_requested(job, "unpadding", unpadding.choose(job, hardware, workload)) == unpadding.PACKED:
        return "unpadding gives every step another input shape; set compile: true to split batches into chunks instead"
    gpu, storage = hardware.gpu, hardware.storage
    if gpu is not None and gpu.capability < (7, 0):
        return f"{gpu.name} has capability {gpu.capability[0]}.{gpu.capability[1]}; torch.compile needs 7.0"
    if hardware.compiler is None:
        return "there is no C++ compiler with Python headers"
    if not storage.cache_writable:
        return f"the compile cache {storage.cache} is not writable"
    if not storage.cache_exec:
        return f"the compile cache {storage.cache} is mounted noexec"
    return _refuse_graphs(job, hardware) if value == GRAPHS else None


def _refuse_graphs(job: Job, hardware: Hardware) -> str | None:
    if hardware.gpu is None:
        return "CUDA graphs need a GPU; this job runs on a CPU"
    if not world.seems_alone(job, hardware):
        return "several processes sum gradients during the backward pass, which a replayed graph would leave out"
    if job.optimize.get("micro_batch", "auto") not in ("auto", "off"):
        return "optimize.micro_batch accumulates gradients, which a replayed graph would overwrite"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """List the values to measure: all that are possible; graphs in small networks, as large ones keep the GPU busy."""
    if refuse(job, hardware, workload, True):
        return [False]
    is_small = workload is not None and workload.parameters <= MAX_SMALL_NETWORK and not workload.ragged
    return [True, False, *([GRAPHS] if is_small and _refuse_graphs(job, hardware) is None else [])]


def environment(hardware: Hardware, value: Value) -> dict[str, str]:
    """Return the variable with the folder of the compile cache."""
    return {"TORCHINDUCTOR_CACHE_DIR": hardware.storage.cache} if value else {}


def apply(run: NetworkRun, value: Value) -> None:
    """Compile the forward pass; the network and its saved weights stay the same."""
    from drivetrain.system import torch_settings

    # In a trial by the tuner the plan of the process had not requested compilation, so the variable is not set.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", run.hardware.storage.cache)
    on_gpu = run.device.type == "cuda"
    torch_settings.configure_compiler(run.device, deterministic=run.job.train.is_deterministic(on_gpu=on_gpu))
    run.step.compile(graphs=value == GRAPHS)


def effective(run: NetworkRun) -> Value:
    """Return whether the forward pass is compiled, and in which mode, without a fallback."""
    forward = run.step.forward
    return GRAPHS if forward.replays_kernels else forward.is_compiled
