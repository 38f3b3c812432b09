"""Which image has code for this machine's chip and driver, and why."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.hardware import Gpu, Hardware

AMPERE_DRIVER = 580
LEGACY_DRIVER = 525


@dataclass(frozen=True)
class Image:
    """An image word (cpu, ampere, legacy), or None where no image has code for the chip, and the reason."""

    word: str | None
    reason: str


def choose(hardware: Hardware) -> Image:
    """The image for this machine, by capability and driver of its first GPU."""
    gpu = hardware.gpu
    if gpu is None:
        return Image("cpu", hardware.gpu_trouble or "no NVIDIA GPU is here")
    chip = f"{gpu.name}, capability {gpu.capability[0]}.{gpu.capability[1]}, driver {gpu.driver}"
    driver = _major(gpu)
    if gpu.capability >= (8, 0) and driver >= AMPERE_DRIVER:
        return Image("ampere", f"{chip}: CUDA 13 needs 8.0 here and driver {AMPERE_DRIVER}")
    if gpu.capability < (5, 0):
        return Image(None, f"{chip}: no image has code below 5.0")
    if gpu.capability > (9, 0):
        return Image(None, f"{chip}: this chip needs driver {AMPERE_DRIVER} or newer")
    if driver >= LEGACY_DRIVER:
        why = "the image for chips below 8.0" if gpu.capability < (8, 0) else f"driver below {AMPERE_DRIVER}: CUDA 12.6"
        return Image("legacy", f"{chip}: {why}")
    return Image(None, f"{chip}: CUDA 12 needs driver {LEGACY_DRIVER} or newer")


def _major(gpu: Gpu) -> int:
    head = gpu.driver.split(".")[0]
    return int(head) if head.isdigit() else 0
