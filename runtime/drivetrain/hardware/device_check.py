"""Checks before the first kernel runs that the GPU can be used; otherwise the run ends with exit code 9 and advice.

choose_launch_image   on the host, before a container starts
select_devices        in the supervisor, from the hardware, before there is a run folder
check_build           in the trainer, with the torch that is loaded
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from drivetrain.errors import DeviceError
from drivetrain.hardware import gpu_selection, image_selection
from drivetrain.hardware.facts import Hardware, Torch
from drivetrain.system.installation import INSTALL_TORCH, TRAIN_ON_CPU, TRAIN_ON_GPU

_CODE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_CPU_HINT = "`limits: {gpus: none}` trains on the CPU"


def choose_launch_image(hardware: Hardware) -> str:
    """Choose the name of the image for a GPU job; raises DeviceError if there is no GPU that a container could use."""
    gpu = hardware.gpu
    if gpu is None:
        raise DeviceError(
            hardware.gpu_trouble or "no NVIDIA GPU found",
            f"a GPU that nvidia-smi lists, with driver {image_selection.LEGACY_DRIVER} or newer",
            f"fix that, or train on the CPU: `{TRAIN_ON_CPU}`",
        )
    gpu_selection.refuse_full(gpu)
    image = image_selection.choose_image(hardware)
    if image.word is None:
        builds = "; ".join(f"the image {variant}: {build.covers}" for variant, build in image_selection.BUILDS.items())
        way = "no driver helps" if gpu.capability < (5, 0) else "install a newer NVIDIA driver on the host"
        raise DeviceError(image.reason, builds, f"{way}; `{TRAIN_ON_CPU}` trains on the CPU")
    return image.word


def select_devices(hardware: Hardware, requested: gpu_selection.GpuRequest) -> Hardware:
    """Select the hardware with only the GPUs that the job uses, all of them usable for training.

    Args:
        hardware: the whole machine.
        requested: the job's `limits.gpus`.

    Raises:
        DeviceError: if torch is missing, a GPU image has no GPU, a GPU's memory is full, or driver or torch do not fit
            it.
    """
    if hardware.torch is None:
        raise DeviceError(
            "torch is not installed",
            "training needs torch",
            f"`{TRAIN_ON_CPU}` trains in the image; `{INSTALL_TORCH}` installs torch here",
        )
    machine = gpu_selection.select_gpus(hardware, requested)
    if machine.gpu is None and machine.image in image_selection.BUILDS and requested != "none":
        raise _missing_gpu_error(machine)
    for gpu in machine.gpus:
        gpu_selection.refuse_full(gpu)
    _refuse_build(machine, hardware.torch, hardware.torch.architectures)
    return machine


def select_usable_hardware(hardware: Hardware, report: Callable[[str], None]) -> Hardware:
    """Select the hardware for commands that need no GPU: with the best GPU, or with none, which is reported with its
    reason.

    Raises:
        DeviceError: if no torch is installed.
    """
    if hardware.torch is None or hardware.gpu is None:
        return hardware
    try:
        return select_devices(hardware, "auto")
    except DeviceError as error:
        return _drop_gpus(hardware, error, report)


def select_usable_device(hardware: Hardware, report: Callable[[str], None]) -> str:
    """Return `cuda:0`, or `cpu` if there is no GPU, or CUDA does not answer, which is reported."""
    try:
        check_build(hardware)
    except DeviceError as error:
        hardware = _drop_gpus(hardware, error, report)
    return "cuda:0" if hardware.gpu else "cpu"


def _drop_gpus(hardware: Hardware, error: DeviceError, report: Callable[[str], None]) -> Hardware:
    report(f"warning: {error.given}; computing on the CPU")
    return replace(hardware, gpus=())


def check_build(hardware: Hardware) -> None:
    """Refuse a GPU that the loaded torch cannot run on. Starts no kernel.

    Raises:
        DeviceError: if CUDA does not answer, or this torch has no code for one of the job's GPUs.
    """
    if hardware.gpu is None:
        return
    import torch

    loaded = Torch(version=torch.__version__, cuda=torch.version.cuda)
    _refuse_build(hardware, loaded, ())
    if torch.cuda.device_count() < len(hardware.gpus):
        raise DeviceError(
            f"the driver lists {len(hardware.gpus)} GPU for this run, CUDA finds {torch.cuda.device_count()}",
            "a GPU that both can use: nvidia-smi, and python -c 'import torch; torch.cuda.init()', which names the cause",
            f"fix the cause they report, or continue without a GPU: {_CPU_HINT}",
        )
    _refuse_build(hardware, loaded, torch.cuda.get_arch_list())


def has_code_for(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Return whether compiled code for `architectures` (sm_75, sm_90a, compute_80, ...) runs on a chip.

    Machine code (sm) runs on later chips of the same major version, portable code (compute) on all later chips; a
    suffix binds it to the chip (a) or its family (f).
    """
    for kind, major, minor, letter in _CODE.findall(" ".join(architectures)):
        code = (int(major), int(minor))
        same = code[0] == capability[0] or (kind == "compute" and not letter)
        if code == capability or (same and code < capability and letter != "a"):
            return True
    return False


def _refuse_build(hardware: Hardware, torch: Torch, architectures: Sequence[str]) -> None:
    name = f"torch {torch.version} ({f'CUDA {torch.cuda}' if torch.cuda else 'CPU build'})"
    for gpu in hardware.gpus:
        chip = f"{gpu.name} (capability {gpu.capability[0]}.{gpu.capability[1]}, driver {gpu.driver})"
        if torch.cuda is None:
            raise _build_error(hardware, f"found {chip}, but {name} has no code for any GPU")
        oldest = image_selection.DRIVERS.get(int(torch.cuda.split(".")[0]), 0)
        if image_selection.parse_driver_major(gpu) < oldest:
            raise _build_error(hardware, f"{chip}: the driver is too old for {name}, which needs {oldest} or newer")
        if architectures and not has_code_for(gpu.capability, architectures):
            raise _build_error(
                hardware, f"{chip}: {name} has no code for this GPU, only for {_describe_architectures(architectures)}"
            )


def _build_error(hardware: Hardware, description: str) -> DeviceError:
    """Name the image or version of torch that has code for the chip."""
    image = image_selection.choose_image(hardware)
    if image.word is None:
        return DeviceError(description, image.reason, f"install a newer driver if that helps; {_CPU_HINT}")
    build = image_selection.BUILDS[image.word]
    if hardware.image:
        return DeviceError(
            description,
            f"the image {image.word}, with torch {build.torch} and CUDA {build.cuda}",
            f"`{TRAIN_ON_GPU}` picks it; {_CPU_HINT}",
        )
    return DeviceError(
        description,
        f"torch {build.torch} with CUDA {build.cuda}: {build.covers}",
        f"pip install torch=={build.torch}; {_CPU_HINT}",
    )


def _missing_gpu_error(hardware: Hardware) -> DeviceError:
    reason = f": {hardware.gpu_trouble}" if hardware.gpu_trouble else ""
    return DeviceError(
        f"the image {hardware.image} needs a GPU and sees none{reason}",
        f"a container started with GPUs: `{TRAIN_ON_GPU}`, compose with compose/{hardware.image}.yaml, "
        "or `docker run --gpus all`",
        f"start it that way on a host with the NVIDIA driver and container toolkit; {_CPU_HINT}, in any image",
    )


def _describe_architectures(architectures: Sequence[str]) -> str:
    return ", ".join(f"{major}.{minor}{letter}" for _, major, minor, letter in _CODE.findall(" ".join(architectures)))
