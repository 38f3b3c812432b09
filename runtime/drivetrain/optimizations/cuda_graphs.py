"""Records the GPU kernels of a step as a CUDA graph and replays it, which removes launch overhead in small networks."""

from __future__ import annotations

from drivetrain.distributed import world
from drivetrain.optimizations import Choice, Effect, Hardware, Job, NetworkRun, Stage, Value, Workload, compile

STAGE = Stage.COMPILE
IN_LOOP = True
EFFECT = Effect.ROUNDING
OFF = False
GPU_ONLY = True
NEEDS = "compile"
Values = bool

MAX_SMALL_NETWORK = 30_000_000
"""Parameters; in smaller networks a GPU may wait for the host to launch kernels."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Off: it takes memory for every batch size, and helps only if launches are the bottleneck, which a measurement
    shows.
    """
    return Choice(
        OFF, refuse(job, hardware, workload, True) or "used for small networks if measured faster, or if requested"
    )


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Why the value is impossible, or None: on a CPU; if compile is off or not possible, since it is a mode of compile;
    with a fixed micro_batch; with several processes.
    """
    if hardware.gpu is None:
        return "CUDA graphs need a GPU; this job runs on a CPU"
    if not world.seems_alone(job, hardware):
        return "several processes sum gradients during the backward pass, which a replayed graph would leave out"
    if job.optimize.get("compile") is False:
        return "it needs compile, which the job turns off"
    if obstacle := compile.refuse(job, hardware, workload, True):
        return f"it needs compile, which is not possible here: {obstacle}"
    if job.optimize.get("micro_batch", "auto") not in ("auto", "off"):
        return "optimize.micro_batch accumulates gradients, which a replayed graph would overwrite"
    return None


def candidates(job: Job, hardware: Hardware, workload: Workload | None) -> list[Value]:
    """The values to measure, for small networks that will be compiled; large ones keep the GPU busy anyway."""
    small = workload is not None and workload.parameters <= MAX_SMALL_NETWORK and not workload.ragged
    return [OFF, True] if small and refuse(job, hardware, workload, True) is None else [OFF]


def apply(run: NetworkRun, value: Value) -> None:
    """Compile the forward pass in the mode that records graphs, if `compile` is on."""
    if run.plan.value("compile"):
        run.step.compile(graphs=True)


def effective(run: NetworkRun) -> Value:
    """Whether the forward pass is compiled in that mode, without a fallback."""
    return run.step.forward.replays_kernels
