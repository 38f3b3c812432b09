"""A rootless engine: the files of a run belong to the user who runs the engine, and limits that it cannot enforce are named.

The tests find the engine of any user at /run/user/UID/docker.sock, as `dockerd-rootless-setuptool.sh install` sets it up.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import docker
from drivetrain.launch import docker_engine, engine_traits
from drivetrain.launch.compose_project import KEEP
from tests.docker.launched_checkout import copy_checkout, inspect_trainer, remove_containers, run_command
from tests.messages import says

RUN = Path("/run/user")


def _sockets() -> Iterator[Path]:
    """Those that this user may use."""
    for path in sorted(RUN.glob("*/docker.sock")) if RUN.is_dir() else ():
        if os.access(path, os.R_OK | os.W_OK):
            yield path


@pytest.fixture
def socket(cpu_image: str) -> Path:
    """The socket of a rootless engine that has the image."""
    for path in _sockets():
        try:
            client = docker.DockerClient(base_url=f"unix://{path}")
        except docker.errors.DockerException:  # what an engine left that was killed
            continue
        try:
            if not engine_traits.find(client.info()).rootless:
                continue
            if not client.images.list(cpu_image, filters={"label": _contents(cpu_image)}):
                saved = subprocess.Popen(["docker", "save", cpu_image], stdout=subprocess.PIPE)
                subprocess.run(["docker", "-H", f"unix://{path}", "load"], stdin=saved.stdout, check=True)
                assert saved.stdout is not None
                saved.stdout.close()
                assert saved.wait() == 0
            return path
        except docker.errors.DockerException:
            continue
        finally:
            client.close()
    pytest.skip("no rootless engine answers at /run/user/UID/docker.sock: dockerd-rootless-setuptool.sh install")


def _contents(image: str) -> str:
    """The label by which the same image is recognized in another engine."""
    line = ["docker", "image", "inspect", "--format", '{{index .Config.Labels "drivetrain.contents"}}', image]
    digest = subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
    return f"drivetrain.contents={digest}"


@pytest.fixture
def project(socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout of the engine's user, called from there."""
    folder = copy_checkout(tmp_path / "drivetrain")
    tmp_path.chmod(0o755)
    for above in tmp_path.parents:
        if above != Path("/tmp") and above.is_relative_to("/tmp"):
            above.chmod(0o755)
    owner = socket.stat().st_uid
    if owner != os.getuid():
        subprocess.run(["chown", "-R", str(owner), folder], check=True)
    (folder / "runs").chmod(0o755)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
    yield folder
    remove_containers(folder)


def test_files_belong_to_the_user_of_the_engine(project: Path, socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEEP, "1")
    done = run_command(
        project, "launch", "jobs/digits.yaml", "--set", "train.epochs=1", "--set", "optimize.measure=off"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    user = socket.stat().st_uid
    assert user != 0
    owners = {path.lstat().st_uid for path in (project / "runs").rglob("*")}
    assert owners == {user}, "no subordinate uid"
    settings = inspect_trainer(project, "digits")
    assert settings["Config"]["User"] == "0:0"
    assert settings["HostConfig"]["CapDrop"] == ["ALL"]
    client = docker.DockerClient(base_url=f"unix://{socket}")
    engine = engine_traits.find(client.info())
    client.close()
    assert (engine.note() in done.stdout) == bool(engine.unenforced)
    if "memory" in engine.unenforced:
        assert says(done.stdout, "g-requested-but-not-enforced", "limits.memory")


def test_the_engine_is_that_of_the_docker_context(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the setup tool of a rootless engine leaves it: no variable, a context."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for arguments in (["create", "other", "--docker", f"host=unix://{socket}"], ["use", "other"]):
        subprocess.run(["docker", "context", *arguments], capture_output=True, check=True)
    client = docker_engine.connect()
    line = ["docker", "info", "--format", "{{.ID}}"]
    by_command = subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
    assert client.info()["ID"] == by_command
    assert engine_traits.find(client.info()).rootless
    client.close()
