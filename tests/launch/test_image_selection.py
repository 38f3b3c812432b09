"""The image that a host's GPU and driver get, and what is said if there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from drivetrain.errors import DeviceError, SpecError
from tests.file_trees import write_files
from tests.launch.specs import choose_image
from tests.messages import saying
from tests.nvml_double import A100, GIB, GTX, LOADED, PCI, RTX, T4, Card, Nvml

FULL = replace(RTX, memory=GIB + (100 << 20))  # the stand-in leaves all but 1 GiB free


@pytest.mark.parametrize(
    ("nvml", "limits", "expected", "said"),
    [
        (
            Nvml([RTX], "580.95.05"),
            "{}",
            "ampere",
            "image ampere: NVIDIA GeForce RTX 3060, capability 8.6, driver 580.95.05",
        ),
        (
            Nvml([RTX], "550.163.01"),
            "{}",
            "legacy",
            "image legacy: NVIDIA GeForce RTX 3060, capability 8.6, driver 550.163.01",
        ),
        (Nvml([T4], "580.95.05"), "{}", "ampere", "needs capability 7.5 and driver 580"),
        (Nvml([T4], "550.54.15"), "{}", "legacy", "driver below 580: CUDA 12.6"),
        (
            Nvml([GTX, RTX], "580.95.05"),
            "{}",
            "ampere",
            "gpu: 2 GPUs of 2 kinds: GPU 1 (NVIDIA GeForce RTX 3060) is used, GPU 0 (NVIDIA GeForce GTX 1080) is not",
        ),
        (Nvml([GTX, RTX], "580.95.05"), "{gpus: [0]}", "legacy", "capability 6.1"),
        (Nvml([GTX, RTX], "580.95.05"), "{gpus: [0, 1]}", "legacy", "settings are chosen for the weakest, GPU 0"),
        (Nvml([FULL, GTX], "580.95.05"), "{}", "legacy", "GPU 1 (NVIDIA GeForce GTX 1080) is used"),
        (Nvml([A100], "580.95.05"), "{}", "ampere", "image ampere: NVIDIA A100-SXM4-40GB MIG 3g.20gb, capability 8.0"),
    ],
)
def test_the_image_for_chip_and_driver(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    nvml: Nvml,
    limits: str,
    expected: str,
    said: str,
) -> None:
    assert choose_image(monkeypatch, tmp_path, nvml, limits) == expected
    assert said in capsys.readouterr().out


NOWHERE = ("a GPU that nvidia-smi lists, with driver 525 or newer", "fix that, or train on the CPU: `make train-cpu`")

IMAGES = (
    "the image ampere: capability 7.5 and newer with driver 580 or newer; "
    "the image legacy: capability 5.0 to 9.0 with driver 525 or newer"
)

NEWER = "install a newer NVIDIA driver on the host; `make train-cpu` trains on the CPU"


@pytest.mark.parametrize(
    ("files", "nvml", "description", "possible", "action"),
    [
        ({}, None, "no NVIDIA GPU found", *NOWHERE),
        (
            PCI,
            None,
            "the machine has an NVIDIA GPU (PCI 0000:01:00.0), but no NVIDIA driver is loaded: install one "
            "(nvidia-smi must list the GPU)",
            *NOWHERE,
        ),
        (
            PCI | LOADED,
            Nvml([RTX], broken=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH),
            "the NVIDIA GPU (PCI 0000:01:00.0) cannot be used: RM has detected an NVML/RM version mismatch.: "
            "nvidia-smi must list it",
            *NOWHERE,
        ),
        (
            {},
            Nvml([T4], "470.256.02"),
            "Tesla T4, capability 7.5, driver 470.256.02: CUDA 12 needs driver 525 or newer",
            IMAGES,
            NEWER,
        ),
        (
            {},
            Nvml([Card("NVIDIA GeForce RTX 5090", "GPU-1", (12, 0), 32 * GIB)], "570.133.07"),
            "NVIDIA GeForce RTX 5090, capability 12.0, driver 570.133.07: this chip needs driver 580 or newer",
            IMAGES,
            NEWER,
        ),
        (
            {},
            Nvml([Card("Tesla K80", "GPU-1", (3, 7), 12 * GIB)], "470.256.02"),
            "Tesla K80, capability 3.7, driver 470.256.02: no image has code below 5.0",
            IMAGES,
            "no driver helps; `make train-cpu` trains on the CPU",
        ),
        (
            {},
            Nvml([FULL], "580.95.05"),
            "GPU 0 (NVIDIA GeForce RTX 3060) has 100 MiB of 1.1 GiB free",
            "at least 512 MiB, which CUDA itself needs, plus the memory of the training",
            "nvidia-smi lists the processes that use the rest: end them, or choose another GPU with limits.gpus",
        ),
        (
            {},
            Nvml([replace(A100, instances=())], "580.95.05"),
            "GPU 0 is in MIG mode without an instance: create one with nvidia-smi mig",
            *NOWHERE,
        ),
    ],
    ids=["no GPU", "no driver", "driver updated", "driver too old", "chip too new", "chip too old", "full", "MIG"],
)
def test_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    files: dict[str, str],
    nvml: Nvml | None,
    description: str,
    possible: str,
    action: str,
) -> None:
    with pytest.raises(DeviceError) as caught:
        choose_image(monkeypatch, write_files(tmp_path, files), nvml)
    assert (caught.value.given, caught.value.possible, caught.value.action) == (description, possible, action)
    assert caught.value.exit_code == 9


def test_none_and_a_gpu_are_a_contradiction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SpecError, check=saying("device-gpu-none", "limits.gpus")):
        choose_image(monkeypatch, tmp_path, Nvml([RTX]), "{gpus: none}")
