"""`train` and `init` started at the same time: the image is built once, and the second command waits for it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.messages import says, says_only
from tests.paths import ROOT

DOCKER = """#!/bin/sh
# An engine whose builds take two seconds.
cd "{folder}"
case "$*" in
    "buildx build"*)
        echo build >> builds
        echo "$*" >> arguments
        sleep 2
        for word; do case $word in drivetrain.contents=*) echo "${{word#*=}}" > contents ;; esac; done
        ;;
    *drivetrain.contents*) cat contents ;;
    *Size*) echo 1000000 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    for name in ("docker", "runtime", "scripts", "compose"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.whl"))
    shutil.copy(ROOT / "LICENSE", folder)
    for name in ("wheels", "env"):
        (folder / "scripts" / name).write_text("#!/bin/sh\n")
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER.format(folder=tmp_path))
    docker.chmod(0o755)
    return folder


def build(checkout: Path, word: str = "cpu", python: str = sys.executable) -> subprocess.Popen[str]:
    path = f"{checkout.parent / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHON": python, "PYTHONPATH": "", "BASE_IMAGE": "base"}
    return subprocess.Popen(
        [checkout / "scripts" / "image", word],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


PYTHON = """#!/bin/sh
# A Python whose pip has nothing of its own and no CPU build of torch.
case "$*" in
    *"pip config"*) exit 0 ;;
    *"pip --retries 1 index"*) echo "torch (2.13.0)"; exit 0 ;;
esac
exec {python} "$@"
"""


def test_without_pytorchs_index_the_image_gets_the_build_of_pips_index(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make setup` fell back, the build of the image stopped."""
    python = checkout.parent / "python"
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    monkeypatch.setenv("TORCH_INDEX", "http://127.0.0.1:9/simple")
    (checkout / "scripts" / "wheels").write_text(f'#!/bin/sh\necho "$*" >> {checkout.parent}/wheels\n')
    process = build(checkout, python=str(python))
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert says(output, "simple-cpu-build-torch", "http://127.0.0.1")
    arguments = (checkout.parent / "arguments").read_text()
    assert " LOCK=ampere " in arguments
    assert "TORCH_INDEX=http" not in arguments
    assert (checkout.parent / "wheels").read_text().startswith("ampere")


def test_wheels_that_the_user_has_put_there_are_taken(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message advises to put them there, and yet the image got 5 GB of CUDA."""
    python = checkout.parent / "python"
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    monkeypatch.setenv("TORCH_INDEX", "http://127.0.0.1:9/simple")
    (checkout / "scripts" / "wheels").write_text(f'#!/bin/sh\necho "$*" >> {checkout.parent}/wheels\n')
    (lock,) = re.findall(r"^torch==(\S+)", (ROOT / "docker" / "requirements-cpu.txt").read_text(), re.MULTILINE)
    (checkout / "docker" / "wheels" / "cpu" / f"torch-{lock}+cpu-cp311-cp311-any.whl").touch()
    process = build(checkout, python=str(python))
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert "LOCK=" not in (checkout.parent / "arguments").read_text()
    assert (checkout.parent / "wheels").read_text().startswith("cpu")


def test_an_image_has_a_label_only_for_what_is_known(checkout: Path) -> None:
    """Where there is no git and no registry, revision, source and digest were called unknown; by compose alone, all were."""
    output = build(checkout).communicate(timeout=60)[0]
    words = (checkout.parent / "arguments").read_text().split()
    labels = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--label")
    assert {name.rpartition(".")[2] for name in labels} == {"contents", "packages", "checkout", "version", "created"}
    assert all(labels.values()), output
    text = (ROOT / "docker" / "Dockerfile").read_text()
    assert "unknown" not in text[text.index("LABEL") :]


def count_builds(checkout: Path) -> int:
    path = checkout.parent / "builds"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for_builds(checkout: Path, count: int) -> None:
    until = time.monotonic() + 30
    while count_builds(checkout) < count:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_two_commands_build_once(checkout: Path) -> None:
    first = build(checkout)
    wait_for_builds(checkout, 1)
    second = build(checkout)
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert count_builds(checkout) == 1
    lines = outputs[1].splitlines()
    assert says_only(lines[0], "image-another-command-building")
    assert lines[1].endswith("was built meanwhile")
    assert "another command" not in outputs[0]


def test_what_was_built_from_other_code_is_built_again(checkout: Path) -> None:
    first = build(checkout)
    wait_for_builds(checkout, 1)
    (checkout / "LICENSE").write_text("changed\n")
    second = build(checkout)
    assert [process.communicate(timeout=60)[0].count("another command") for process in (first, second)] == [0, 1]
    assert count_builds(checkout) == 2


def test_another_image_does_not_wait(checkout: Path) -> None:
    first = build(checkout)
    wait_for_builds(checkout, 1)
    second = build(checkout, "ampere")
    assert "another command" not in second.communicate(timeout=60)[0]
    first.communicate(timeout=60)


def test_a_killed_build_leaves_no_lock(checkout: Path) -> None:
    first = build(checkout)
    wait_for_builds(checkout, 1)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    output = build(checkout).communicate(timeout=60)[0]
    assert "another command" not in output
    assert count_builds(checkout) == 2
