"""Reads NVIDIA GPUs from the driver's management library (NVML), or why none can be used.

The library is imported only if a driver has installed it, so a machine without a GPU loses no time.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.hardware.facts import Gpu
from drivetrain.hardware.kernel_file import read_text

if TYPE_CHECKING:
    from types import ModuleType

_LIBRARY = "libnvidia-ml.so.1"
_FOLDERS = ("usr/lib64", "usr/lib", "usr/local/nvidia/lib64", "usr/lib/wsl/lib", "run/opengl-driver/lib")


def read_gpus(
    root: Path, environ: Mapping[str, str], environment_kind: str, nvml: Any = None
) -> tuple[tuple[Gpu, ...], str | None]:
    """Read the GPUs that CUDA will show to this process, in its order, and the problems of the others.

    Args:
        root: `/`, or the root of a recorded tree.
        environ: CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES are respected.
        environment_kind: `host`, or the kind of container.
        nvml: a module with pynvml's functions; None imports pynvml if a driver is installed.
    """
    if nvml is None:
        if not _has_library(root, environ):
            return (), _explain_missing_library(root, environment_kind)
        nvml = importlib.import_module("pynvml")  # takes 30 ms, wasted without a driver
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return (), _explain_missing_driver(root, environment_kind, error)
    try:
        return _get_gpus(nvml, environ, environment_kind)
    except nvml.NVMLError as error:
        return (), f"the NVIDIA driver answers with an error: {error}"
    finally:
        nvml.nvmlShutdown()


def _get_gpus(
    nvml: ModuleType, environ: Mapping[str, str], environment_kind: str
) -> tuple[tuple[Gpu, ...], str | None]:
    driver = nvml.nvmlSystemGetDriverVersion()
    gpus: list[Gpu] = []
    problems: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus += _list_devices(nvml, index, driver, problems)
        except nvml.NVMLError as error:
            problems.append(f"GPU {index} cannot be used: {error}")
    requested = environ.get("CUDA_VISIBLE_DEVICES")
    visible = tuple(_select_visible(gpus, requested))
    if gpus and not visible:
        problems.append(f"CUDA_VISIBLE_DEVICES={requested} hides every GPU: unset it")
    elif not gpus and not problems:
        problems.append(_explain_missing_gpu(environ, environment_kind))
    return visible, "; ".join(problems) or None


def _list_devices(nvml: ModuleType, index: int, driver: str, problems: list[str]) -> list[Gpu]:
    """List a GPU, or its MIG instances, which CUDA shows instead."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    mig = _has_mig(nvml, handle)
    instances = list(list_instances(nvml, handle)) if mig else [handle]
    if not instances:
        problems.append(f"GPU {index} is in MIG mode without an instance: create one with nvidia-smi mig")
    return [_read_device(nvml, instance, index, capability, driver, mig) for instance in instances]


def _read_device(
    nvml: ModuleType, handle: object, index: int, capability: tuple[int, int], driver: str, mig: bool
) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        capability=capability,
        memory=int(memory.total),
        free=int(memory.free),
        driver=driver,
        mig=mig,
        uuid=nvml.nvmlDeviceGetUUID(handle),
    )


def _has_mig(nvml: ModuleType, handle: object) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # most GPUs, and drivers before 450, do not support MIG
        return False


def list_instances(nvml: ModuleType, handle: object) -> Iterator[object]:
    """Yield the MIG instances of a GPU."""
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(nvml.NVMLError):  # slots are numbered, and most are empty
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)


def _select_visible(gpus: list[Gpu], requested: str | None) -> list[Gpu]:
    """Select the devices that CUDA shows: if there is a MIG instance, only the first one, unless another is named."""
    counted = [gpu for gpu in gpus if gpu.mig][:1] or gpus
    if requested is None:
        return counted
    visible: list[Gpu] = []
    for identifier in (identifier.strip() for identifier in requested.split(",")):
        if identifier.isdigit():
            match = counted[int(identifier) : int(identifier) + 1]
        else:
            match = [gpu for gpu in gpus if identifier and gpu.uuid.startswith(identifier)][:1]
        if not match:  # CUDA, too, stops at the first one that does not exist
            break
        visible += match
    return visible


def _has_library(root: Path, environ: Mapping[str, str]) -> bool:
    triplet = f"{platform.machine()}-linux-gnu"
    folders = [root / f for f in (*_FOLDERS, f"usr/lib/{triplet}", f"usr/lib/{triplet}/nvidia/current")]
    folders += [Path(f) for f in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if f]
    if any((folder / _LIBRARY).exists() for folder in folders):
        return True
    with contextlib.suppress(OSError):  # the dynamic loader's own cache covers unusual locations
        return _LIBRARY.encode() in (root / "etc/ld.so.cache").read_bytes()
    return False


def _find_pci_device(root: Path) -> str | None:
    """Find the PCI address of the first NVIDIA display or 3D controller."""
    for folder in sorted(glob.glob(str(root / "sys/bus/pci/devices/*"))):
        if read_text(Path(folder, "vendor")) == "0x10de" and read_text(Path(folder, "class")).startswith("0x03"):
            return os.path.basename(folder)
    return None


def _is_driver_loaded(root: Path) -> bool:
    return (root / "proc/driver/nvidia").is_dir()


def _explain_missing_library(root: Path, environment_kind: str) -> str | None:
    device, loaded = _find_pci_device(root), _is_driver_loaded(root)
    if not device and not loaded:
        return None
    description = f"the machine has an NVIDIA GPU (PCI {device})" if device else "the machine has an NVIDIA driver"
    if environment_kind != "host":
        return f"{description}, but this container was started without it: ask for GPUs (`limits.gpus`)"
    if loaded:
        return f"{description}, but {_LIBRARY} is not installed: install the driver's user-space part"
    return f"{description}, but no NVIDIA driver is loaded: install one (nvidia-smi must list the GPU)"


def _explain_missing_driver(root: Path, environment_kind: str, error: Exception) -> str | None:
    """Explain a driver library without a driver: normal if there is no GPU, else a problem."""
    device = _find_pci_device(root)
    if not device and not _is_driver_loaded(root):
        return None
    which = f"the NVIDIA GPU (PCI {device})" if device else "the NVIDIA driver"
    hint = "nvidia-smi must list it" if environment_kind == "host" else "start the container with GPUs (`limits.gpus`)"
    return f"{which} cannot be used: {error}: {hint}"


def _explain_missing_gpu(environ: Mapping[str, str], environment_kind: str) -> str:
    if environment_kind == "host":
        return "the NVIDIA driver is loaded, but lists no GPU: look at dmesg"
    requested = environ.get("NVIDIA_VISIBLE_DEVICES")
    cause = f"NVIDIA_VISIBLE_DEVICES={requested}" if requested is not None else "NVIDIA_VISIBLE_DEVICES is not set"
    return f"the driver's library is in this container, but no GPU ({cause}): start it with `gpus: all`"
