"""How little a container may do, read from /proc inside every service that compose knows; and what is published."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from drivetrain.cli import main
from drivetrain.launch import run_in_image
from drivetrain.supervisor import named_run
from tests.docker.clone import project
from tests.installed_packages import pretend_installed
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
def test_container_hardening_inside(project: Path, service: str, request: pytest.FixtureRequest) -> None:
    (project / "runs").chmod(0o777)
    name = {"COMPOSE_PROJECT_NAME": f"drivetrain-posture-{os.getpid()}"}
    request.addfinalizer(lambda: compose(project, "--profile", "*", "down", **name))  # the networks
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
        **name,
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


COMMANDS = {
    "bench lr": "bench lr jobs/digits.yaml",
    "bench memory": "bench memory jobs/digits.yaml",
    "bench models": "bench models jobs/digits.yaml",
    "bench speed": "bench speed jobs/digits.yaml",
    "compare": "compare runs runs",
    "evaluate": "evaluate runs --output jobs/posture",
    "export": "export runs --output posture.onnx",
    "fetch": "fetch jobs/digits.yaml",
    "init": "init jobs/data --output posture.yaml",
    "predict": "predict runs jobs --output runtime/posture.csv",
    "report": "report runs",
}
ATTACK = """
import os, sys
for path in sys.argv[1:]:
    try:
        open(path if os.path.isfile(path) else os.path.join(path, ".posture"), "r+" if os.path.isfile(path) else "w").close()
        print(path)
    except OSError:
        pass
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
assert int(status["CapBnd"], 16) == 0 and int(status["NoNewPrivs"]) == 1, status
assert os.listdir("/sys/class/net") == ["lo"]
"""


ALIKE = ("bench lr", "bench memory", "bench models", "compare", "export", "fetch")
"""At night: they get the mounts of one of the others."""


def test_every_command_is_looked_at() -> None:
    assert set(COMMANDS) == set(run_in_image.COMMANDS)


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=pytest.mark.nightly) if name in ALIKE else name for name in COMMANDS]
)
def test_code_in_a_command_cannot_change_the_project(
    cpu_image: str, command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The host runs the project's code, its Makefile and the hooks of git next; only runs/ and the output are written."""
    wait = run_in_image._wait
    places = [ROOT, *(ROOT / name for name in ("Makefile", "jobs", "runtime/drivetrain/errors.py", "runs", ".venv"))]
    aims = [*map(str, places), "/workspace", "/workspace/runtime", "/opt/drivetrain", "/cache/state"]

    def attack(line: list[str], *others: Any) -> int:
        place = line.index("trainer")
        return wait([*line[:place], "--entrypoint", "python", "trainer", "-c", ATTACK, *aims], *others)

    monkeypatch.setattr(run_in_image, "_wait", attack)
    pretend_installed(monkeypatch, lambda name: None)
    monkeypatch.setattr(named_run, "check_exists", lambda path: path)
    monkeypatch.delenv("DRIVETRAIN_IMAGE", raising=False)
    monkeypatch.chdir(ROOT)
    runs_mode = (ROOT / "runs").stat().st_mode
    (ROOT / "runs").chmod(0o777)
    try:
        assert main.main(COMMANDS[command].split()) == 0
    finally:
        (ROOT / "runs").chmod(runs_mode)
        (ROOT / "runs" / ".posture").unlink(missing_ok=True)
    stand_ins = {str(ROOT), str(ROOT / "jobs")}  # what is written there is thrown away
    assert set(capfd.readouterr().out.split()) - stand_ins == {str(ROOT / "runs")}
    assert not [place for place in places if (place / ".posture").exists()]
