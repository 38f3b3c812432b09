"""Selects the GPUs that a job uses, by `limits.gpus`; if the GPUs differ, only those of one kind.

none      no GPU, even if there is one
auto      one: the newest chip with the most memory; of equal ones the first that is unused, else the one with most free
all       every GPU of that kind
[0, 1]    these, by their numbers in `drivetrain facts` and nvidia-smi
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from runtime.errors import DeviceError
from runtime.hardware.facts import Gpu, Hardware
from runtime.system.installation import TRAIN_GPU
from runtime.system.units import format_bytes, parse_bytes

GpuRequest = Literal["auto", "all", "none"] | Sequence[int]

CONTEXT = 512 << 20
"""Approximate bytes of GPU memory that CUDA itself needs before the first tensor."""
UNUSED = 0.9
"""Share of a GPU's memory that is free if nobody else computes on it; a desktop takes some."""


def select_gpus(hardware: Hardware, requested: GpuRequest = "auto") -> Hardware:
    """The hardware with only the GPUs that a job uses, and a note if there was a choice.

    Args:
        hardware: the whole machine.
        requested: the job's `limits.gpus`.

    Raises:
        DeviceError: if a GPU with a requested number does not exist.
    """
    gpus, note = _chosen(hardware, requested)
    return replace(hardware, gpus=gpus, gpu_note=note)


def _chosen(hardware: Hardware, requested: GpuRequest) -> tuple[tuple[Gpu, ...], str | None]:
    here = hardware.gpus
    if not isinstance(requested, str):
        return _numbered(hardware, requested)
    if requested == "none":
        return (), f"limits.gpus: none, so {_named(here)} is not used" if here else None
    if not here:
        return (), "limits.gpus: all requested, but this machine has no GPU" if requested == "all" else None
    if hardware.image == "cpu":
        return (), f"this is the CPU image, so {_named(here)} is not used; `{TRAIN_GPU}` uses it"
    best = max(here, key=_preference)
    if requested == "auto":
        return (best,), _left_over(here, (best,), "`limits: {gpus: all}` uses every GPU of one model")
    alike = tuple(gpu for gpu in here if (gpu.name, gpu.memory) == (best.name, best.memory))
    return alike, _left_over(here, alike, "one run uses GPUs of one model")


def _preference(gpu: Gpu) -> tuple[object, ...]:
    """What orders GPUs: of equal ones, as on a shared server, one that nobody uses comes before the one with most free."""
    unused = gpu.free >= UNUSED * gpu.memory
    return gpu.free >= CONTEXT, gpu.capability, gpu.memory, unused, unused or gpu.free, -gpu.index


def _numbered(hardware: Hardware, requested: Sequence[int]) -> tuple[tuple[Gpu, ...], str | None]:
    """The GPUs that the job lists. The weakest comes first, since decisions are based on the first and must suit
    all.
    """
    known = {gpu.index: gpu for gpu in hardware.gpus}
    lost = [number for number in requested if number not in known]
    if lost:
        here = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in hardware.gpus) or hardware.gpu_trouble or "none"
        raise DeviceError(
            f"limits.gpus: GPU {lost[0]} does not exist on this machine",
            f"usable GPUs: {here}",
            "choose other numbers, or write `gpus: auto`, or `gpus: none` to train on the CPU",
        )
    chosen = [known[number] for number in requested]
    first = min(chosen, key=lambda gpu: (gpu.capability, gpu.memory))
    chosen.sort(key=lambda gpu: gpu is not first)
    mixed = len({gpu.name for gpu in chosen}) > 1
    note = f"different GPU models, as set in the job: settings are chosen for the weakest, {_named((first,))}"
    return tuple(chosen), note if mixed else None


def _left_over(here: Sequence[Gpu], chosen: Sequence[Gpu], hint: str) -> str | None:
    left = [gpu for gpu in here if gpu not in chosen]
    if not left:
        return None
    kinds = len({gpu.name for gpu in here})
    what = f"{len(here)} GPUs of {kinds} kinds" if kinds > 1 else f"{len(here)} GPUs"
    verbs = ("is" if len(chosen) == 1 else "are", "is" if len(left) == 1 else "are")
    return f"{what}: {_named(chosen)} {verbs[0]} used, {_named(left)} {verbs[1]} not; {hint}"


def _named(gpus: Sequence[Gpu]) -> str:
    """`GPU 0, 2 (RTX 3060) and 1 (GTX 1080)`."""
    names = dict.fromkeys(gpu.name for gpu in gpus)
    parts = [f"{', '.join(str(g.index) for g in gpus if g.name == name)} ({name})" for name in names]
    return f"GPU {' and '.join(parts)}"


def environment(hardware: Hardware) -> dict[str, str]:
    """Environment variables that make CUDA use exactly these GPUs in our order, with reproducible matrix products.

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


def allowed_bytes(gpu: Gpu, requested: float | str | None) -> int:
    """Bytes of a GPU that a job's `limits.gpu_memory` allows: a share, a size, or all of it."""
    if requested is None:
        return gpu.memory
    return min(gpu.memory, parse_bytes(requested) if isinstance(requested, str) else int(gpu.memory * requested))


def available_bytes(gpu: Gpu, requested: float | str | None) -> int:
    """Bytes of a GPU that a job may use, given the use of others."""
    return min(gpu.free, allowed_bytes(gpu, requested))


def refuse_full(gpu: Gpu) -> None:
    """Refuse a GPU whose memory is full.

    Raises:
        DeviceError: if not even CUDA itself would fit.
    """
    if gpu.free < CONTEXT:
        raise DeviceError(
            f"{_named((gpu,))} has {format_bytes(gpu.free)} of {format_bytes(gpu.memory)} free",
            f"at least {format_bytes(CONTEXT)}, which CUDA itself needs, plus the memory of the training",
            "nvidia-smi lists the processes that use the rest: end them, or choose another GPU with limits.gpus",
        )
