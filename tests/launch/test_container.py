"""`launch --device gpu` on the host: the image, the toolkit, the share of the host; and every reason against it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from runtime.cli import main
from runtime.errors import Busy, DeviceError, DrivetrainError, SpecError
from runtime.hardware import detect
from runtime.hardware.facts import Hardware
from runtime.job import Job
from runtime.job_spec import load as job_spec
from runtime.job_spec.yaml_file import parse
from runtime.launch import container, container_limits, docker_engine, follow_container, nvidia_toolkit, project
from tests.hardware.test_nvidia import A100, GIB, GTX, LOADED, PCI, RTX, T4, Card, Nvml
from tests.paths import ROOT
from tests.recorded import write

TEXT = "name: a\ntask: image-classification\ndata: {train: x}\n"
HOST = {"NCPU": 16, "MemTotal": 64 * GIB, "Runtimes": {"runc": {}, "nvidia": {}}}


def job(limits: str = "{}") -> Job:
    return job_spec.check(parse(f"{TEXT}limits: {limits}\n", "job.yaml"))


def word(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    nvml: Nvml | None,
    limits: str = "{}",
    environ: Mapping[str, str] | None = None,
) -> str:
    """The image that a host with this NVML gets."""
    here = detect.detect(root, root, environ=environ or {}, mask={0}, nvml=nvml)
    monkeypatch.setattr(container, "detect", lambda runs: here)
    return container._word(container.LaunchRequest(Path("job.yaml"), device="gpu"), job(limits))


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
        (Nvml([T4], "580.95.05"), "{}", "legacy", "the image for chips below 8.0"),
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
    assert word(monkeypatch, tmp_path, nvml, limits) == expected
    assert said in capsys.readouterr().out


NOWHERE = ("a GPU that nvidia-smi lists, with driver 525 or newer", "fix that, or train on the CPU: `make train-cpu`")
IMAGES = (
    "the image ampere: capability 7.5 and newer with driver 580 or newer; "
    "the image legacy: capability 5.0 to 9.0 with driver 525 or newer"
)
NEWER = "install a newer NVIDIA driver on the host; `make train-cpu` trains on the CPU"


@pytest.mark.parametrize(
    ("files", "nvml", "given", "possible", "action"),
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
    given: str,
    possible: str,
    action: str,
) -> None:
    with pytest.raises(DeviceError) as caught:
        word(monkeypatch, write(tmp_path, files), nvml)
    assert (caught.value.given, caught.value.possible, caught.value.action) == (given, possible, action)
    assert caught.value.exit_code == 9


def test_none_and_a_gpu_are_a_contradiction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--device gpu, and limits\.gpus is none"):
        word(monkeypatch, tmp_path, Nvml([RTX]), "{gpus: none}")


CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker, then sudo systemctl restart docker"
CDI = {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}


@pytest.mark.parametrize(
    ("info", "programs", "expected"),
    [
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, (), nvidia_toolkit.Toolkit("nvidia", "all")),
        ({"Runtimes": {"runc": {}}}, ("nvidia-container-runtime-hook",), nvidia_toolkit.Toolkit("nvidia", "all")),
        (CDI, ("nvidia-ctk",), nvidia_toolkit.Toolkit("cdi", "nvidia.com/gpu=all")),
        (
            {"Runtimes": None, "DiscoveredDevices": None},
            ("nvidia-ctk",),
            "the NVIDIA container toolkit is installed, but the engine is not configured for it",
        ),
        ({"DiscoveredDevices": [{"ID": "example.com/net=0"}]}, (), "the NVIDIA container toolkit is missing"),
    ],
)
def test_the_container_toolkit(
    info: dict[str, Any], programs: tuple[str, ...], expected: nvidia_toolkit.Toolkit | str
) -> None:
    def which(name: str) -> str | None:
        return f"/usr/bin/{name}" if name in programs else None

    if isinstance(expected, nvidia_toolkit.Toolkit):
        assert nvidia_toolkit.find(info, which) == expected
        return
    with pytest.raises(DeviceError) as caught:
        nvidia_toolkit.find(info, which)
    assert caught.value.given == f"the Docker engine cannot give a container a GPU: {expected}"
    assert caught.value.action.endswith(CONFIGURE)
    assert caught.value.exit_code == 9


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (
            'Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]',
            "the Docker engine was started before the NVIDIA container toolkit was installed",
        ),
        (
            "nvidia-container-cli: initialization error: nvml error: driver not loaded",
            "the NVIDIA container toolkit could not provide the GPU:\nnvidia-container-cli: initialization error: nvml error",
        ),
    ],
)
def test_the_engines_messages_are_explained(words: str, given: str) -> None:
    found = nvidia_toolkit.refused(words)
    assert found is not None
    assert found.given.startswith(given)


def test_other_messages_are_left_to_the_engine() -> None:
    assert nvidia_toolkit.refused("no space left on device") is None


@pytest.mark.parametrize(
    ("limits", "gpu", "expected"),
    [
        ("{}", False, {"DRIVETRAIN_CPUS": "2"}),
        ("{cpus: 64}", False, {"DRIVETRAIN_CPUS": "16"}),
        (
            "{memory: 512m, shm: 1g}",
            False,
            {
                "DRIVETRAIN_CPUS": "2",
                "DRIVETRAIN_MEMORY": "512m",
                "DRIVETRAIN_RESERVATION": str(512 << 20),
                "DRIVETRAIN_SHM": "1g",
            },
        ),
        (
            "{}",
            True,
            {"DRIVETRAIN_GPU_CPUS": "15", "DRIVETRAIN_GPU_MEMORY": f"{62 * 1024}m", "DRIVETRAIN_RESERVATION": str(GIB)},
        ),
        (
            "{cpus: 4, memory: 8g}",
            True,
            {"DRIVETRAIN_GPU_CPUS": "4", "DRIVETRAIN_GPU_MEMORY": "8g", "DRIVETRAIN_RESERVATION": str(GIB)},
        ),
    ],
)
def test_the_share_of_the_host(limits: str, gpu: bool, expected: dict[str, str]) -> None:
    assert container_limits.variables(HOST, job(limits), gpu=gpu) == expected


def test_a_small_host_keeps_half_of_its_memory_and_its_only_cpu_is_shared() -> None:
    assert container_limits.variables({"NCPU": 1, "MemTotal": 3 * GIB}, job(), gpu=True) == {
        "DRIVETRAIN_GPU_CPUS": "1",
        "DRIVETRAIN_GPU_MEMORY": "1536m",
        "DRIVETRAIN_RESERVATION": str(GIB),
    }


def test_a_missing_toolkit_ends_the_launch_with_9(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Engine:
        def info(self) -> dict[str, Any]:
            return {**HOST, "Runtimes": {"runc": {}}}

    here = detect.detect(tmp_path, tmp_path, environ={}, mask={0}, nvml=Nvml([RTX], "580.95.05"))
    monkeypatch.setattr(container, "detect", lambda runs: here)
    monkeypatch.setattr(docker_engine, "connect", Engine)
    monkeypatch.setattr(nvidia_toolkit.find, "__defaults__", (lambda name: None,))
    with pytest.raises(DrivetrainError, match="the NVIDIA container toolkit is missing") as caught:
        container.launch(container.LaunchRequest(ROOT / "jobs/digits.yaml", device="gpu"))
    assert caught.value.exit_code == 9


@pytest.mark.parametrize(
    ("device", "limits", "here", "added"),
    [
        ("cpu", "{}", True, ["--set", "limits.gpus=none"]),
        ("cpu", "{}", False, []),
        ("cpu", "{gpus: [0]}", True, []),
        ("gpu", "{}", True, []),
    ],
)
def test_native_training_on_the_cpu_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, limits: str, here: bool, added: list[str]
) -> None:
    started: list[list[str]] = []
    machine: Hardware = detect.detect(tmp_path, tmp_path, environ={}, mask={0}, nvml=Nvml([RTX]) if here else None)
    monkeypatch.setattr(container, "detect", lambda runs: machine)
    monkeypatch.setattr(container.os, "execve", lambda program, command, environment: started.append(command))
    container._native(
        container.LaunchRequest(Path("job.yaml"), device=device), job(limits), "cpu" if device == "cpu" else "ampere"
    )
    assert started[0][1:] == ["-m", "runtime", "train", "job.yaml", *added]


def test_options_of_train_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[container.LaunchRequest] = []
    monkeypatch.setattr(container, "launch", lambda request: asked.append(request) or 0)
    assert main.main(["launch", "job.yaml", "--trace", "--plain", "--set", "train.epochs=2"]) == 0
    words = container._override(asked[0], job())["services"]["trainer"]["command"]
    assert words[2:] == ["--set", "train.epochs=2", "--plain", "--trace"]


@pytest.mark.parametrize("word", ["cpu", "ampere", "legacy"])
def test_an_overlay_holds_only_the_difference(word: str) -> None:
    if shutil.which("docker") is None:
        pytest.skip("no docker client is installed: `make engine`")
    gpu = {
        "DRIVETRAIN_GPU_CPUS": "15",
        "DRIVETRAIN_GPU_MEMORY": "8g",
        "DRIVETRAIN_TAG": "mine",
        "HOME": "/tmp",
        "PATH": "/usr/bin:/bin:/usr/local/bin",
    }
    files = ["--file", "compose/base.yaml", "--file", f"compose/{word}.yaml"]
    done = subprocess.run(
        [
            "docker",
            "compose",
            "--env-file",
            "/dev/null",
            "--project-directory",
            ".",
            *files,
            "config",
            "--format",
            "json",
        ],
        cwd=ROOT,
        env=gpu,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    trainer, resources = services["trainer"], services["trainer"]["deploy"]["resources"]
    assert {service["image"] for service in services.values()} == {f"localhost/drivetrain/{word}:mine"}
    assert (trainer["cap_drop"], trainer["read_only"], trainer["init"]) == (["ALL"], True, True)
    devices = resources["reservations"].get("devices", [])
    if word == "cpu":
        assert devices == []
        return
    assert devices == [{"capabilities": ["gpu"], "driver": "nvidia", "device_ids": ["all"]}]
    assert (resources["limits"]["cpus"], resources["limits"]["memory"]) == (15, str(8 * GIB))
    assert resources["limits"]["pids"] >= 1024
    assert trainer["memswap_limit"] == str(8 * GIB)
    assert "deploy" not in services["prepare"]


def test_no_gpu_by_default() -> None:
    text = (ROOT / "compose.yaml").read_text() + (ROOT / "compose/base.yaml").read_text()
    assert not [word for word in ("ampere", "legacy", "nvidia", "devices") if word in text]


def test_no_network_is_made(tmp_path: Path) -> None:
    """An engine has room for about thirty; a job has none, or the engine's own."""
    if shutil.which("docker") is None:
        pytest.skip("no docker client is installed: `make engine`")
    for given, expected in ((None, "none"), ("bridge", "bridge")):
        services, networks = configured({"DRIVETRAIN_NETWORK": given} if given else {})
        assert services["trainer"]["network_mode"] == expected
        assert networks == {}


def configured(environment: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What compose makes of the files of the CPU's image for the trainer."""
    files = ["--file", "compose/base.yaml", "--file", "compose/cpu.yaml"]
    done = subprocess.run(
        [
            "docker",
            "compose",
            "-p",
            "a",
            "--env-file",
            "/dev/null",
            "--project-directory",
            ".",
            *files,
            "config",
            "--format",
            "json",
        ],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/tmp", "DRIVETRAIN_TAG": "mine", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    return found["services"], {name: value for name, value in found.get("networks", {}).items() if value}


@pytest.mark.parametrize("word", ["cpu", "ampere", "legacy"])
def test_no_registry_is_asked_for_our_images(word: str) -> None:
    """`drivetrain/cpu` belongs to whoever registers that name; `localhost/` is this machine, and nothing is pulled."""
    text = (ROOT / "compose" / f"{word}.yaml").read_text()
    assert f'image: "localhost/drivetrain/{word}:' in text
    assert project.image(word).startswith("localhost/")
    assert "pull_policy: never" in text
    if not (ROOT / ".git").exists():
        return
    tracked = subprocess.run(
        ["git", "grep", "-nE", r"(^|[^a-z./-])drivetrain/(cpu|ampere|legacy|base|\$|\{)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    allowed = (
        "docker/sbom.py",
        "scripts/env",
        "tests/launch/test_container.py",
    )  # no image, what was once, and this line
    assert [line for line in tracked if not line.startswith(allowed)] == []


def test_containers_are_named_by_user_and_checkout(tmp_path: Path) -> None:
    """Two users in folders of the same name, and two checkouts of one user, took each other's containers."""
    names = {project.name(tmp_path / folder, uid) for folder in ("a", "b") for uid in (1000, 1001)}
    assert len(names) == 4
    assert all(re.fullmatch(r"drivetrain-[0-9a-f]{8}", name) for name in names)
    done = subprocess.run([ROOT / "scripts" / "project-name"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == project.name()


def test_images_are_tagged_by_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All checkouts shared `latest`: each trained with the code of the image that was built last."""
    monkeypatch.delenv(project.TAG, raising=False)
    assert project.tag(tmp_path / "a") != project.tag(tmp_path / "b")
    line = [ROOT / "scripts" / "image-name", "ampere"]
    for given in ("", "mine"):
        monkeypatch.setenv(project.TAG, given)
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == project.image("ampere")
    assert project.image("cpu") == "localhost/drivetrain/cpu:mine"


def test_a_job_in_training_is_no_storage_error() -> None:
    running = SimpleNamespace(status="running", name="drivetrain-1-a-trainer-1")
    client = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: [running]))
    with pytest.raises(Busy, match="drivetrain-1-a-trainer-1 is already training this job") as caught:
        container._refuse_if_running(client, "drivetrain-1-a")
    assert caught.value.exit_code == 11


@pytest.mark.parametrize(
    ("words", "why", "cure"),
    [
        (
            "Error while fetching server API version: ('Connection aborted.', PermissionError(13, 'Permission denied'))",
            "one is running, but this user has no permission to use it",
            "sudo usermod -aG docker $USER, then log in again",
        ),
        (
            "('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))",
            "none is running",
            "`make engine`",
        ),
        (
            "('Connection aborted.', ConnectionRefusedError(111, 'Connection refused'))",
            "none is listening",
            "`make engine`",
        ),
    ],
)
def test_why_no_engine_can_be_used(words: str, why: str, cure: str) -> None:
    assert docker_engine.absent(words) == docker_engine.EngineMissing(why, cure)


def test_without_permission_the_advice_is_the_docker_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        docker_engine, "connect", lambda: docker_engine.absent("PermissionError(13, 'Permission denied')")
    )
    monkeypatch.setattr(container, "_native", lambda *_: 0)
    assert main.main(["launch", str(ROOT / "jobs" / "digits.yaml")]) == 0
    told = capsys.readouterr().out
    assert (
        "no Docker engine (one is running, but this user has no permission to use it); training without a container"
        in told
    )
    assert "sudo usermod -aG docker $USER" in told
    assert "make engine" not in told


class Ended:
    """A container that has ended, as the engine's client shows it."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.attrs = {"State": {"OOMKilled": False}, "HostConfig": {"Memory": GIB}}

    def logs(self, **_: object) -> list[bytes]:
        return [b"epoch 1\n"]

    def wait(self) -> dict[str, int]:
        return {"StatusCode": self.code}

    def reload(self) -> None:
        pass

    def kill(self, signal: str) -> None:
        raise AssertionError(signal)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_is_forwarded_under_its_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Ctrl-C was told as SIGTERM; a container that has just ended is no error."""
    import docker

    handlers: dict[int, Any] = {}
    sent: list[str] = []
    ended = Ended(0)
    monkeypatch.setattr(follow_container.signal, "signal", handlers.__setitem__)
    follow_container.follow(ended)

    def kill(signal: str) -> None:
        sent.append(signal)
        raise docker.errors.APIError("it is not running")

    monkeypatch.setattr(ended, "kill", kill)
    handlers[getattr(signal, name)](getattr(signal, name), None)
    assert sent == [name]


def test_root_is_informed_once_about_the_owner_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(container_limits.os, "getuid", lambda: 0)
    project: Any = SimpleNamespace(stat=lambda: SimpleNamespace(st_uid=0, st_gid=0))
    monkeypatch.setattr(container_limits, "_has_runs_of", lambda uid, project: False)
    container_limits.owner(project, tell=True)
    assert "started by root" in capsys.readouterr().out
    container_limits.owner(project)
    assert capsys.readouterr().out == ""
    monkeypatch.undo()
    assert not container_limits._has_runs_of(os.getuid(), tmp_path)
    (tmp_path / "runs" / "a-001").mkdir(parents=True)
    assert container_limits._has_runs_of(os.getuid(), tmp_path)
