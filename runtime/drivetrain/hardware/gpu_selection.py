"""Selects the GPUs that a job uses, by `limits.gpus`; if the GPUs differ, only those of one kind.

none      no GPU, even if there is one
auto      one: the newest chip with the most memory; of equal ones the first that is unused, else the one with most free
all       every GPU of that kind
[0, 1]    these, by their numbers in `drivetrain plan` and nvidia-smi
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from drivetrain.errors import DeviceError
from drivetrain.hardware.facts import Gpu, Hardware
from drivetrain.system.installation import TRAIN_ON_GPU
from drivetrain.system.units import format_bytes, parse_bytes

GpuRequest = Literal["auto", "all", "none"] | Sequence[int]

CUDA_CONTEXT_BYTES = 512 << 20
"""Approximate bytes of GPU memory that CUDA itself needs before the first tensor."""
UNUSED_MEMORY_SHARE = 0.9
"""Share of a GPU's memory that is free if nobody else computes on it; a desktop takes some."""


def select_gpus(hardware: Hardware, requested: GpuRequest = "auto") -> Hardware:
    """Select the hardware with only the GPUs that a job uses, and a note if there was a choice.

    Args:
        hardware: the whole machine.
        requested: the job's `limits.gpus`.

    Raises:
        DeviceError: if a GPU with a requested number does not exist.
    """
    gpus, note = _choose_gpus(hardware, requested)
    return replace(hardware, gpus=gpus, gpu_note=note)


def _choose_gpus(hardware: Hardware, requested: GpuRequest) -> tuple[tuple[Gpu, ...], str | None]:
    gpus = hardware.gpus
    if not isinstance(requested, str):
        return _select_numbers(hardware, requested)
    if requested == "none":
        return (), f"limits.gpus: none, so {_list_gpus(gpus)} is not used" if gpus else None
    if not gpus:
        return (), "limits.gpus: all requested, but this machine has no GPU" if requested == "all" else None
    if hardware.image == "cpu":
        return (), f"this is the CPU image, so {_list_gpus(gpus)} is not used; `{TRAIN_ON_GPU}` uses it"
    best = max(gpus, key=_rank_gpu)
    if requested == "auto":
        return (best,), _describe_unused(gpus, (best,), "`limits: {gpus: all}` uses every GPU of one model")
    alike = tuple(gpu for gpu in gpus if (gpu.name, gpu.memory) == (best.name, best.memory))
    return alike, _describe_unused(gpus, alike, "one run uses GPUs of one model")


def _rank_gpu(gpu: Gpu) -> tuple[object, ...]:
    """Rank a GPU, for sorting: of equal GPUs an unused one comes first, then the one with the most free memory."""
    unused = gpu.free >= UNUSED_MEMORY_SHARE * gpu.memory
    return gpu.free >= CUDA_CONTEXT_BYTES, gpu.capability, gpu.memory, unused, unused or gpu.free, -gpu.index


def _select_numbers(hardware: Hardware, requested: Sequence[int]) -> tuple[tuple[Gpu, ...], str | None]:
    """Select the GPUs that the job lists, the weakest first: decisions are based on it and must suit all."""
    by_number = {gpu.index: gpu for gpu in hardware.gpus}
    missing = [number for number in requested if number not in by_number]
    if missing:
        usable = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in hardware.gpus) or hardware.gpu_trouble or "none"
        raise DeviceError(
            f"limits.gpus: GPU {missing[0]} does not exist on this machine",
            f"usable GPUs: {usable}",
            "choose other numbers, or write `gpus: auto`, or `gpus: none` to train on the CPU",
        )
    selected = [by_number[number] for number in requested]
    first = min(selected, key=lambda gpu: (gpu.capability, gpu.memory))
    selected.sort(key=lambda gpu: gpu is not first)
    mixed = len({gpu.name for gpu in selected}) > 1
    note = f"different GPU models, as set in the job: settings are chosen for the weakest, {_list_gpus((first,))}"
    return tuple(selected), note if mixed else None


def _describe_unused(gpus: Sequence[Gpu], used: Sequence[Gpu], hint: str) -> str | None:
    unused = [gpu for gpu in gpus if gpu not in used]
    if not unused:
        return None
    kinds = len({gpu.name for gpu in gpus})
    description = f"{len(gpus)} GPUs of {kinds} kinds" if kinds > 1 else f"{len(gpus)} GPUs"
    verbs = ("is" if len(used) == 1 else "are", "is" if len(unused) == 1 else "are")
    return f"{description}: {_list_gpus(used)} {verbs[0]} used, {_list_gpus(unused)} {verbs[1]} not; {hint}"


def _list_gpus(gpus: Sequence[Gpu]) -> str:
    """List GPUs as `GPU 0, 2 (RTX 3060) and 1 (GTX 1080)`."""
    names = dict.fromkeys(gpu.name for gpu in gpus)
    groups = [f"{', '.join(str(g.index) for g in gpus if g.name == name)} ({name})" for name in names]
    return f"GPU {' and '.join(groups)}"


def build_environment(hardware: Hardware) -> dict[str, str]:
    """Return variables that make CUDA use exactly these GPUs in our order, with reproducible matrix products.

    By default CUDA puts the fastest GPU first. A MIG instance has no number; CUDA shows the one that NVML listed.
    Without workspaces of a fixed size, cuBLAS may sum in another order from call to call.
    """
    if not hardware.gpus:
        return {}
    same = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if any(gpu.mig for gpu in hardware.gpus):
        return same
    # Numbers refer to the GPUs visible to the container or through CUDA_VISIBLE_DEVICES, in an order set by a variable.
    named = all(gpu.uuid for gpu in hardware.gpus)
    numbers = ",".join(gpu.uuid if named else str(gpu.index) for gpu in hardware.gpus)
    return same | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": numbers}


def count_allowed_bytes(gpu: Gpu, requested: float | str | None) -> int:
    """Return the bytes of a GPU that a job's `limits.gpu_memory` allows: a share, a size, or all of it."""
    if requested is None:
        return gpu.memory
    return min(gpu.memory, parse_bytes(requested) if isinstance(requested, str) else int(gpu.memory * requested))


def count_available_bytes(gpu: Gpu, requested: float | str | None) -> int:
    """Return the bytes of a GPU that a job may use, given the use of others."""
    return min(gpu.free, count_allowed_bytes(gpu, requested))


def refuse_full(gpu: Gpu) -> None:
    """Refuse a GPU whose memory is full; raises DeviceError if not even CUDA itself would fit."""
    if gpu.free < CUDA_CONTEXT_BYTES:
        raise DeviceError(
            f"{_list_gpus((gpu,))} has {format_bytes(gpu.free)} of {format_bytes(gpu.memory)} free",
            f"at least {format_bytes(CUDA_CONTEXT_BYTES)}, which CUDA itself needs, plus the memory of the training",
            "nvidia-smi lists the processes that use the rest: end them, or choose another GPU with limits.gpus",
        )
