"""How little a container may do, read from /proc inside every service that compose knows; and what is published."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docker.clone import project
from tests.paths import ROOT

__all__ = ["project"]
pytestmark = pytest.mark.cgroup
LOOK = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
mounts = [line.split() for line in open("/proc/mounts")]
def writable(path):
    try:
        open(os.path.join(path, ".posture"), "w").close()
        os.unlink(os.path.join(path, ".posture"))
        return True
    except OSError:
        return False
print(json.dumps({
    "uid": os.getuid(), "groups": os.getgroups(),
    **{name: int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")},
    "NoNewPrivs": int(status["NoNewPrivs"]), "Seccomp": int(status["Seccomp"]),
    "root": [row[3].split(",")[0] for row in mounts if row[1] == "/"][-1],
    "sock": [row[1] for row in mounts if "docker.sock" in row[1]] + [p for p in ("/var/run/docker.sock",) if os.path.exists(p)],
    "writable": [p for p in ("/", "/etc", "/opt/drivetrain", "/opt/venv", "/usr/local", "/workspace", "/workspace/jobs",
                             "/workspace/runs") if writable(p)],
    "interfaces": sorted(os.listdir("/sys/class/net")), "parent": open("/proc/1/comm").read().strip(),
    "pids": next((open(p).read().strip() for p in ("/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max") if os.path.exists(p)), None),
}))
"""
CHOWN = 1 << 0
COMMON = {"CapInh": 0, "CapAmb": 0, "NoNewPrivs": 1, "Seccomp": 2, "root": "ro", "sock": []}
NONE = {"CapEff": 0, "CapPrm": 0, "CapBnd": 0}
SERVICES: dict[str, dict[str, Any]] = {
    "trainer": {**NONE, "uid": 1000, "writable": ["/workspace/runs"], "pids": "512"},
    "tensorboard": {**NONE, "uid": 1000, "writable": [], "pids": "128"},
    # It changes the owner of runs/ and nothing else: no network, one capability.
    "prepare": {"CapEff": CHOWN, "CapPrm": CHOWN, "CapBnd": CHOWN, "uid": 0, "interfaces": ["lo"], "pids": "16"},
}


def compose(folder: Path, *words: str, **environment: str) -> str:
    done = subprocess.run(
        ["docker", "compose", *words],
        cwd=folder,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_service_is_looked_at(project: Path) -> None:
    assert set(compose(project, "--profile", "*", "config", "--services").split()) == set(SERVICES)


@pytest.mark.parametrize("service", SERVICES)
def test_container_hardening_inside(project: Path, service: str) -> None:
    (project / "runs").chmod(0o777)
    clean = {name: "" for name in os.environ if name.startswith("DRIVETRAIN_") and name != "DRIVETRAIN_TAG"}
    output = compose(
        project,
        "run",
        "--rm",
        "-T",
        "--no-deps",
        "--entrypoint",
        "python",
        service,
        "-c",
        LOOK,
        COMPOSE_PROJECT_NAME=f"drivetrain-posture-{os.getpid()}",
        **clean,
    )
    status = json.loads(output.strip().splitlines()[-1])
    expected = COMMON | SERVICES[service]
    assert {name: status[name] for name in expected} == expected
    assert status["parent"] in ("docker-init", "tini")
    assert 0 not in status["groups"] or service == "prepare"


@pytest.mark.parametrize("word", ["cpu", "ampere", "legacy"])
def test_what_is_published_and_mounted(cpu_image: str, word: str) -> None:
    """Ports on this host alone, no socket of the engine, nothing privileged, no namespace of the host."""
    text = compose(
        ROOT,
        "--project-directory",
        ".",
        "-f",
        "compose/base.yaml",
        "-f",
        f"compose/{word}.yaml",
        "--profile",
        "*",
        "config",
        "--format",
        "json",
        DRIVETRAIN_GPU_CPUS="2",
        DRIVETRAIN_GPU_MEMORY="4g",
    )
    services = json.loads(text)["services"]
    assert set(services) == set(SERVICES)
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert [port["host_ip"] for port in published] == ["127.0.0.1"]
    for name, service in services.items():
        assert "docker.sock" not in json.dumps(service.get("volumes", [])), name
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "pid", "ipc", "userns_mode", "devices"} & set(service), name
        assert service.get("network_mode", "none") == "none", name
