"""Which GPUs are used, and every way in which a GPU cannot be: the words, and exit code 9."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from drivetrain.errors import DeviceError
from drivetrain.hardware import device_check, facts, gpu_selection, image_selection
from drivetrain.hardware.facts import Gpu, Torch
from drivetrain.hardware.software import read_architectures
from drivetrain.inference import thread_limits
from drivetrain.job_spec import load_job as job_spec
from drivetrain.job_spec.yaml_file import parse
from drivetrain.plan import plan
from drivetrain.system import console
from tests.hardware.checked_machines import AMPERE, CPU, machine, machine_with_gpus, make_card
from tests.messages import begins_with, ends_with, get_message, saying, says, says_each, says_only
from tests.paths import ROOT

LEGACY = Torch(
    version="2.7.1+cu126", cuda="12.6", architectures=("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
)


GTX = make_card(1, "GTX 1080", (6, 1), 8)


@pytest.mark.parametrize(
    ("gpu_request", "cards", "expected", "note"),
    [
        ("auto", [make_card(0)], [0], None),
        (
            "auto",
            [make_card(0), make_card(1)],
            [0],
            "2 GPUs: GPU 0 (RTX 3060) is used, GPU 1 (RTX 3060) is not; "
            "`limits: {gpus: all}` uses every GPU of one model",
        ),
        (
            "auto",
            [replace(GTX, index=0), make_card(1)],
            [1],
            "2 GPUs of 2 kinds: GPU 1 (RTX 3060) is used, "
            "GPU 0 (GTX 1080) is not; `limits: {gpus: all}` uses every GPU of one model",
        ),
        (
            "auto",
            [make_card(0, free=100 << 20), make_card(1, memory=8)],
            [1],
            "2 GPUs: GPU 1 (RTX 3060) is used, "
            "GPU 0 (RTX 3060) is not; `limits: {gpus: all}` uses every GPU of one model",
        ),
        (
            "auto",
            [make_card(0, free=3 << 30), make_card(1), make_card(2)],
            [1],
            "3 GPUs: GPU 1 (RTX 3060) is used, GPU 0, 2 (RTX 3060) are not; "
            "`limits: {gpus: all}` uses every GPU of one model",
        ),
        (
            "auto",
            [make_card(0, free=2 << 30), make_card(1, free=6 << 30), make_card(2, free=4 << 30)],
            [1],
            "3 GPUs: GPU 1 (RTX 3060) is used, GPU 0, 2 (RTX 3060) are not; "
            "`limits: {gpus: all}` uses every GPU of one model",
        ),
        ("all", [make_card(0), make_card(1)], [0, 1], None),
        (
            "all",
            [make_card(0), GTX, make_card(2)],
            [0, 2],
            "3 GPUs of 2 kinds: GPU 0, 2 (RTX 3060) are used, GPU 1 (GTX 1080) is not; one run uses GPUs of one model",
        ),
        ("all", [], [], "limits.gpus: all requested, but this machine has no GPU"),
        ("auto", [], [], None),
        ("none", [make_card(0), GTX], [], "limits.gpus: none, so GPU 0 (RTX 3060) and 1 (GTX 1080) is not used"),
        ("none", [], [], None),
        ([1], [make_card(0), GTX], [1], None),
        ([2, 0], [make_card(0), GTX, make_card(2)], [2, 0], None),
        (
            [0, 1],
            [make_card(0), GTX],
            [1, 0],
            "different GPU models, as set in the job: settings are chosen for the weakest, GPU 1 (GTX 1080)",
        ),
    ],
)
def test_limits_gpus(
    gpu_request: gpu_selection.GpuRequest, cards: list[Gpu], expected: list[int], note: str | None
) -> None:
    usable_hardware = gpu_selection.select_gpus(machine_with_gpus(*cards), gpu_request)
    assert [gpu.index for gpu in usable_hardware.gpus] == expected
    assert usable_hardware.gpu_note == note


def test_the_plan_says_which_are_used() -> None:
    job = job_spec.check(parse("name: a\ntask: image-classification\ndata: {train: x}\n", "job.yaml"))
    job_plan = plan.resolve(
        job, gpu_selection.select_gpus(machine_with_gpus(replace(GTX, index=0), make_card(1)), "auto")
    )
    assert [note for note in job_plan.notes if note.startswith("gpu: 2 GPUs of 2 kinds: GPU 1 (RTX 3060) is used")]
    assert job_plan.value("precision") == "bf16"


@pytest.mark.parametrize(
    ("cards", "gpu_problem", "possible"),
    [
        ((make_card(0), GTX), None, "0 (RTX 3060), 1 (GTX 1080)"),
        ((), "GPU 0 cannot be used: lost", "GPU 0 cannot be used: lost"),
        ((), None, "none"),
    ],
)
def test_a_gpu_number_that_does_not_exist(cards: tuple[Gpu, ...], gpu_problem: str | None, possible: str) -> None:
    with pytest.raises(DeviceError) as caught:
        gpu_selection.select_gpus(machine_with_gpus(*cards, gpu_trouble=gpu_problem), [0, 7] if cards else [7])
    assert says_each(
        caught.value.lines(),
        [
            get_message("gpu-exist-machine", "limits.gpus", 7),
            f"  possible: usable GPUs: {possible}",
            get_message("choose-numbers-write-gpus"),
        ],
    )


def test_cuda_orders_gpus_as_nvml_does() -> None:
    usable_hardware = gpu_selection.select_gpus(machine_with_gpus(make_card(0), GTX, make_card(2)), [2, 0])
    common_variables = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert gpu_selection.build_environment(usable_hardware) == common_variables | {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "2,0",
    }
    assert (
        gpu_selection.build_environment(machine_with_gpus(make_card(0, "A100 MIG 1g.5gb", mig=True)))
        == common_variables
    )
    assert gpu_selection.build_environment(machine_with_gpus()) == {}


def test_the_cpu_image_leaves_a_gpu_alone_and_says_so() -> None:
    usable_hardware = device_check.select_devices(machine_with_gpus(make_card(0), image="cpu"), "auto")
    assert usable_hardware.gpus == ()
    assert says_only(usable_hardware.gpu_note, "cpu-image-gpu-rtx", 0, 3060)


@pytest.mark.parametrize(
    ("capability", "architectures", "expected"),
    [
        ((5, 2), LEGACY.architectures, True),
        ((6, 1), LEGACY.architectures, True),
        ((7, 5), LEGACY.architectures, True),
        ((8, 9), LEGACY.architectures, True),
        ((9, 0), LEGACY.architectures, True),
        ((12, 0), LEGACY.architectures, False),
        ((3, 7), LEGACY.architectures, False),
        ((6, 1), AMPERE.architectures, False),
        ((7, 0), AMPERE.architectures, False),
        ((7, 5), AMPERE.architectures, True),
        ((8, 9), AMPERE.architectures, True),
        ((10, 3), AMPERE.architectures, True),
        ((12, 1), AMPERE.architectures, True),
        ((11, 0), AMPERE.architectures, False),
        ((8, 0), ("sm_86",), False),
        ((9, 0), ("sm_90a",), True),
        ((9, 1), ("sm_90a",), False),
        ((10, 3), ("sm_100f",), True),
        ((11, 0), ("sm_100f",), False),
        ((12, 0), ("sm_90", "compute_90"), True),
        ((8, 0), ("compute_90",), False),
        ((9, 0), (), False),
    ],
)
def test_machine_code_runs_on_later_chips_of_its_major_version(
    capability: tuple[int, int], architectures: tuple[str, ...], expected: bool
) -> None:
    assert device_check.has_code_for(capability, architectures) is expected


# Machine, torch, image word; what was given, what is possible, what to do.
REFUSED = [
    (
        "gtx1080",
        replace(AMPERE, cuda="12.8"),
        "ampere",
        "NVIDIA GeForce GTX 1080 (capability 6.1, driver 550.163.01): torch 2.13.0+cu130 (CUDA 12.8) has no code for this "
        "GPU, only for 7.5, 8.0, 8.6, 9.0, 10.0, 12.0",
        "the image legacy, with torch 2.7.1 and CUDA 12.6",
        "`make train-gpu` picks it; `limits: {gpus: none}` trains on the CPU",
    ),
    (
        "gtx1080",
        replace(AMPERE, cuda="12.8"),
        None,
        "NVIDIA GeForce GTX 1080 (capability 6.1, driver 550.163.01): torch 2.13.0+cu130 (CUDA 12.8) has no code for this "
        "GPU, only for 7.5, 8.0, 8.6, 9.0, 10.0, 12.0",
        "torch 2.7.1 with CUDA 12.6: capability 5.0 to 9.0 with driver 525 or newer",
        "pip install torch==2.7.1; `limits: {gpus: none}` trains on the CPU",
    ),
    (
        "rtx5090",
        LEGACY,
        "legacy",
        "NVIDIA GeForce RTX 5090 (capability 12.0, driver 580.95.05): torch 2.7.1+cu126 (CUDA 12.6) has no code for this "
        "GPU, only for 5.0, 6.0, 7.0, 7.5, 8.0, 8.6, 9.0",
        "the image ampere, with torch 2.13.0 and CUDA 13.0",
        "`make train-gpu` picks it; `limits: {gpus: none}` trains on the CPU",
    ),
    (
        "rtx3060-driver550",
        AMPERE,
        None,
        "NVIDIA GeForce RTX 3060 (capability 8.6, driver 550.163.01): the driver is too old for torch 2.13.0+cu130 "
        "(CUDA 13.0), which needs 580 or newer",
        "torch 2.7.1 with CUDA 12.6: capability 5.0 to 9.0 with driver 525 or newer",
        "pip install torch==2.7.1; `limits: {gpus: none}` trains on the CPU",
    ),
    (
        "t4",
        CPU,
        None,
        "found Tesla T4 (capability 7.5, driver 550.54.15), but torch 2.13.0+cpu (CPU build) has no code for any GPU",
        "torch 2.7.1 with CUDA 12.6: capability 5.0 to 9.0 with driver 525 or newer",
        "pip install torch==2.7.1; `limits: {gpus: none}` trains on the CPU",
    ),
]


@pytest.mark.parametrize(("name", "torch", "word", "description", "possible", "action"), REFUSED)
def test_a_torch_without_code_for_the_chip(
    name: str, torch: Torch, word: str | None, description: str, possible: str, action: str
) -> None:
    with pytest.raises(DeviceError) as caught:
        device_check.select_devices(machine(name, torch, word), "auto")
    assert (caught.value.given, caught.value.possible, caught.value.action) == (description, possible, action)
    assert caught.value.exit_code == 9
    assert device_check.select_devices(machine(name, torch, word), "none").gpus == ()


def test_a_driver_that_nothing_runs_on_names_the_driver() -> None:
    old = replace(machine("t4", LEGACY), gpus=(make_card(0, "Tesla T4", (7, 5), 15, driver="470.1"),))
    with pytest.raises(DeviceError, match="which needs 525 or newer") as caught:
        device_check.select_devices(old, "auto")
    assert says_only(caught.value.action, "install-newer-driver-helps")


@pytest.mark.parametrize("path", sorted(ROOT.glob("tests/machines/*.json")), ids=lambda path: str(path.stem))
def test_the_torch_of_the_chosen_image_is_admitted(path: Path) -> None:
    host = facts.read_hardware(path)
    word = image_selection.choose_image(host).word
    torch = {"cpu": CPU, "ampere": AMPERE, "legacy": LEGACY}[str(word)]
    expected = host.gpus[1:] if path.stem == "two-rtx5090-one-full" else host.gpus
    assert device_check.select_devices(replace(host, torch=torch, image=word), "auto").gpus == expected


@pytest.mark.parametrize(
    ("gpu_problem", "cause"),
    [
        (None, ""),
        (
            "the driver's library is in this container, but no GPU",
            ": the driver's library is in this container, but no GPU",
        ),
    ],
)
def test_a_gpu_image_without_a_gpu(gpu_problem: str | None, cause: str) -> None:
    host = replace(machine_with_gpus(gpu_trouble=gpu_problem, image="legacy"), torch=LEGACY)
    for gpu_request in ("auto", "all"):
        with pytest.raises(DeviceError) as caught:
            device_check.select_devices(host, gpu_request)
        assert says_only(caught.value.given, "image-legacy-needs-gpu", cause)
        assert "`docker run --gpus all`" in caught.value.possible
        assert "compose/legacy.yaml" in caught.value.possible
        assert caught.value.exit_code == 9
    assert device_check.select_devices(host, "none").gpus == ()


def test_no_torch_at_all() -> None:
    with pytest.raises(DeviceError, check=saying("torch-is-not-installed")):
        device_check.select_devices(machine("t4"), "auto")


def test_a_full_gpu() -> None:
    full = make_card(0, free=100 << 20)
    for refuse in (
        lambda: device_check.select_devices(machine_with_gpus(full), "auto"),
        lambda: device_check.choose_launch_image(machine_with_gpus(full)),
    ):
        with pytest.raises(DeviceError) as caught:
            refuse()
        assert caught.value.given == "GPU 0 (RTX 3060) has 100 MiB of 12.0 GiB free"
        assert says(caught.value.action, "nvidia-smi-lists-processes")


def fake_cuda(monkeypatch: pytest.MonkeyPatch, torch: Torch, count: int) -> None:
    """Stands in for the loaded torch; the real one cannot be told to have another build."""
    cuda = SimpleNamespace(device_count=lambda: count, get_arch_list=lambda: list(torch.architectures))
    loaded = SimpleNamespace(__version__=torch.version, version=SimpleNamespace(cuda=torch.cuda), cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", loaded)


def test_the_trainer_asks_the_torch_that_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, replace(AMPERE, cuda="12.8"), 1)
    with pytest.raises(DeviceError, check=saying("has-no-code-for-this-gpu", "7.5")):
        device_check.check_build(machine("gtx1080", LEGACY))
    fake_cuda(monkeypatch, LEGACY, 0)
    with pytest.raises(DeviceError, check=saying("driver-lists-gpu-run", 1, 0)):
        device_check.check_build(machine("gtx1080", LEGACY))
    fake_cuda(monkeypatch, LEGACY, 1)
    device_check.check_build(machine("gtx1080", LEGACY))
    fake_cuda(monkeypatch, CPU, 0)
    device_check.check_build(machine("laptop", CPU))


def test_the_builds_are_those_of_the_images() -> None:
    for word, build in image_selection.BUILDS.items():
        lock = (ROOT / f"docker/requirements-{word}.txt").read_text()
        assert f"\ntorch=={build.torch} \\\n" in lock
        runtime = r"nvidia-cuda-runtime(?:-cu12)?==" + re.escape(build.cuda)
        assert re.search(runtime, lock)
    cudnn = re.search(r"nvidia-cudnn-cu12==(\d+)\.(\d+)", (ROOT / "docker/requirements-legacy.txt").read_text())
    assert cudnn
    assert (int(cudnn[1]), int(cudnn[2])) < (9, 11)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"xx\0sm_50 sm_60 sm_90\0yy", ("sm_50", "sm_60", "sm_90")),
        (b"sm_count is\0see sm_\0sm_75 sm_90a compute_90\0", ("sm_75", "sm_90a", "compute_90")),
        (b"nothing sm_75, of the kind\0", ()),
        (b"warn about sm_90\0sm_50 sm_60 sm_90\0sm_75\0", ("sm_50", "sm_60", "sm_90")),
        (b"", ()),
        (None, ()),
    ],
)
def test_architectures_are_read_without_loading_torch(
    tmp_path: Path, content: bytes | None, expected: tuple[str, ...]
) -> None:
    (tmp_path / "lib").mkdir()
    if content is not None:
        (tmp_path / "lib/libtorch_python.so").write_bytes(content)
    assert read_architectures(tmp_path) == expected


def test_commands_without_a_gpu_work_with_an_unusable_one() -> None:
    """As `predict` and `evaluate` do on a host with a GPU and a torch for CPUs."""
    messages = list[str]()
    host = machine("rtx3060-driver580", CPU)
    assert device_check.select_usable_hardware(host, messages.append).gpus == ()
    assert says_each(messages, [get_message("warning-found-nvidia-geforce", 3060, "8.6", "580.95.05", "2.13.0")])
    messages.clear()
    assert device_check.select_usable_hardware(machine("rtx3060-driver580", AMPERE), messages.append).gpu is not None
    assert messages == []


def test_commands_without_a_gpu_work_if_cuda_does_not_answer() -> None:
    said = list[str]()
    assert (
        device_check.select_usable_device(machine("rtx3060-driver580", AMPERE), said.append) == "cpu"
    )  # this torch is for CPUs
    assert begins_with(said[0], "warning-found-nvidia-geforce-rtx", 3060)
    assert device_check.select_usable_device(machine("vm-2core-cgroup1"), said.append) == "cpu"
    assert len(said) == 1


def test_gpus_are_named_so_that_every_order_agrees() -> None:
    cards = [replace(make_card(index), uuid=f"GPU-{index}a") for index in (2, 0)]
    assert gpu_selection.build_environment(machine_with_gpus(*cards))["CUDA_VISIBLE_DEVICES"] == "GPU-2a,GPU-0a"
    older = machine_with_gpus(cards[0], make_card(1))
    assert gpu_selection.build_environment(older)["CUDA_VISIBLE_DEVICES"] == "2,1"


def test_predict_and_evaluate_compute_on_the_cpu_where_torch_has_no_code_for_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(thread_limits, "detect", lambda runs: machine("rtx3060-driver580", CPU))
    monkeypatch.setattr(thread_limits, "os", SimpleNamespace(environ=dict[str, str]()))
    usable_hardware = thread_limits.limit_threads()
    assert usable_hardware.gpus == ()
    assert device_check.select_usable_device(usable_hardware, console.say_aside) == "cpu"
    assert ends_with(capsys.readouterr().err, "code-gpu-computing-cpu")
