"""The NVIDIA container toolkit: whether and how the engine can pass GPUs to a container."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Any

from drivetrain.errors import DeviceError

_HOOK = "nvidia-container-runtime-hook"
_CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker, then sudo systemctl restart docker"


def find(info: Mapping[str, Any], which: Callable[[str], str | None] = shutil.which) -> dict[str, str]:
    """Find how a container of this engine requests GPUs, as variables of the compose files of the GPU images.

    Args:
        info: information from the engine (`docker info`).
        which: finds a program of the host.

    Raises:
        DeviceError: if the engine cannot pass GPUs.
    """
    # The Container Device Interface (CDI) comes first: devices that the runtime's hook has added behind systemd's back
    # are taken away by the next `systemctl daemon-reload` (NVIDIA/nvidia-container-toolkit#48).
    if any(str(device.get("ID", "")).startswith("nvidia.com/gpu") for device in info.get("DiscoveredDevices") or ()):
        return {"DRIVETRAIN_GPU_DRIVER": "cdi", "DRIVETRAIN_GPU_DEVICES": "nvidia.com/gpu=all"}
    if "nvidia" in (info.get("Runtimes") or {}) or which(_HOOK):
        return {"DRIVETRAIN_GPU_DRIVER": "nvidia", "DRIVETRAIN_GPU_DEVICES": "all"}
    cause, install = "is installed, but the engine is not configured for it", ""
    if which("nvidia-ctk") is None:
        cause = "is missing"
        install = "install the package nvidia-container-toolkit as NVIDIA's documentation describes; "
    raise DeviceError(
        f"the Docker engine cannot give a container a GPU: the NVIDIA container toolkit {cause}",
        "an engine with the runtime `nvidia`, or with nvidia.com/gpu among the devices that `docker info` lists",
        f"{install}{_CONFIGURE}",
    )


def explain_refusal(message: str) -> DeviceError | None:
    """Return the error if the engine's message means that GPUs could not be passed; None if the cause is another one."""
    if "could not select device driver" in message:
        return DeviceError(
            "the Docker engine was started before the NVIDIA container toolkit was installed",
            "an engine that knows the driver `nvidia`",
            _CONFIGURE,
        )
    if "nvidia-container-cli" in message or "nvml error" in message.lower():
        return DeviceError(
            f"the NVIDIA container toolkit could not provide the GPU:\n{message.strip()[-1000:]}",
            "a working driver: nvidia-smi on the host lists the GPU",
            "fix what the toolkit reports; after a driver update restart the host",
        )
    return None
