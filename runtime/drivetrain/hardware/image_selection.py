"""Selects the image that has code for this machine's chip and driver, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain.hardware.facts import Gpu, Hardware

AMPERE_DRIVER = 580
LEGACY_DRIVER = 525
DRIVERS = {11: 450, 12: LEGACY_DRIVER, 13: AMPERE_DRIVER}
"""The oldest driver for each major version of CUDA."""


@dataclass(frozen=True)
class TorchBuild:
    """The torch in an image, which can also be installed without the image."""

    torch: str
    cuda: str
    covers: str
    """The GPUs that it has code for, and the oldest driver."""


BUILDS = {
    "ampere": TorchBuild("2.13.0", "13.0", f"capability 7.5 and newer with driver {AMPERE_DRIVER} or newer"),
    "legacy": TorchBuild("2.7.1", "12.6", f"capability 5.0 to 9.0 with driver {LEGACY_DRIVER} or newer"),
}


@dataclass(frozen=True)
class Image:
    """An image name (cpu, ampere, legacy) and the reason; None if no image has code for the chip."""

    word: str | None
    reason: str


def choose_image(hardware: Hardware) -> Image:
    """Choose the image for this machine, by capability and driver of its first GPU."""
    gpu = hardware.gpu
    if gpu is None:
        return Image("cpu", hardware.gpu_trouble or hardware.gpu_note or "no NVIDIA GPU found")
    chip = f"{gpu.name}, capability {gpu.capability[0]}.{gpu.capability[1]}, driver {gpu.driver}"
    driver = parse_driver_major(gpu)
    if gpu.capability >= (7, 5) and driver >= AMPERE_DRIVER:
        return Image("ampere", f"{chip}: the image's CUDA 13 build needs capability 7.5 and driver {AMPERE_DRIVER}")
    if gpu.capability < (5, 0):
        return Image(None, f"{chip}: no image has code below 5.0")
    if gpu.capability > (9, 0):
        return Image(None, f"{chip}: this chip needs driver {AMPERE_DRIVER} or newer")
    if driver >= LEGACY_DRIVER:
        reason = (
            "the image for chips below 7.5" if gpu.capability < (7, 5) else f"driver below {AMPERE_DRIVER}: CUDA 12.6"
        )
        return Image("legacy", f"{chip}: {reason}")
    return Image(None, f"{chip}: CUDA 12 needs driver {LEGACY_DRIVER} or newer")


def parse_driver_major(gpu: Gpu) -> int:
    """Parse the driver's branch: 580 of 580.95.05; 0 if unparsable."""
    head = gpu.driver.split(".")[0]
    return int(head) if head.isdigit() else 0
