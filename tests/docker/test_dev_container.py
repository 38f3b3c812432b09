"""The engine of a dev container: started in a privileged container as a Codespace is one, it enforces limits."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.cgroup
PROGRAMS = ("dockerd", "docker", "iptables")
# An image of a shell and cat, as no registry need answer.
PROBE = "tar -ch /bin/sh /bin/cat $(ldd /bin/sh /bin/cat | grep -o '/lib[^ ]*' | sort -u) 2>/dev/null | docker import - probe"
LOOK = """cd /sys/fs/cgroup
if [ -f memory.max ]; then cat memory.max cpu.max pids.max
else cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us pids/pids.max; fi"""
ROOT_GROUP = "cd /sys/fs/cgroup; ! [ -f cgroup.procs ] || { wc -w <cgroup.procs; cat cgroup.subtree_control; }"


@pytest.fixture
def exec_command(cpu_image: str) -> Iterator[list[str]]:
    """`docker exec` into a privileged container that has the programs of the engine's own host."""
    name = f"drivetrain-codespace-{uuid.uuid4().hex[:8]}"
    host = [word for path in ("/usr", "/etc/alternatives") for word in ("--volume", f"{path}:{path}:ro")]
    line = ["docker", "run", "--detach", "--privileged", "--name", name, "--user", "0", "--volume", "/var/lib/docker"]
    line += [*host, "--volume", f"{ROOT}/scripts:/scripts:ro", "--entrypoint", "sleep", cpu_image, "infinity"]
    try:
        done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=120)
        if "operation not permitted" in done.stderr:
            pytest.skip("this engine may not start a privileged container")
        assert done.returncode == 0, done.stderr
        lookup = ["docker", "exec", name, "sh", "-c", " && ".join(f"command -v {program}" for program in PROGRAMS)]
        if subprocess.run(lookup, capture_output=True, check=False, timeout=60).returncode:
            pytest.skip(f"the engine's host has not all of {', '.join(PROGRAMS)}")
        yield ["docker", "exec", name]
    finally:
        subprocess.run(["docker", "rm", "--force", "--volumes", name], check=False, capture_output=True, timeout=120)


def shell(exec_command: list[str], text: str) -> str:
    done = subprocess.run([*exec_command, "bash", "-c", text], capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, (text, done.stdout, done.stderr)
    return done.stdout


def test_the_engine_of_a_codespace_enforces_limits(exec_command: list[str]) -> None:
    version = shell(exec_command, "[ -f /sys/fs/cgroup/cgroup.controllers ] && echo 2 || echo 1").strip()
    output = shell(exec_command, "/scripts/start-engine")
    note = "moved the processes of this container into the control group init, " if version == "2" else ""
    assert output == f"{note}started dockerd\n"
    assert shell(exec_command, "/scripts/start-engine") == "nothing to do\n"
    if version == "2":
        count, controllers = shell(exec_command, ROOT_GROUP).splitlines()
        assert int(count) <= 1  # the shell that looks
        assert {"cpu", "memory", "pids"} <= set(controllers.split())
    shell(exec_command, PROBE)
    limits = "--memory 64m --memory-swap 64m --cpus 0.5 --pids-limit 32"
    limits_inside = shell(exec_command, f"docker run --rm --network none {limits} probe /bin/sh -c '{LOOK}'").split()
    assert limits_inside == ["67108864", "50000", *(["100000"] if version == "2" else []), "32"]


def test_an_engine_that_was_killed_starts_again(exec_command: list[str]) -> None:
    """A codespace ends without warning; its PID file stays."""
    shell(exec_command, "/scripts/start-engine")
    shell(exec_command, "kill -9 $(cat /run/docker.pid); sleep 1; ! docker info >/dev/null 2>&1")
    assert shell(exec_command, "/scripts/start-engine").endswith("started dockerd\n")
