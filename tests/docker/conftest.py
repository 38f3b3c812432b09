"""Image tests run against the built image with a real engine; where that cannot be, they say what is missing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from drivetrain.launch import image_contents, project

REQUIRED = os.environ.get("DRIVETRAIN_IMAGES") == "required"
TAG = project.image_tag()
SLOWER = int(os.environ.get("DRIVETRAIN_TESTS_SLOWER", "1"))
"""How much longer everything may take: `scripts/cgroup2-host` sets it, whose engine is in a virtual machine."""


def find_obstacle(variant: str) -> str | None:
    """Why tests of an image cannot run here."""
    engine = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    if engine.returncode:
        return "no Docker engine answers: `make engine`"
    image = subprocess.run(
        ["docker", "image", "inspect", project.image_name(variant)], capture_output=True, check=False
    )
    if image.returncode:
        return f"{project.image_name(variant)} is not built: `make image-{variant}`"
    # CI seldom builds the others; their tests mount today's code.
    if variant == "cpu" and image_contents.differs(json.loads(image.stdout)[0]["Config"]["Labels"], variant):
        return f"{project.image_name(variant)} was built from other code: `make image-{variant}`"
    return None


@pytest.fixture(autouse=True)
def shared_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the copies of the checkout that tests make use its image."""
    monkeypatch.setenv(project.TAG, TAG)


@pytest.fixture(autouse=True)
def allow_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every command SLOWER times its time."""
    plain = subprocess.run

    def run(*words: Any, timeout: float | None = None, **options: Any) -> Any:
        return plain(*words, timeout=timeout and timeout * SLOWER, **options)

    monkeypatch.setattr(subprocess, "run", run)


@pytest.fixture(scope="session")
def cpu_image() -> str:
    reason = find_obstacle("cpu") if has_client() else "no docker client is installed: `make engine`"
    if reason and REQUIRED:
        pytest.fail(f"image tests are required: {reason}")
    if reason:
        pytest.skip(reason)
    return project.image_name("cpu")


def has_client() -> bool:
    return subprocess.run(["sh", "-c", "command -v docker"], capture_output=True, check=False).returncode == 0


def read_engine_fact(fact: str) -> str:
    """A fact that `docker info` states; the engine may be on another machine than the tests."""
    line = ["docker", "info", "--format", f"{{{{.{fact}}}}}"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def container(cpu_image: str) -> Run:
    """`docker run --rm` of the image, hardened as compose does it."""

    def run(*command: str, options: tuple[str, ...] = (), entrypoint: str | None = None) -> Any:
        hardened = [
            "--read-only",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges:true",
            "--init",
            "--tmpfs=/tmp:exec,mode=1777",
            "--tmpfs=/cache/compile:exec,mode=1777",
            "--network=none",
        ]
        entry = ["--entrypoint", entrypoint] if entrypoint else []
        line = ["docker", "run", "--rm", *hardened, *options, *entry, cpu_image, *command]
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)

    return run


def inspect_container(name: str) -> dict[str, Any]:
    """The engine's own words about a container."""
    out = subprocess.run(["docker", "inspect", name], capture_output=True, text=True, check=True).stdout
    return json.loads(out)[0]
