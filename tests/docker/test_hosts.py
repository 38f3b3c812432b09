"""What hosts do to containers, each on a real engine: nobody has run a script, a folder is closed, an engine is odd."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker.clone import copy_project
from tests.docker.conftest import TAG, inspect_container
from tests.docker.launched_checkout import NO_TORCH
from tests.messages import says
from tests.paths import ROOT
from tests.waiting import wait_until

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
def clone(cpu_image: str) -> Iterator[Path]:
    """A fresh clone of a user who has run no script; with the wheels of this checkout the build needs no index."""
    # Every pytest that starts closes the folder of tmp_path to other users, also for those that are running.
    home = Path(tempfile.mkdtemp(prefix="drivetrain-home-"))
    home.chmod(0o755)
    folder = home / "drivetrain"
    copy_project(folder)
    for wheel in (ROOT / "docker/wheels/cpu").glob("*.whl"):
        os.link(wheel, folder / "docker/wheels/cpu" / wheel.name)
    rows = [f"{i % 7},{i % 3},{'yes' if i % 7 > 3 else 'no'}" for i in range(60)]
    (folder / "jobs" / "rows.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    (folder / "jobs" / "tiny.yaml").write_text(JOB)
    for place in (home, folder):
        shutil.chown(place, USER, USER)
    for path in folder.rglob("*"):
        if not path.name.endswith(".whl"):
            shutil.chown(path, USER, USER)
    yield folder
    shutil.rmtree(home)


class OwnEngine:
    """Another engine that has the image, with its own network, since it would remove docker0; its users are not root.

    Args:
        folder: is closed to nobody: the root of remapped users must get through.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"unix://{folder}/socket"
        self.options: tuple[str, ...] = ()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, image: str | None = None) -> None:
        self.options = options
        places = [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec"]
        places += [f"--pidfile={self.folder}/pid", f"-H={self.address}"]
        nets = ["--iptables=false", f"--group={SOCKET.stat().st_gid}"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["unshare", "--net", "dockerd", *places, *nets, *options], stdout=log, stderr=log
            )
        wait_until(lambda: self.run("info").returncode == 0, 60, 0.5)
        if image:
            with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
                self.run("load", stdin=saved.stdout).check_returncode()
        (self.folder / "socket").chmod(0o666)

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["docker", "-H", self.address, *words], capture_output=True, check=False, **options)

    def end(self) -> None:
        if self.process:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            self.process.kill()
            self.process.wait()


@pytest.fixture
def own_engine(cpu_image: str) -> Iterator[Callable[..., OwnEngine]]:
    """Start an engine of this test."""
    engine = OwnEngine(Path(tempfile.mkdtemp(prefix="drivetrain-engine-", dir="/var/lib")))
    engine.folder.chmod(0o755)

    def start(*options: str) -> OwnEngine:
        engine.start(*options, image=cpu_image)
        return engine

    yield start
    for container in engine.run("ps", "--quiet").stdout.decode().split():
        engine.run("kill", container)
    engine.end()
    subprocess.run(["umount", "--lazy", engine.folder / "data"], capture_output=True, check=False)
    shutil.rmtree(engine.folder, ignore_errors=True)


def run_as_user(folder: Path, *words: str, umask: int = 0o022, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user who may use the engine, with nothing of this process's environment."""
    base = subprocess.run([ROOT / "scripts" / "env", "base"], capture_output=True, text=True, check=True).stdout.strip()
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


@pytest.mark.parametrize("command", ["train jobs/tiny.yaml", "bench lr jobs/tiny.yaml", "doctor"])
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


def test_an_engine_that_remaps_users(clone: Path, own_engine: Callable[..., OwnEngine]) -> None:
    """Its containers could not write to runs/."""
    environ: dict[str, Any] = {
        "DOCKER_HOST": own_engine("--userns-remap=default").address,
        "DRIVETRAIN_USERNS": "host",
        "DRIVETRAIN_TAG": TAG,
    }
    done = run_as_user(clone, "docker", "compose", "up", "trainer", **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (clone / "runs" / "tiny-001" / "model").stat().st_uid == USER


def test_proxies_of_the_client_and_the_time_zone(clone: Path) -> None:
    """Compose sets the proxies in every container: a password for whoever may ask the engine, and no way to 127.0.0.1."""
    (clone.parent / ".docker").mkdir()
    proxies = {"httpProxy": "http://me:word@proxy.invalid:3128", "httpsProxy": "http://me:word@proxy.invalid:3128"}
    (clone.parent / ".docker" / "config.json").write_text(json.dumps({"proxies": {"default": proxies}}))
    environ: dict[str, Any] = {"DRIVETRAIN_TAG": TAG, "COMPOSE_PROJECT_NAME": f"drivetrain-proxies-{os.getpid()}"}
    environ |= {"TZ": "Asia/Kolkata", "DRIVETRAIN_TENSORBOARD_PORT": "0"}
    try:
        for service in ("trainer", "prepare", "tensorboard"):
            line = ["run", "--rm", "-T", "--no-deps", "--entrypoint", "env", service]
            done = run_as_user(clone, "docker", "compose", *line, **environ)
            assert done.returncode == 0, done.stderr
            assert "word" not in done.stdout
        line = ["run", "--rm", "-T", "--no-deps", "--entrypoint", "date", "trainer", "+%z"]
        assert run_as_user(clone, "docker", "compose", *line, **environ).stdout.strip() == "+0530"
        up = run_as_user(clone, "docker", "compose", "up", "--wait", "tensorboard", **environ)
        assert up.returncode == 0, up.stdout + up.stderr  # healthy
    finally:
        run_as_user(clone, "docker", "compose", "--profile", "*", "down", **environ)


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


def test_a_policy_that_restarts_every_container_trains_once(clone: Path) -> None:
    """The run is stopped by a kill in the middle, and goes on; once it is done, every start ends at once."""
    command = ["train", "jobs/tiny.yaml", "--if-unfinished", "--set", "train.epochs=500"]
    (clone / "restart.yaml").write_text(
        json.dumps({"services": {"trainer": {"command": command, "restart": "always"}}})
    )
    environ: dict[str, Any] = {"DRIVETRAIN_TAG": TAG, "COMPOSE_PROJECT_NAME": f"drivetrain-always-{os.getpid()}"}
    compose = ["docker", "compose", "-f", "compose.yaml", "-f", "restart.yaml"]
    name, run = f"{environ['COMPOSE_PROJECT_NAME']}-trainer-1", clone / "runs" / "tiny-001"

    def is_written(file: str) -> bool:
        return (run / file).exists() and (run / file).stat().st_size > 2000

    try:
        up = run_as_user(clone, *compose, "up", "--detach", "trainer", **environ)
        assert up.returncode == 0, up.stderr
        wait_until(lambda: is_written("metrics.jsonl"), 120, 0.2)
        process = inspect_container(name)["State"]["Pid"]
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: inspect_container(name)["RestartCount"] >= 3, 300, 0.5)
        assert json.loads((run / "state.json").read_text())["status"] == "done"
        assert [path.name for path in (clone / "runs").glob("tiny-*")] == ["tiny-001"]
    finally:
        run_as_user(clone, *compose, "down", **environ)


@pytest.mark.parametrize("survives", [True, False])
def test_an_engine_that_is_restarted_while_training(
    clone: Path, own_engine: Callable[..., OwnEngine], survives: bool
) -> None:
    """The client printed three tracebacks and ended with 1, though the run was safe."""
    engine = own_engine(*(["--live-restore"] if survives else []))
    line = [sys.executable, "-c", NO_TORCH, "launch", "jobs/tiny.yaml", "--set", "train.epochs=1000000"]
    variables = {"PYTHONPATH": f"{clone}/runtime:{clone}", "DOCKER_HOST": engine.address, "DRIVETRAIN_TAG": TAG}
    environ = {**os.environ, **variables}
    metrics = clone / "runs" / "tiny-001" / "metrics.jsonl"
    with (clone.parent / "log").open("w+") as log:
        client = subprocess.Popen(line, cwd=clone, env=environ, stdout=log, stderr=log)
        try:
            wait_until(lambda: client.poll() is not None or (metrics.exists() and metrics.stat().st_size > 1000))
            engine.end()
            engine.start(*engine.options)
            if survives and metrics.exists():
                size = metrics.stat().st_size
                wait_until(lambda: client.poll() is not None or metrics.stat().st_size > size + 1000)
                client.terminate()
            code = client.wait(120)
        finally:
            client.kill()
    output = (clone.parent / "log").read_text()
    assert code == 75, output
    assert "Traceback" not in output
    assert says(output, "connection-engine-lost-waiting", 60)
    assert list((clone / "runs" / "tiny-001" / "checkpoints").iterdir())
