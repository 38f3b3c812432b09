"""The CPU image under real limits: what a process in it sees, and whole runs through compose."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.docker.clone import count_cpus, project
from tests.docker.conftest import SLOWER, Run, inspect_container, read_engine_fact
from tests.messages import says
from tests.paths import ROOT

__all__ = ["project"]

STATUS = (
    "import json, os; s = dict(l.split(':', 1) for l in open('/proc/self/status')); "
    "root = [l.split() for l in open('/proc/mounts') if l.split()[1] == '/'][-1]; "
    "print(json.dumps({'uid': os.getuid(), 'caps': s['CapEff'].strip(), 'nnp': s['NoNewPrivs'].strip(), "
    "'root': root[3].split(',')[0], 'sock': os.path.exists('/var/run/docker.sock')}))"
)


def facts(container: Run, *options: str) -> dict[str, Any]:
    done = container("plan", "--json", options=options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.cgroup
def test_container_hardening(container: Run) -> None:
    for uid in ("1000:1000", "4321:4321"):
        done = container("-c", STATUS, options=("--user", uid), entrypoint="python")
        status = json.loads(done.stdout)
        assert status == {
            "uid": int(uid.split(":")[0]),
            "caps": "0000000000000000",
            "nnp": "1",
            "root": "ro",
            "sock": False,
        }


@pytest.mark.cgroup
@pytest.mark.parametrize(
    ("options", "budget", "quota"),
    [(("--cpus=1",), 1, 1.0), (("--cpus=0.5",), 1, 0.5), (("--cpuset-cpus=0",), 1, None)],
)
def test_cpu_limits_are_facts(container: Run, options: tuple[str, ...], budget: int, quota: float | None) -> None:
    if "--cpuset-cpus=0" in options and read_engine_fact("CPUSet") == "false":
        pytest.skip("the kernel of this engine has no cpusets")
    cpu = facts(container, *options)["cpu"]
    assert cpu["budget"] == budget
    assert cpu["quota"] == quota


@pytest.mark.cgroup
def test_memory_and_shm_limits_are_facts(container: Run) -> None:
    container_facts = facts(container, "--memory=512m", "--memory-swap=512m", "--shm-size=32m")
    assert container_facts["memory"]["limit"] == 512 << 20
    assert container_facts["memory"]["swap"] is False
    assert container_facts["storage"]["shm"] == 32 << 20
    assert (container_facts["place"], container_facts["image"]) == ("docker", "cpu")


@pytest.mark.cgroup
def test_without_limits_it_has_the_host_and_what_the_plan_needs(container: Run) -> None:
    container_facts = facts(container)
    assert container_facts["cpu"]["budget"] == int(read_engine_fact("NCPU"))
    assert container_facts["cpu"]["quota"] is None
    assert container_facts["libraries"]["iomp5"]
    assert container_facts["libraries"]["tcmalloc"]
    assert container_facts["compiler"]
    assert container_facts["torch"]["cuda"] is None
    assert container_facts["storage"]["cache_writable"]
    assert container_facts["storage"]["cache_exec"]


def test_a_noexec_cache_gives_the_reason(container: Run) -> None:
    options = ("--tmpfs", "/cache/compile:noexec,mode=1777", "-v", f"{ROOT}/jobs:/workspace/jobs:ro")
    done = container("plan", "jobs/digits.yaml", "--set", "optimize.compile=true", options=options)
    assert done.returncode == 2
    assert says(done.stderr, "is-true-which-is-not-possible", "optimize.compile")
    assert says(done.stderr, "compile-cache-mounted-noexec", "/cache/compile")


def up(project: Path, **environment: str) -> tuple[dict[str, Any], str]:
    """`docker compose up trainer`; the container's state and its log."""
    names = {"COMPOSE_PROJECT_NAME": f"drivetrain-test-{os.getpid()}"}
    os.environ.update(names)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DRIVETRAIN_")}
    done = subprocess.run(
        ["docker", "compose", "up", "trainer"],
        cwd=project,
        env={**clean, **names, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    name = subprocess.run(
        ["docker", "compose", "ps", "-aq", "trainer"],
        cwd=project,
        env={**clean, **names},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert name, done.stdout + done.stderr
    return inspect_container(name), done.stdout + done.stderr


@pytest.mark.cgroup
def test_compose_up_trains_under_the_limits_twice_in_a_row(project: Path) -> None:
    # Beside other tests, two threads that compute gradients in bf16 would be 25 times slower.
    with (project / "jobs/digits.yaml").open("a") as job:
        job.write("optimize: {cpu_threads: 1}\n")
    for number, epochs in (("001", 12), ("002", 1)):
        job_file = project / "jobs/digits.yaml"
        job_file.write_text(re.sub(r"epochs: \d+", f"epochs: {epochs}", job_file.read_text()))
        inspection, log = up(project, JOB="jobs/digits.yaml")
        assert inspection["State"]["ExitCode"] == 0, log
        host = inspection["HostConfig"]
        assert (host["NanoCpus"], host["Memory"], host["MemorySwap"]) == (
            count_cpus() * 1_000_000_000,
            4 << 30,
            4 << 30,
        )
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert not host["Privileged"]
        assert not host["PortBindings"]
        run = project / "runs" / f"digits-{number}"
        names = {path.name for path in run.iterdir()}
        assert names >= {
            "job.yaml",
            "hardware.json",
            "plan.json",
            "metrics.jsonl",
            "telemetry.jsonl",
            "tensorboard",
            "checkpoints",
            "model",
            "report.html",
            "report.md",
            "report.json",
            "result.json",
            "state.json",
        }
        result = json.loads((run / "result.json").read_text())
        assert result["best"]["value"] >= 0.98 or epochs == 1
        plan = json.loads((run / "plan.json").read_text())
        assert all(row["same"] for name, row in plan["seen"].items() if name != "libraries")
        assert "4.0 GiB limit" in log
        owner = (run / "result.json").stat().st_uid
        assert owner == 1000


def test_compose_up_with_a_bad_spec(project: Path) -> None:
    (project / "jobs" / "bad.yaml").write_text("name: bad\ntask: image-classification\ndata: {trian: digits.npz}\n")
    inspection, log = up(project, JOB="jobs/bad.yaml")
    assert inspection["State"]["ExitCode"] == 2
    assert "jobs/bad.yaml:3:8: data.trian: unknown key" in log
    assert 'did you mean "train"?' in log
    assert "Traceback" not in log


@pytest.mark.cgroup
def test_a_quota_gives_one_thread_and_is_recorded(container: Run, tmp_path: Path) -> None:
    """The plan keeps within half a CPU; what the kernel holds back all the same is in the run's telemetry.

    Which precision pays is up to the processor.
    """
    tmp_path.chmod(0o777)
    options = ("--cpus=0.5", "-v", f"{ROOT}/jobs:/workspace/jobs:ro", "-v", f"{tmp_path}:/workspace/runs")
    done = container(
        "train", "jobs/digits.yaml", "-v", "--set", "train.epochs=1", "--set", "name=quota", options=options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"cpu: 1 thread, (fp32|bf16), oneDNN .*, libiomp5", done.stdout)
    rows = [json.loads(line) for line in (tmp_path / "quota-001" / "telemetry.jsonl").read_text().splitlines()]
    throttled_seconds = [row["throttled_seconds"] for row in rows]
    assert throttled_seconds == sorted(throttled_seconds)
    assert throttled_seconds[-1] > 0


@pytest.mark.cgroup
def test_docker_stop_saves(cpu_image: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    name = f"drivetrain-stop-{os.getpid()}"
    line = [
        "docker",
        "run",
        "--name",
        name,
        "--init",
        "-v",
        f"{ROOT}/jobs:/workspace/jobs:ro",
        "-v",
        f"{tmp_path}:/workspace/runs",
        cpu_image,
        "train",
        "jobs/digits.yaml",
        "--set",
        "train.epochs=500",
        "--set",
        "optimize.measure=off",
    ]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        next(text for text in process.stdout if "validation/accuracy" in text)
        subprocess.run(["docker", "stop", "--time", str(10 * SLOWER), name], capture_output=True, check=True)
        output = process.stdout.read()
        process.wait(timeout=30 * SLOWER)
        assert inspect_container(name)["State"]["ExitCode"] == 75, output
        assert says(output, "stopped-sigterm-make-stop")
    finally:
        process.stdout.close()
        subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=False)


@pytest.mark.nightly
def test_tensorboard_beside_the_trainer(project: Path) -> None:
    """It starts only when it is named, listens on this host alone, reads and cannot write."""
    _, log = up(project, JOB="jobs/digits.yaml")
    environment = {**os.environ, "COMPOSE_PROFILES": "", "DRIVETRAIN_TENSORBOARD_PORT": str(free_port())}
    address = f"http://127.0.0.1:{environment['DRIVETRAIN_TENSORBOARD_PORT']}"

    def compose(*arguments: str) -> str:
        done = subprocess.run(
            ["docker", "compose", *arguments],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    assert compose("--profile", "tensorboard", "ps", "-aq", "tensorboard") == "", log
    compose("up", "--detach", "--no-deps", "tensorboard")
    try:
        tags = answer(f"{address}/data/plugin/scalars/tags")
        assert {"train/loss", "lr", "grad_norm"} <= set(tags["digits-001/tensorboard"])
        inspection = inspect_container(compose("--profile", "tensorboard", "ps", "-q", "tensorboard"))
        host = inspection["HostConfig"]
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert "no-new-privileges:true" in host["SecurityOpt"]
        assert inspection["Config"]["User"] not in ("", "0", "0:0", "root")
        assert [mount["RW"] for mount in inspection["Mounts"] if mount["Destination"] == "/workspace/runs"] == [False]
        assert {row["HostIp"] for rows in host["PortBindings"].values() for row in rows} == {"127.0.0.1"}
    finally:
        compose("--profile", "tensorboard", "rm", "--stop", "--force", "tensorboard")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answer(address: str, seconds: float = 60) -> Any:
    """The JSON at an address, as soon as there is some."""
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as reply:
                if data := json.load(reply):
                    return data
        except (OSError, http.client.HTTPException):
            pass
        assert time.monotonic() < end, f"nothing answers at {address}"
        time.sleep(0.5)


def test_a_login_shell_finds_python(container: Run) -> None:
    """SkyPilot and Kubeflow start commands in one, and Debian's sets PATH anew."""
    done = container("-lc", "command -v python torchrun", entrypoint="bash")
    assert done.stdout.split() == ["/opt/venv/bin/python", "/opt/venv/bin/torchrun"], done.stderr


def test_networks_of_timm_are_there(container: Run) -> None:
    program = (
        "import importlib.util, torch; from drivetrain.models.networks import timm_vision; "
        "made = timm_vision.load_timm().create_model('resnet10t', num_classes=3).eval(); "
        "assert importlib.util.find_spec('transformers'); print(tuple(made(torch.zeros(1, 3, 32, 32)).shape))"
    )
    done = container("-c", program, entrypoint="python")
    assert (done.returncode, done.stdout.strip()) == (0, "(1, 3)"), done.stderr
