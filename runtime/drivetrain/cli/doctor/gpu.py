"""Checks GPUs: driver, container toolkit, and whether image and torch have code for the chip."""

from __future__ import annotations

from collections.abc import Iterator

from drivetrain.cli.doctor.docker_engine import parse_version
from drivetrain.cli.doctor.finding import Finding, fail, ok, warn
from drivetrain.cli.doctor.snapshot import Snapshot
from drivetrain.hardware import image_selection
from drivetrain.hardware.facts import NO_MPS, Gpu
from drivetrain.system.installation import INSTALL_TORCH, TRAIN_ON_GPU

TOOLKIT = (((1, 16, 1), "CVE-2024-0132"), ((1, 17, 3), "CVE-2025-23359"), ((1, 17, 7), "CVE-2025-23266"))
"""Last vulnerable versions of the container toolkit; each of these flaws lets an image take over the host."""
CDI_BY_ITSELF = (1, 18)
"""First version that keeps the descriptions of GPUs for the Container Device Interface up to date."""
DRIVERS = {535: (535, 261, 3), 570: (570, 172, 8), 575: (575, 64, 5)}
"""First driver of each branch with the fixes of July 2025 (CVE-2025-23277 and others)."""


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the GPU; without any NVIDIA device only a Mac gets a finding, whose GPU is not used."""
    hardware = snapshot.hardware
    if hardware.gpu_trouble:
        yield fail(
            "gpu", hardware.gpu_trouble, f"nvidia-smi shows details; a container needs `gpus: all` ({TRAIN_ON_GPU})"
        )
    if hardware.system == "Darwin":
        yield ok("gpu", NO_MPS)
    if hardware.gpu is None:
        return
    yield _check_driver(hardware.gpu)
    yield from _check_toolkit(snapshot)
    yield from _check_match(snapshot)


def _check_driver(gpu: Gpu) -> Finding:
    version = parse_version(gpu.driver)
    if version[:1] < (image_selection.LEGACY_DRIVER,):
        return fail(
            "driver",
            f"{gpu.driver}: the images need {image_selection.LEGACY_DRIVER} or newer",
            f"install driver {image_selection.AMPERE_DRIVER} from your distribution, and restart",
        )
    oldest = DRIVERS.get(version[0])
    if oldest and version < oldest:
        return warn(
            "driver",
            f"driver {gpu.driver} has known vulnerabilities (CVE-2025-23277)",
            f"update to {'.'.join(map(str, oldest))} or newer, and restart",
        )
    if gpu.capability >= (7, 5) and version[0] < image_selection.AMPERE_DRIVER:
        return warn(
            "driver",
            f"{gpu.name} must use the older image because of driver {gpu.driver}",
            f"driver {image_selection.AMPERE_DRIVER} or newer supports the image `ampere`",
        )
    return ok("driver", gpu.driver)


def _check_toolkit(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the toolkit, only on a host with an engine, which passes GPUs to containers."""
    if snapshot.hardware.place != "host" or snapshot.run(["docker", "--version"]) is None:
        return
    answer = snapshot.run(["nvidia-ctk", "--version"])
    if answer is None:
        yield fail(
            "container toolkit",
            "missing: containers cannot use the GPU",
            "sudo apt-get install nvidia-container-toolkit && sudo nvidia-ctk runtime configure && "
            "sudo systemctl restart docker",
        )
        return
    version = parse_version(answer)
    text = ".".join(map(str, version))
    holes = [name for last, name in TOOLKIT if version <= last]
    if holes:
        yield fail(
            "container toolkit",
            f"{text}: a malicious image can take over this host ({', '.join(holes)})",
            "sudo apt-get install --only-upgrade nvidia-container-toolkit (1.17.8 or newer)",
        )
    elif version < CDI_BY_ITSELF:
        yield warn(
            "container toolkit",
            f"{text}: `systemctl daemon-reload`, also by automatic updates, takes the GPU away from running containers",
            "update nvidia-container-toolkit to 1.18 or newer, which describes the GPUs to the engine (CDI)",
        )
    else:
        yield ok("container toolkit", text)


def _check_match(snapshot: Snapshot) -> Iterator[Finding]:
    hardware = snapshot.hardware
    suitable = image_selection.choose_image(hardware)
    if suitable.word is None:
        yield fail("gpu and image", suitable.reason, "train on the CPU, or on another machine")
    elif hardware.image and hardware.image != suitable.word:
        yield fail(
            "gpu and image",
            f"this image is `{hardware.image}`, but the GPU needs `{suitable.word}`: {suitable.reason}",
            f"make image-{suitable.word}",
        )
    elif hardware.torch and hardware.torch.cuda is None:
        yield fail(
            "gpu and image",
            f"torch {hardware.torch.version} is a CPU build: the GPU is not used",
            f"{INSTALL_TORCH}, or train in the image `{suitable.word}`",
        )
    elif hardware.torch and snapshot.loaded.get("gpus") == 0:
        yield fail(
            "gpu and image",
            "the driver lists a GPU, but torch finds none",
            "check CUDA_VISIBLE_DEVICES and the driver version",
        )
    else:
        yield ok("gpu and image", suitable.reason)
