"""A rootless engine on a host with cgroup v2: which limits it enforces depends on what systemd delegates to its user.

Only `scripts/cgroup2-host` has such a host.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator

import pytest

from drivetrain.launch import engine_traits
from tests.docker.conftest import SLOWER
from tests.messages import says
from tests.paths import ROOT

pytestmark = [
    pytest.mark.cgroup,
    pytest.mark.skipif("CGROUP2_SHELL" not in os.environ, reason="no host with cgroup v2: scripts/cgroup2-host"),
]
LOCAL = "unix:///var/run/docker.sock"
"""The engine of this machine, which has the base image."""
DELEGATED = "/etc/systemd/system/user@.service.d/delegate.conf"
SHOW = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max /sys/fs/cgroup/cpu.max 2>&1; true"


def guest(line: str, *, user: str = "root", stdin: int | None = None) -> str:
    """What a command line of the guest prints; of another user with the variables of a login."""
    if user != "root":
        home = f"export XDG_RUNTIME_DIR=/run/user/$(id -u {user}) PATH=/usr/share/docker.io/contrib:$PATH:/usr/sbin"
        line = f"{home}; export DOCKER_HOST=unix://$XDG_RUNTIME_DIR/docker.sock; cd /; exec setpriv --reuid {user} --regid {user} --init-groups env HOME=/home/{user} sh -c {shlex.quote(line)}"
    command = [*shlex.split(os.environ["CGROUP2_SHELL"]), line]
    done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False, timeout=120 * SLOWER)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def base() -> str:
    line = [str(ROOT / "scripts" / "env"), "base"]
    environment = {**os.environ, "DOCKER_HOST": LOCAL}
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def engine(delegated: str) -> Callable[[str], str]:
    """A rootless engine of a user to whom systemd delegates these controllers; returns what asks it."""
    guest(
        "modprobe -a tun overlay; id someone >/dev/null 2>&1 || useradd --create-home someone;"
        f" mkdir -p {os.path.dirname(DELEGATED)};"
        # The empty one takes back what the unit itself delegates; lists add up.
        f" printf '[Service]\nDelegate=\nDelegate={delegated}\n' > {DELEGATED}; systemctl daemon-reload;"
        " loginctl disable-linger someone; systemctl stop user@$(id -u someone); loginctl enable-linger someone"
    )
    guest("until systemctl --user is-system-running --wait; do sleep 1; done; exit 0", user="someone")
    guest(
        "dockerd-rootless-setuptool.sh install --force --skip-iptables; until docker info; do sleep 1; done",
        user="someone",
    )
    return lambda line: guest(line, user="someone")


# In this order: a controller that a slice has once given to its children stays with them.
@pytest.fixture(scope="module", params=["memory pids", "cpu cpuset io memory pids"], ids=["no cpu", "all"])
def query_engine(request: pytest.FixtureRequest, base: str) -> Iterator[Callable[[str], str]]:
    run_line = engine(request.param)
    with subprocess.Popen(["docker", "-H", LOCAL, "save", base], stdout=subprocess.PIPE) as saved:
        guest("docker load", user="someone", stdin=saved.stdout.fileno() if saved.stdout else None)
    yield run_line
    guest("systemctl stop user@$(id -u someone)")


def test_what_is_delegated_is_enforced_and_the_rest_is_named(
    query_engine: Callable[[str], str], base: str, request: pytest.FixtureRequest
) -> None:
    service = "/sys/fs/cgroup/user.slice/user-$(id -u).slice/user@$(id -u).service/cgroup.controllers"
    traits = engine_traits.find(
        json.loads(query_engine("docker info --format '{{json .}}'")), query_engine(f"cat {service}").split()
    )
    assert traits.rootless
    assert traits.cgroup == "2"
    limits = ["--memory", "64m", "--pids-limit", "32"]
    if "cpus" not in traits.unenforced:
        limits += ["--cpus", "0.5"]
    limit_lines = query_engine(
        shlex.join(["docker", "run", "--rm", "--network", "none", *limits, base, "sh", "-c", SHOW])
    ).split("\n")
    assert limit_lines[:2] == ["67108864", "32"]
    if request.node.callspec.params["ask"] == "memory pids":
        assert traits.unenforced == ("cpus",)
        assert says(traits.note(), "rootless-systemd-delegated-controllers")
    else:
        assert traits.unenforced == ()
        assert limit_lines[2] == "50000 100000"
    # The same by make and by compose, which read .env.
    copied = "rm -rf /tmp/copy; mkdir -p /tmp/copy/docker /tmp/copy/runtime/drivetrain; cd /tmp/copy"
    package = " ".join(f"{ROOT}/runtime/drivetrain/{name}" for name in ("__init__.py", "errors.py", "launch", "system"))
    parts = f"cp -r {package} runtime/drivetrain"
    files = f"cp -r {ROOT}/scripts {ROOT}/compose .; cp {ROOT}/docker/Dockerfile docker; {parts}"
    env_file = query_engine(f"{copied}; {files}; BASE_IMAGE={base} scripts/env >/dev/null; cat .env")
    assert ("DRIVETRAIN_CPUS=0" in env_file.split()) == ("cpus" in traits.unenforced), env_file
    assert "DRIVETRAIN_UID=0" in env_file.split()
