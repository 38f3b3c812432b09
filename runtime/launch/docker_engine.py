"""The Docker engine of this host, or why none can be used; builds images that are missing and reports outdated ones."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import DeviceError
from runtime.launch.project import PROJECT, image

TIMEOUT = 5
"""Timeout in seconds for answers of a local engine."""
GROUP = "sudo usermod -aG docker $USER, then log in again"
"""The command that lets a user use the installed engine."""


@dataclass(frozen=True)
class EngineMissing:
    """No engine can be used."""

    why: str
    cure: str = "`make engine`"


def connect() -> Any:
    """A client of the local engine, or an EngineMissing."""
    try:
        import docker

    except ImportError:
        return EngineMissing("the docker package is not installed here", "`make setup`")
    try:
        client = docker.from_env(timeout=TIMEOUT)
        client.ping()
    except docker.errors.DockerException as error:
        return absent(str(error))
    client.api.timeout = None
    return client


def absent(words: str) -> EngineMissing:
    """Translate the client's error message."""
    if "Permission denied" in words:
        return EngineMissing("one is running, but this user has no permission to use it", GROUP)
    for known, meaning in (("Connection refused", "none is listening"), ("No such file", "none is running")):
        if known in words:
            return EngineMissing(meaning)
    return EngineMissing(words.splitlines()[0][:120])


def build_if_missing(engine: Any, word: str) -> None:
    """Build an image if it is missing; report if it is older than the checkout.

    Raises:
        DeviceError: if it cannot be built.
    """
    import docker

    try:
        _tell_age(engine.images.get(image(word)).labels, word)
    except docker.errors.ImageNotFound:
        print(f"image {image(word)} does not exist yet; building it (only the first time)", flush=True)
        done = subprocess.run([str(PROJECT / "scripts" / "image"), word], check=False)
        if done.returncode:
            raise DeviceError(
                f"building the image {word} failed", "see the output above", f"fix it, then run `make image-{word}`"
            ) from None


def _tell_age(labels: Mapping[str, str], word: str, project: Path = PROJECT) -> None:
    """Report if the checkout has changed since the image, which contains the code, was built."""
    built = labels.get("org.opencontainers.image.revision", "unknown")
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=project, capture_output=True, text=True, check=False
    )
    if head.returncode == 0 and built not in ("unknown", head.stdout.strip()):
        print(
            f"image {image(word)} was built from revision {built}, the checkout is at {head.stdout.strip()}: "
            "`make rebuild` updates it"
        )
