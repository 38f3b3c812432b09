"""The NVIDIA container toolkit: whether the engine can hand GPUs to a container, and how it wants to be asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.errors import DeviceError

_HOOK = "nvidia-container-runtime-hook"
_CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker, then sudo systemctl restart docker"


@dataclass(frozen=True)
class Toolkit:
    """How a container asks for GPUs: the driver's name and what stands for all of them."""

    driver: str
    devices: str

    def variables(self) -> dict[str, str]:
        """What the compose files of the GPU images read."""
        return {"DRIVETRAIN_GPU_DRIVER": self.driver, "DRIVETRAIN_GPU_DEVICES": self.devices}


def find(info: Mapping[str, Any], which: Callable[[str], str | None] = shutil.which) -> Toolkit:
    """The toolkit as the engine knows it.

    Args:
        info: the engine's own words (`docker info`).
        which: finds a program of the host.

    Raises:
        DeviceError: if the engine cannot hand out GPUs.
    """
    if "nvidia" in (info.get("Runtimes") or {}) or which(_HOOK):
        return Toolkit("nvidia", "all")
    # The Container Device Interface: engines that discover devices by themselves need no runtime.
    if any(str(found.get("ID", "")).startswith("nvidia.com/gpu") for found in info.get("DiscoveredDevices") or ()):
        return Toolkit("cdi", "nvidia.com/gpu=all")
    installed = which("nvidia-ctk") is not None
    raise DeviceError(
        "the Docker engine cannot give a container a GPU: "
        + (
            "the NVIDIA container toolkit is installed, but the engine is not configured for it"
            if installed
            else "the NVIDIA container toolkit is missing"
        ),
        "an engine with the runtime `nvidia`, or with nvidia.com/gpu among the devices that `docker info` lists",
        _CONFIGURE
        if installed
        else f"install the package nvidia-container-toolkit as NVIDIA's documentation describes; {_CONFIGURE}",
    )


def refused(words: str) -> DeviceError | None:
    """What the engine's words mean when it could not start a container with GPUs; None if something else is wrong."""
    if "could not select device driver" in words:
        return DeviceError(
            "the Docker engine was started before the NVIDIA container toolkit was installed",
            "an engine that knows the driver `nvidia`",
            _CONFIGURE,
        )
    if "nvidia-container-cli" in words or "nvml error" in words.lower():
        return DeviceError(
            f"the NVIDIA container toolkit could not provide the GPU:\n{words.strip()[-1000:]}",
            "a working driver: nvidia-smi on the host lists the GPU",
            "fix what the toolkit reports; after a driver update restart the host",
        )
    return None
