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
from drivetrain.launch.project import PROJECT, image_name
from drivetrain.system.console import say, say_aside
from drivetrain.system.installation import CHECKOUT, INSTALL_ENGINE, INSTALL_HOST, INSTALL_TORCH

ANSWER_SECONDS = 5
"""Timeout in seconds for answers of a local engine."""
JOIN_GROUP = "sudo usermod -aG docker $USER, then log in again"
"""The command that lets a user use the installed engine."""


@dataclass(frozen=True)
class EngineMissing:
    """The reason why no engine can be used, and what would change that."""

    why: str
    cure: str = f"`{INSTALL_ENGINE}`"


def connect() -> Any:
    """Return a client of the local engine, or an EngineMissing; containers are started with the engine's command line."""
    platform = os.environ.pop("DOCKER_DEFAULT_PLATFORM", "")
    if platform:
        say_aside(f"DOCKER_DEFAULT_PLATFORM={platform} is ignored: the images are for the engine's own processor")
    if shutil.which("docker") is None:
        return EngineMissing("the docker command is not installed here")
    try:
        import docker

    except ImportError:
        return EngineMissing("the docker package is not installed here", f"`{INSTALL_HOST}`")
    try:
        client = docker.from_env(timeout=ANSWER_SECONDS)
        client.ping()
    except docker.errors.DockerException as error:
        return explain_connection_error(str(error))
    client.api.timeout = None  # following a log or waiting for an end takes as long as a run
    return client


def explain_connection_error(message: str) -> EngineMissing:
    """Translate the client's error message into a reason why no engine can be used."""
    if "Permission denied" in message:
        return EngineMissing("one is running, but this user has no permission to use it", JOIN_GROUP)
    for pattern, meaning in (("Connection refused", "none is listening"), ("No such file", "none is running")):
        if pattern in message:
            return EngineMissing(meaning)
    return EngineMissing(message.splitlines()[0][:120])


def provide_image(engine: Any, variant: str) -> None:
    """Pull or build an image that is missing, or that was built from other code than the checkout's.

    Raises:
        DeviceError: if it can neither be pulled nor built.
    """
    import docker

    is_missing = is_to_pull = True
    try:
        labels = engine.images.get(image_name(variant)).labels
        if not CHECKOUT or not image_contents.differs(labels, variant):
            return
        # If only our own code differs, building takes seconds, and pulling takes longer.
        is_missing, is_to_pull = False, image_contents.packages_differ(labels, variant)
    except docker.errors.ImageNotFound:
        pass
    if is_to_pull and published_image.pull_published(engine, variant):
        return
    if CHECKOUT:
        _build_image(variant, is_missing)
    else:
        raise _explain_missing_image(variant)


def look_into_project(image: str) -> list[str]:
    """Return the command that lists the project as a container sees it."""
    mount = f'type=bind,"source={PROJECT}",target=/workspace,readonly'
    # As root of the host, so that neither a closed folder nor labels are in the way.
    options = ["--network", "none", "--userns", "host", "--user", "0", "--security-opt", "label=disable"]
    command = ["docker", "run", "--rm", "--pull", "never", *options, "--mount", mount, "--entrypoint", "ls"]
    return [*command, image, "-A", "/workspace"]


def explain_unseen_project(listing: str | None) -> DeviceError | None:
    """Return an error if the engine has another folder at the project's path, or none: it is on another machine.

    Args:
        listing: what `look_into_project` prints; None if it fails.
    """
    if listing is not None and set(os.listdir(PROJECT)) <= set(listing.splitlines()):
        return None
    address = os.environ.get("DOCKER_HOST")
    where = f"DOCKER_HOST={address}" if address else "`docker context show`, or of the host of this container"
    return DeviceError(
        f"the engine does not see {PROJECT}: it is the engine of {where}, where this path is another folder or none",
        "an engine on this machine, or one whose host has this folder at the same path",
        ("unset DOCKER_HOST" if address else "docker context use default")
        + f"; or, without a container, `{INSTALL_TORCH}`, then `drivetrain train JOB`",
    )


def check_project_is_seen(image: str) -> None:
    """Explain why the engine refused a container: it has ended, or does not see the project."""
    engine = connect()
    if isinstance(engine, EngineMissing):
        raise DeviceError(
            f"the Docker engine does not answer any more: {engine.why}",
            "an engine that runs until the command has ended",
            f"once `docker info` shows the engine, run the same command again, or {engine.cure}",
        )
    done = subprocess.run(look_into_project(image), capture_output=True, text=True, check=False)
    unseen = explain_unseen_project(None if done.returncode else done.stdout)
    if unseen:
        raise unseen


def has_image(variant: str) -> bool:
    """Return whether an engine answers and has the image of this code."""
    engine = connect()
    if isinstance(engine, EngineMissing):
        return False
    import docker

    try:
        engine.images.get(image_name(variant))
    except docker.errors.APIError:
        return False
    return True


def _build_image(variant: str, is_missing: bool) -> None:
    """Build or update the image of this checkout."""
    if is_missing:
        say(f"image {image_name(variant)} does not exist yet; building it (only the first time)")
    else:
        say(f"image {variant} was built from other code than that of this checkout; updating it")
    script = str(PROJECT / "scripts" / "image")
    build = subprocess.run([script, variant], env={**os.environ, "PYTHON": sys.executable}, check=False)
    if build.returncode:
        raise DeviceError(
            f"building the image {variant} failed", "see the output above", f"fix it, then run `make image-{variant}`"
        )


def _explain_missing_image(variant: str) -> DeviceError:
    """Return the error for a missing image in an installed program, which cannot build one."""
    cause, action = f"{published_image.REGISTRY} names no registry", f"{published_image.REGISTRY}=ghcr.io/OWNER"
    published_name = published_image.published_name(variant)
    if published_name:
        cause = f"{published_name} cannot be had"
        action = f"docker pull {published_name}, then docker tag {published_name} {image_name(variant)}"
    return DeviceError(
        f"there is no image {image_name(variant)} here, and {cause}",
        f"an image that was published, loaded with `docker load`, or built in a checkout by `make image-{variant}`",
        f"{action}; or `drivetrain launch JOB --image NAME`",
    )
