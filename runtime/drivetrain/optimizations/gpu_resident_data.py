"""Keeps all raw samples in GPU memory, where a batch is a single gather without any work on the host.

Images stay 8-bit. Augmentation runs on the GPU, as it does for batches from the host.
"""

from __future__ import annotations

from drivetrain.hardware import gpu_selection
from drivetrain.hardware.facts import Hardware
from drivetrain.job import Job
from drivetrain.job.workload import BATCHES_PER_WORKER, Workload
from drivetrain.optimizations import AssembledRun, Choice, Effect, Stage, Value, feature_cache, gradient_checkpointing
from drivetrain.system.units import format_bytes
from drivetrain.tasks import modality_of

STAGE = Stage.LOADER
# The same numbers, gathered elsewhere.
EFFECT = Effect.EXACT
OFF = False
GPU_ONLY = True
UNMEASURED = "leaving out the copies is never slower"
Values = bool

MEMORY_DIVISOR = 4
"""All samples together may use 1/MEMORY_DIVISOR of the available GPU memory."""

COPY_BYTES = 4 << 20
"""Approximate number of bytes that are gathered and copied at a time."""
MAX_WORKERS = 16
"""Largest number of decoding processes."""


def choose(job: Job, hardware: Hardware, workload: Workload | None) -> Choice:
    """Turn it on if the samples fit into a quarter of the available GPU memory and are used in more than one epoch."""
    obstacle = refuse(job, hardware, workload, True)
    if obstacle:
        return Choice(False, obstacle)
    if workload is None:
        return Choice(True, "used if the samples fit into a quarter of the available GPU memory")
    if job.train.epochs < 2 and not workload.decoded:
        return Choice(False, "in a single epoch no image is decoded twice")
    if workload.activations:
        needed_bytes, room = (
            gradient_checkpointing.count_bytes_for_one_sample(job, workload) + count_sample_bytes(workload),
            gradient_checkpointing.available_bytes(job, hardware),
        )
        if needed_bytes > room:
            reason = f"samples and network together need {format_bytes(needed_bytes)}; {format_bytes(room)} of GPU memory is available"
            return Choice(False, reason)
    assert hardware.gpu is not None
    return Choice(
        True,
        f"{workload.samples:,} samples take {format_bytes(count_sample_bytes(workload))} of "
        f"{format_bytes(gpu_selection.count_available_bytes(hardware.gpu, job.limits.gpu_memory))}",
    )


def refuse(job: Job, hardware: Hardware, workload: Workload | None, value: Value) -> str | None:
    """Refuse with a reason, or return None: on a CPU, without GPU memory, with samples of many sizes or workers."""
    if hardware.gpu is None:
        return "there is no GPU to keep the samples on"
    modality = modality_of(job)
    if (workload or modality.expected).ragged:
        return "samples have different lengths, so batches are assembled on the host"
    if job.optimize.get("loader_workers", "auto") not in ("auto", 0):
        return "optimize.loader_workers prepares batches on the host"
    if workload is None:
        return None
    if modality.is_user_code and not workload.decoded:
        return "your dataset may return random samples, so they cannot be stored"
    if workload.varies:
        return "the training samples differ from epoch to epoch, so they cannot be stored"
    if feature_cache.choose(job, hardware, workload).value:
        return "feature_cache replaces the samples by cached features"
    room = gpu_selection.count_available_bytes(hardware.gpu, job.limits.gpu_memory)
    if count_sample_bytes(workload) * MEMORY_DIVISOR > room:
        return f"the samples take {format_bytes(count_sample_bytes(workload))}, more than a quarter of the {format_bytes(room)} of available GPU memory"
    return None


def is_expected(job: Job, hardware: Hardware, workload: Workload) -> bool:
    """Return whether samples will be on the GPU, by request or by default."""
    requested = job.optimize.get("gpu_resident_data", "auto")
    return bool(choose(job, hardware, workload).value if requested == "auto" else requested)


def count_sample_bytes(workload: Workload) -> int:
    """Count the bytes of all samples with their targets."""
    return workload.samples * (workload.sample_bytes + 8)


def apply(run: AssembledRun, value: Value) -> None:
    """Replace the samples by a copy on the GPU; if it does not fit after all, report that and continue without it."""
    from drivetrain.data.loader.gpu_resident import move_to_device
    from drivetrain.system import torch_errors

    try:
        run.dataset = move_to_device(run.dataset, run.device, COPY_BYTES, _workers(run.hardware))
    except (MemoryError, RuntimeError) as error:
        if not torch_errors.is_out_of_memory(error):
            raise
        run.dataset.cache.pop("resident", None)
        run.events.add("gpu_resident_data", f"the samples stay in host memory: {str(error).splitlines()[0][:160]}")
        return
    run.batches.split = run.dataset.train


def _workers(hardware: Hardware) -> int:
    """Return the number of processes that decode all image files once."""
    most = (hardware.storage.shm or 0) // (BATCHES_PER_WORKER * COPY_BYTES)
    return max(0, min(MAX_WORKERS, hardware.cpu.budget - 1, most))


def effective(run: AssembledRun) -> Value:
    """Return whether batches are gathered on the device."""
    from drivetrain.data.loader.gpu_resident import GpuResidentSplit

    return isinstance(run.batches.split, GpuResidentSplit)
