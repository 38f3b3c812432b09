"""The Docker engine of this host, or why none can be used; builds images that are missing or hold other code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from drivetrain.errors import DeviceError
from drivetrain.launch import image_contents, published_image
from drivetrain.launch.project import PROJECT, image
from drivetrain.system.console import say
from drivetrain.system.installation import CHECKOUT, ENGINE, HOST

ANSWER_SECONDS = 5
"""Timeout in seconds for answers of a local engine."""
GROUP = "sudo usermod -aG docker $USER, then log in again"
"""The command that lets a user use the installed engine."""


@dataclass(frozen=True)
class EngineMissing:
    """No engine can be used."""

    why: str
    cure: str = f"`{ENGINE}`"


def connect() -> Any:
    """A client of the local engine, or an EngineMissing; containers are started with the engine's command line."""
    if shutil.which("docker") is None:
        return EngineMissing("the docker command is not installed here")
    try:
        import docker

    except ImportError:
        return EngineMissing("the docker package is not installed here", f"`{HOST}`")
    try:
        client = docker.from_env(timeout=ANSWER_SECONDS)
        client.ping()
    except docker.errors.DockerException as error:
        return absent(str(error))
    client.api.timeout = None
    return client


def absent(message: str) -> EngineMissing:
    """Translate the client's error message."""
    if "Permission denied" in message:
        return EngineMissing("one is running, but this user has no permission to use it", GROUP)
    for pattern, meaning in (("Connection refused", "none is listening"), ("No such file", "none is running")):
        if pattern in message:
            return EngineMissing(meaning)
    return EngineMissing(message.splitlines()[0][:120])


def provide_image(engine: Any, word: str) -> None:
    """Pull or build an image that is missing, or that was built from other code than that of the checkout.

    Raises:
        DeviceError: if it can neither be pulled nor built.
    """
    import docker

    missing = published = True
    try:
        labels = engine.images.get(image(word)).labels
        if not CHECKOUT or not image_contents.differs(labels, word):
            return
        missing, published = False, image_contents.other_packages(labels, word)  # if the same, a build takes seconds
    except docker.errors.ImageNotFound:
        pass
    if published and published_image.fetch(engine, word):
        return
    if CHECKOUT:
        _build(word, missing)
    else:
        raise _unpublished_error(word)


def has_image(word: str) -> bool:
    """Whether an engine answers and has the image of this code for a word."""
    engine = connect()
    if isinstance(engine, EngineMissing):
        return False
    import docker

    try:
        engine.images.get(image(word))
    except docker.errors.APIError:
        return False
    return True


def _build(word: str, missing: bool) -> None:
    if missing:
        say(f"image {image(word)} does not exist yet; building it (only the first time)")
    else:
        say(f"image {word} was built from other code than that of this checkout; updating it")
    script = str(PROJECT / "scripts" / "image")
    done = subprocess.run([script, word], env={**os.environ, "PYTHON": sys.executable}, check=False)
    if done.returncode:
        raise DeviceError(
            f"building the image {word} failed", "see the output above", f"fix it, then run `make image-{word}`"
        )


def _unpublished_error(word: str) -> DeviceError:
    """The error of an installed program, which cannot build an image."""
    published = published_image.name(word)
    pull = f"docker pull {published}, then docker tag {published} {image(word)}" if published else None
    return DeviceError(
        f"there is no image {image(word)} here"
        + (f", and {published} cannot be had" if published else f", and {published_image.REGISTRY} names no registry"),
        "an image that was published, loaded with `docker load`, or built in a checkout by `make image-" + word + "`",
        f"{pull or published_image.REGISTRY + '=ghcr.io/OWNER'}; or `drivetrain launch JOB --image NAME`",
    )
