"""What hosts do to containers, each on a real engine: nobody has run a script, a folder is closed, an engine is odd."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker.clone import copy_project
from tests.docker.conftest import TAG
from tests.docker.launched_checkout import NO_TORCH
from tests.messages import says
from tests.paths import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")]
USER = 1000
"""The default of the compose files."""
SOCKET = Path("/var/run/docker.sock")

JOB = """
name: tiny
task: tabular-classification
data: {train: rows.csv, target: label}
train: {epochs: 1}
baselines: off
optimize: {measure: off}
"""


@pytest.fixture
def clone(cpu_image: str, tmp_path: Path) -> Path:
    """A fresh clone of a user who has run no script; with the wheels of this checkout the build needs no index."""
    folder = tmp_path / "drivetrain"
    copy_project(folder)
    for wheel in (ROOT / "docker/wheels/cpu").glob("*.whl"):
        os.link(wheel, folder / "docker/wheels/cpu" / wheel.name)
    rows = [f"{i % 7},{i % 3},{'yes' if i % 7 > 3 else 'no'}" for i in range(60)]
    (folder / "jobs" / "rows.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    (folder / "jobs" / "tiny.yaml").write_text(JOB)
    for place in (tmp_path, folder):
        shutil.chown(place, USER, USER)
    for path in folder.rglob("*"):
        if not path.name.endswith(".whl"):
            shutil.chown(path, USER, USER)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    return folder


@pytest.fixture
def own_engine(cpu_image: str, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start another engine that has the image, with its own network, since it would remove docker0; returns its address."""
    engines: list[subprocess.Popen[bytes]] = []
    folder = Path(tempfile.mkdtemp(prefix="drivetrain-engine-", dir="/var/lib"))
    folder.chmod(0o755)  # the root of remapped users must get through

    def start(*options: str) -> str:
        address = f"unix://{folder}/socket"
        places = [
            f"--data-root={folder}/data",
            f"--exec-root={folder}/exec",
            f"--pidfile={folder}/pid",
            f"-H={address}",
        ]
        log = (folder / "log").open("wb")
        nets = ["--iptables=false", f"--group={SOCKET.stat().st_gid}"]
        engines.append(
            subprocess.Popen(["unshare", "--net", "dockerd", *places, *nets, *options], stdout=log, stderr=log)
        )
        for _ in range(120):
            if subprocess.run(["docker", "-H", address, "info"], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.5)
        with subprocess.Popen(["docker", "save", cpu_image], stdout=subprocess.PIPE) as saved:
            subprocess.run(["docker", "-H", address, "load"], stdin=saved.stdout, capture_output=True, check=True)
        (folder / "socket").chmod(0o666)
        return address

    yield start
    for engine in engines:
        engine.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            engine.wait(30)
        engine.kill()
    shutil.rmtree(folder, ignore_errors=True)


def run_as_user(folder: Path, *words: str, umask: int = 0o022, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user who may use the engine, with nothing of this process's environment."""
    base = subprocess.run([ROOT / "scripts" / "choose-base"], capture_output=True, text=True, check=True).stdout.strip()
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "BASE_IMAGE": base, "JOB": "jobs/tiny.yaml"}
    return subprocess.run(
        words,
        cwd=folder,
        env=variables | environ,
        user=USER,
        group=USER,
        extra_groups=[SOCKET.stat().st_gid],
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


def test_compose_up_alone_in_a_fresh_clone(clone: Path) -> None:
    """Nothing is in .env; the image is built, compared with the checkout, and built again where it is told."""
    names: dict[str, Any] = {
        "COMPOSE_PROJECT_NAME": f"drivetrain-alone-{os.getpid()}",
        "DRIVETRAIN_TAG": f"alone-{os.getpid()}",
    }
    up = ["docker", "compose", "up", "trainer"]
    try:
        done = run_as_user(clone, *up, **names)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (clone / "runs" / "tiny-001" / "model").stat().st_uid == USER
        with (clone / "runtime" / "drivetrain" / "errors.py").open("a") as file:
            file.write("# pulled\n")
        done = run_as_user(clone, *up, **names)
        assert says(done.stdout + done.stderr, "checkout-changed-since", "runtime/drivetrain/errors.py")
        assert not (clone / "runs" / "tiny-002").exists()
        assert run_as_user(clone, "docker", "compose", "build", "trainer", **names).returncode == 0
        run_as_user(clone, *up, **names)
        assert (clone / "runs" / "tiny-002" / "model").exists()
        predict = ["docker", "compose", "run", "--rm", "-T", "trainer", "predict", "tiny-002", "jobs/rows.csv"]
        assert run_as_user(clone, *predict, **names).stdout.startswith("sample,")
    finally:
        run_as_user(clone, "docker", "compose", "down", **names)
        image = f"localhost/drivetrain/cpu:{names['DRIVETRAIN_TAG']}"
        subprocess.run(["docker", "rmi", "-f", image], capture_output=True, check=False)


@pytest.mark.parametrize("command", ["train jobs/tiny.yaml", "find-lr jobs/tiny.yaml", "doctor --json"])
def test_an_engine_that_does_not_see_the_folder(clone: Path, command: str) -> None:
    """A DOCKER_HOST elsewhere, or an engine outside of this container: it made empty folders there."""
    hidden = clone.parent / "hidden"
    hidden.mkdir()
    python = f"exec {sys.executable} -c {shlex.quote(NO_TORCH)} {command}"
    places = f"mount --make-rprivate / && mount -t tmpfs none {hidden} && cp -r {clone} {hidden}/drivetrain && cd {hidden}/drivetrain"
    environ = {
        **os.environ,
        "PYTHONPATH": f"{hidden}/drivetrain/runtime:{hidden}/drivetrain",
        "DOCKER_HOST": f"unix://{SOCKET}",
    }
    line = ["unshare", "-m", "sh", "-c", f"{places} && {python}"]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False, timeout=600)
    output = done.stdout + done.stderr
    assert says(output, "engine-see-engine", f"{hidden}/drivetrain", f"DOCKER_HOST=unix://{SOCKET}"), output
    assert "unset DOCKER_HOST" in output
    assert command.startswith("doctor") or done.returncode == 9
    assert list(hidden.iterdir()) == []


def test_an_engine_that_remaps_users(clone: Path, tmp_path: Path, own_engine: Callable[..., str]) -> None:
    """Its containers could not write to runs/."""
    environ: dict[str, Any] = {
        "DOCKER_HOST": own_engine("--userns-remap=default"),
        "DRIVETRAIN_USERNS": "host",
        "DRIVETRAIN_TAG": TAG,
    }
    done = run_as_user(clone, "docker", "compose", "up", "trainer", **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (clone / "runs" / "tiny-001" / "model").stat().st_uid == USER


def test_a_clone_under_umask_077(clone: Path) -> None:
    """Its image had code that the trainer could not read; and other modes built every layer again."""
    layers = []
    environ: dict[str, Any] = {"COMPOSE_PROJECT_NAME": f"drivetrain-umask-{os.getpid()}"}
    try:
        for mask in (0o022, 0o077):
            for path in {*clone.rglob("*")} - {*clone.rglob("*.whl")}:  # wheels are links to files of the checkout
                path.chmod((0o777 if path.is_dir() or os.access(path, os.X_OK) else 0o666) & ~mask)
            environ["DRIVETRAIN_TAG"] = f"umask-{os.getpid()}-{mask:03o}"
            image = f"localhost/drivetrain/cpu:{environ['DRIVETRAIN_TAG']}"
            done = run_as_user(clone, "docker", "compose", "build", "trainer", umask=mask, **environ)
            assert done.returncode == 0, done.stderr
            look = ["docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", image]
            layers.append(subprocess.run(look, capture_output=True, text=True, check=True).stdout)
        assert layers[0] == layers[1]
        done = run_as_user(clone, "docker", "compose", "up", "trainer", umask=0o077, **environ)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (clone / "runs" / "tiny-001" / "model").exists()
    finally:
        run_as_user(clone, "docker", "compose", "down", **environ)
        images = [f"localhost/drivetrain/cpu:umask-{os.getpid()}-{mask:03o}" for mask in (0o022, 0o077)]
        subprocess.run(["docker", "rmi", "-f", *images], capture_output=True, check=False)
