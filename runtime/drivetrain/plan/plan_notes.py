"""Notes of a plan: what the user should know about requested limits and GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from drivetrain.hardware import gpu_selection, image_selection
from drivetrain.hardware.facts import EMULATION, NO_MPS, Hardware
from drivetrain.job import Job
from drivetrain.system.units import format_bytes, parse_bytes


def list_notes(job: Job, hardware: Hardware) -> Iterable[str]:
    """Notes on limits that differ from the request, a GPU that cannot be used, an image for another machine."""
    limits, memory = job.limits, hardware.memory
    if hardware.gpu_trouble:
        yield f"gpu: {hardware.gpu_trouble}"
    if hardware.system == "Darwin":
        yield f"gpu: {NO_MPS}"
    if hardware.cpu.emulated:
        yield f"cpu: {EMULATION}"
    if hardware.gpu_note:
        yield f"gpu: {hardware.gpu_note}"
    if limits.gpu_memory is not None and hardware.gpu is None:
        yield f"limits.gpu_memory: {limits.gpu_memory} has no effect without a GPU"
    elif limits.gpu_memory is not None and hardware.gpu is not None:
        allowed_bytes = gpu_selection.count_allowed_bytes(hardware.gpu, limits.gpu_memory)
        yield f"limits.gpu_memory: tensors may use {format_bytes(allowed_bytes)} of {format_bytes(hardware.gpu.memory)}"
    if hardware.gpu is None and hardware.image in image_selection.BUILDS and job.limits.gpus != "none":
        yield f"image: {hardware.image} needs a GPU and sees none, so `train` will not start"
    cpus = hardware.cpu.quota or float(hardware.cpu.budget)
    if limits.cpus is not None and cpus > limits.cpus:
        yield f"limits.cpus: {limits.cpus:g} requested but not enforced; {cpus:g} CPUs are available"
    if limits.cpus is not None and cpus < limits.cpus:
        yield f"limits.cpus: {limits.cpus:g} requested, only {cpus:g} available"
    if limits.memory is not None:
        requested = parse_bytes(limits.memory)
        if memory.limit is None or memory.limit > requested:
            yield f"limits.memory: {limits.memory} requested but not enforced; {format_bytes(memory.limit or memory.host)} available"
        elif memory.limit < requested:
            yield f"limits.memory: {limits.memory} requested, only {format_bytes(memory.limit)} available"
    shm = hardware.storage.shm
    if limits.shm is not None and hardware.place != "host" and shm is not None and shm < parse_bytes(limits.shm):
        yield f"limits.shm: {limits.shm} requested, /dev/shm has {shm >> 20} MiB"
