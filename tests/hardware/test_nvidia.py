"""GPUs through a stand-in for NVML: several, hidden, MIG, broken, and every reason for having none."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from drivetrain.hardware.nvidia import read_gpus
from tests.file_trees import write_files
from tests.messages import says_only
from tests.nvml_double import A100, GIB, GTX, LOADED, PCI, RTX, T4, Card, Nvml

SOUND = {"sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.1/class": "0x040300\n"}


def names(root: Path, nvml: Nvml, **environ: str) -> list[str]:
    gpus, _ = read_gpus(root, environ, "host", nvml)
    return [gpu.name for gpu in gpus]


def read_gpu_problem(root: Path, nvml: Nvml | None, runtime: str = "host", **environ: str) -> str | None:
    gpus, text = read_gpus(root, environ, runtime, nvml)
    assert gpus == ()
    return text


def test_a_gpu_has_the_values_of_nvml(tmp_path: Path) -> None:
    nvml = Nvml([T4], "535.183.01")
    gpus, text = read_gpus(tmp_path, {}, "host", nvml)
    assert text is None
    assert nvml.open == 0
    (gpu,) = gpus
    assert (gpu.index, gpu.name, gpu.capability, gpu.driver) == (0, "Tesla T4", (7, 5), "535.183.01")
    assert (gpu.memory, gpu.free, gpu.mig) == (15 * GIB, 14 * GIB, False)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["NVIDIA GeForce RTX 3060", "NVIDIA GeForce GTX 1080", "Tesla T4"]),
        ("2,0", ["Tesla T4", "NVIDIA GeForce RTX 3060"]),
        ("GPU-bbbb", ["NVIDIA GeForce GTX 1080"]),
        ("1,7,0", ["NVIDIA GeForce GTX 1080"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices(tmp_path: Path, visible: str | None, expected: list[str]) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert names(tmp_path, Nvml([RTX, GTX, T4]), **environ) == expected


def test_an_index_stays_that_of_nvml(tmp_path: Path) -> None:
    gpus, _ = read_gpus(tmp_path, {"CUDA_VISIBLE_DEVICES": "2,0"}, "host", Nvml([RTX, GTX, T4]))
    assert [gpu.index for gpu in gpus] == [2, 0]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, "MIG 3g.20gb"), ("0", "MIG 3g.20gb"), ("MIG-2222", "MIG 1g.5gb"), ("GPU-aaaa1111", "RTX 3060")],
)
def test_cuda_shows_one_mig_instance_and_no_whole_gpu(tmp_path: Path, visible: str | None, expected: str) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    gpus, text = read_gpus(tmp_path, environ, "host", Nvml([RTX, A100]))
    assert text is None
    (gpu,) = gpus
    assert gpu.name.endswith(expected)
    assert gpu.mig == ("MIG" in expected)


@pytest.mark.parametrize(
    ("nvml", "environ", "expected"),
    [
        (Nvml([RTX]), {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES= hides every GPU: unset it"),
        (
            Nvml([Card("x", "GPU-1", mig=True)]),
            {},
            "GPU 0 is in MIG mode without an instance: create one with nvidia-smi mig",
        ),
        (Nvml([Card("x", "GPU-1", error=pynvml.NVML_ERROR_GPU_IS_LOST)]), {}, "GPU 0 cannot be used: GPU is lost"),
        (Nvml([]), {}, "the NVIDIA driver is loaded, but lists no GPU: look at dmesg"),
    ],
)
def test_a_driver_without_a_usable_gpu(tmp_path: Path, nvml: Nvml, environ: dict[str, str], expected: str) -> None:
    assert read_gpu_problem(tmp_path, nvml, **environ) == expected
    assert nvml.open == 0


def test_one_lost_gpu_is_reported_and_the_other_used(tmp_path: Path) -> None:
    lost_gpu = Card("x", "GPU-1", error=pynvml.NVML_ERROR_GPU_IS_LOST)
    gpus, text = read_gpus(tmp_path, {}, "host", Nvml([lost_gpu, RTX]))
    assert [gpu.name for gpu in gpus] == ["NVIDIA GeForce RTX 3060"]
    assert says_only(text, "gpu-used-gpu-lost", 0)


def test_a_driver_too_old_to_answer(tmp_path: Path) -> None:
    class Old(Nvml):
        def nvmlSystemGetDriverVersion(self) -> str:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    nvml = Old([RTX])
    assert says_only(read_gpu_problem(tmp_path, nvml), "nvidia-driver-answers-error")
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("files", "runtime", "code", "expected"),
    [
        ({}, "host", pynvml.NVML_ERROR_DRIVER_NOT_LOADED, None),
        (
            PCI,
            "host",
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
            "the NVIDIA GPU (PCI 0000:01:00.0) cannot be used: Driver Not Loaded: nvidia-smi must list it",
        ),
        (
            LOADED,
            "host",
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            "the NVIDIA driver cannot be used: RM has detected an NVML/RM version mismatch.: nvidia-smi must list it",
        ),
        (
            PCI,
            "docker",
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
            "the NVIDIA GPU (PCI 0000:01:00.0) cannot be used: Driver Not Loaded: "
            "start the container with GPUs (`limits.gpus`)",
        ),
    ],
)
def test_a_library_without_a_driver(
    tmp_path: Path, files: dict[str, str], runtime: str, code: int, expected: str | None
) -> None:
    assert read_gpu_problem(write_files(tmp_path, files), Nvml([RTX], broken=code), runtime) == expected


@pytest.mark.parametrize(
    ("files", "runtime", "expected"),
    [
        ({}, "host", None),
        (SOUND, "host", None),
        (
            PCI,
            "host",
            "the machine has an NVIDIA GPU (PCI 0000:01:00.0), but no NVIDIA driver is loaded: "
            "install one (nvidia-smi must list the GPU)",
        ),
        (
            PCI | LOADED,
            "host",
            "the machine has an NVIDIA GPU (PCI 0000:01:00.0), but libnvidia-ml.so.1 is not "
            "installed: install the driver's user-space part",
        ),
        (
            PCI,
            "docker",
            "the machine has an NVIDIA GPU (PCI 0000:01:00.0), but this container was started without "
            "it: ask for GPUs (`limits.gpus`)",
        ),
        (
            LOADED,
            "kubernetes",
            "the machine has an NVIDIA driver, but this container was started without it: ask for GPUs (`limits.gpus`)",
        ),
    ],
)
def test_no_driver_library(tmp_path: Path, files: dict[str, str], runtime: str, expected: str | None) -> None:
    assert read_gpu_problem(write_files(tmp_path, files), None, runtime) == expected


@pytest.mark.parametrize(
    ("environ", "cause"),
    [({"NVIDIA_VISIBLE_DEVICES": "void"}, "NVIDIA_VISIBLE_DEVICES=void"), ({}, "NVIDIA_VISIBLE_DEVICES is not set")],
)
def test_a_container_with_the_library_but_no_gpu(tmp_path: Path, environ: dict[str, str], cause: str) -> None:
    expected = f"the driver's library is in this container, but no GPU ({cause}): start it with `gpus: all`"
    assert read_gpu_problem(tmp_path, Nvml([]), "docker", **environ) == expected


@pytest.mark.parametrize("library_path", ["usr/lib64/libnvidia-ml.so.1", "etc/ld.so.cache"])
def test_an_installed_library_loads_the_real_nvml(tmp_path: Path, library_path: str) -> None:
    root = write_files(
        tmp_path, PCI | {library_path: "ld.so-1.7.0\x00libnvidia-ml.so.1\x00/opt/driver/libnvidia-ml.so.1\x00"}
    )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        expected = f"the NVIDIA GPU (PCI 0000:01:00.0) cannot be used: {error}: nvidia-smi must list it"
        assert read_gpu_problem(root, None) == expected
    else:
        pynvml.nvmlShutdown()
        gpus, text = read_gpus(root, {}, "host")
        assert gpus or text
