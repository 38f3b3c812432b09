"""scripts/setup: where torch comes from, with an index of the CPU build that answers and with one that does not."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.messages import get_message, omits, says, says_each, says_only
from tests.paths import ROOT

PYTHON = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in
    *"pip config list") echo "{settings}" ;;
    *"index versions torch") echo "torch (9.0)"; echo "Available versions: {versions}" ;;
    *version_info.major*) echo 3.11 ;;
esac
"""


class Quiet(http.server.BaseHTTPRequestHandler):
    """Has everything."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def package_index() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def find_closed_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def setup(
    folder: Path,
    package_index: str,
    settings: str = "",
    versions: str = "2.13.0, 2.12.1+cpu",
    version: str = "3.11",
    level: str = "native",
) -> tuple[str, str]:
    """Return what `scripts/setup` says, and the line that installs what is locked, empty for the level host."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    (folder / "docker").mkdir()
    for path in (ROOT / "docker").glob("[rD]*"):
        shutil.copy2(path, folder / "docker") if path.is_file() else None
    shutil.copytree(ROOT / "docker" / "unused", folder / "docker" / "unused")
    log, python = folder / "log", folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(log=log, settings=settings, versions=versions).replace("3.11", version))
    python.chmod(0o755)
    (folder / "scripts" / "env").write_text("#!/bin/sh\ntouch asked\n")
    environment = {**os.environ, "PYTHON": str(python), "TORCH_INDEX": package_index}
    done = subprocess.run(
        [folder / "scripts" / "setup", level], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, next((line for line in log.read_text().splitlines() if " -r " in line), "")


def test_an_index_that_answers(tmp_path: Path, package_index: str) -> None:
    output, line = setup(tmp_path, package_index)
    assert line.endswith(f"-r docker/requirements-cpu.txt --extra-index-url {package_index}")
    assert "does not answer" not in output


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_files_without_a_hash_are_told(tmp_path: Path, package_index: str, version: str) -> None:
    output, line = setup(tmp_path, package_index, version=version)
    assert ("--require-hashes" in line) == (version == "3.11")
    if version == "3.11":
        assert omits(output, "setup-files-no-hash", version)
    else:
        assert says(output, "setup-files-no-hash", version)


@pytest.mark.parametrize("script", ["setup", "env"])
def test_a_colon_in_the_path_of_the_checkout_is_told(tmp_path: Path, script: str) -> None:
    """Python's venv refused it, and setup said to install the package of venv; PYTHONPATH held half of the path."""
    shutil.copytree(ROOT / "scripts", tmp_path / "a:b" / "scripts")
    line = [tmp_path / "a:b" / "scripts" / script]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (9, "")
    assert says(done.stderr, "path-contains-colon", tmp_path / "a:b")
    assert f"mv '{tmp_path}/a:b' '{tmp_path}/a-b'" in done.stderr


def test_an_index_that_does_not_answer_is_not_asked_again(tmp_path: Path) -> None:
    """pip warned for each package and found no torch, although its own index had one that trains on the CPU."""
    silent = find_closed_address()
    output, line = setup(tmp_path, silent)
    assert line.endswith("-r docker/requirements-ampere.txt")
    assert says_each(
        [row for row in output.splitlines() if silent in row], [get_message("setup-cpu-build-torch", silent, 5)]
    )


def test_the_cpu_build_of_a_mirror_is_taken(tmp_path: Path) -> None:
    """A mirror can have the builds of PyTorch's own index, too; 5 GB of CUDA were installed instead."""
    (locked,) = re.findall(r"^torch==(\S+)", (ROOT / "docker" / "requirements-cpu.txt").read_text(), re.MULTILINE)
    silent = find_closed_address()
    output, line = setup(tmp_path, silent, versions=f"9.0, {locked}, 2.12.1")
    assert line.endswith("-r docker/requirements-cpu.txt")
    assert says_each(
        [row for row in output.splitlines() if silent in row], [get_message("setup-answer-cpu-build", silent)]
    )


def test_local_wheels_are_taken_without_asking(tmp_path: Path) -> None:
    output, line = setup(tmp_path, find_closed_address(), "global.find-links='/srv/wheels'")
    assert line.endswith("-r docker/requirements-cpu.txt")
    assert "does not answer" not in output


FAILING = """#!/bin/sh
case "$*" in
*install*)
    for i in 1 2 3; do echo "WARNING: Retrying after connection broken" >&2; done
    echo "ERROR: Could not find a version that satisfies the requirement torch==9.9 (from versions: {versions})" >&2
    echo "ERROR: No matching distribution found for torch==9.9" >&2
    exit 1 ;;
*config*) echo "global.find-links='/srv/wheels'" ;;
esac
"""


def test_what_pip_cannot_install_is_told_in_three_lines(tmp_path: Path) -> None:
    """With an index that lacks the locked torch pip names hundreds of versions, and warns for each package."""
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    shutil.copytree(ROOT / "docker", folder / "docker", ignore=shutil.ignore_patterns("wheels"))
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(FAILING.format(versions=", ".join(f"1.{i}" for i in range(300))))
    python.chmod(0o755)
    done = subprocess.run(
        [folder / "scripts" / "setup", "native"],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (9, 3), done.stderr
    assert says_only(lines[0], "pip-install-packages-matching", "9.9")
    assert "docker/requirements-cpu.txt" in lines[1]
    assert "1.299" in (folder / ".venv" / "pip.log").read_text()


WARNING = """#!/bin/sh
case "$*" in
*install*)
    for i in $(seq 20000); do echo "WARNING: Location file:///srv/simple/package-$i/ is ignored" >&2; done ;;
*config*) echo "global.find-links='/srv/wheels'" ;;
*version_info.major*) echo 3.11 ;;
esac
"""


def test_warnings_of_pip_do_not_end_the_setup(tmp_path: Path) -> None:
    """A warning for each package was cut with `head`, which closes the pipe: with many of them setup ended with 141."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copytree(ROOT / "docker", tmp_path / "docker", ignore=shutil.ignore_patterns("wheels"))
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(WARNING)
    python.chmod(0o755)
    (tmp_path / "scripts" / "env").write_text("#!/bin/sh\n")
    done = subprocess.run(
        [tmp_path / "scripts" / "setup", "native"],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "setup: .venv is ready (native)"), done.stderr[-500:]
    assert [line.split("/")[-2] for line in done.stderr.splitlines()] == [f"package-{i}" for i in range(1, 6)] * 2


@pytest.mark.parametrize(("level", "asks"), [("host", False), ("native", False), ("check", True)])
def test_only_launch_asks_for_an_engine_before_a_training(
    tmp_path: Path, package_index: str, level: str, asks: bool
) -> None:
    """An engine that appeared during `make train-cpu` got a base image, which took minutes, for a training without it."""
    setup(tmp_path, package_index, level=level)
    assert (tmp_path / "asked").exists() == asks


REFUSED = [("image", "cpu"), ("base-image",), ("containers", "logs"), ("containers", "stop"), ("containers", "prune")]


@pytest.mark.parametrize(
    ("engine", "problem", "action"),
    [
        (
            "Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
            "a Docker engine is running, but user",
            "sudo usermod -aG docker $USER, then log in again",
        ),
        ("Cannot connect to the Docker daemon. Is it running?", "no Docker engine answers", "make engine"),
    ],
)
@pytest.mark.parametrize("command", REFUSED, ids=" ".join)
def test_an_engine_that_refuses_the_user_is_told_from_a_missing_one(
    tmp_path: Path, command: tuple[str, ...], engine: str, problem: str, action: str
) -> None:
    """Both read `make engine`, which installs a second engine beside the one that runs."""
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "{engine}" >&2\nexit 1\n')
    docker.chmod(0o755)
    done = subprocess.run(
        [ROOT / "scripts" / command[0], *command[1:]],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (9, "", 3)
    assert lines[0].startswith(problem)
    assert lines[2].split(maxsplit=1) == ["do:", action]
