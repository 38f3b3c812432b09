"""The published images: where they are looked for, and how one becomes the image of this program.

A checkout takes only an image of its very code: releases carry a tag with the digest of what they contain. An installed
program takes the image of its version.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from drivetrain.errors import DeviceError, SpecError
from drivetrain.launch import image_contents
from drivetrain.launch.project import PROJECT, image
from drivetrain.system.console import say
from drivetrain.system.installation import CHECKOUT
from drivetrain.system.version import VERSION

REGISTRY = "DRIVETRAIN_REGISTRY"
"""The environment variable that says where images are published; `none`: nowhere."""
NAME = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*")
ANSWER_SECONDS = 15
"""Timeout in seconds for the registry's answer; the pull itself may take long."""
_OWNER = re.compile(r"github\.com[:/]([\w.-]+)/")


def registry(environ: Mapping[str, str] = os.environ) -> str | None:
    """Where images are published: the variable, else the GitHub registry of the project's owner; None if unknown.

    Raises:
        SpecError: if the variable does not name a registry.
    """
    from_environment = environ.get(REGISTRY)
    if from_environment is None:
        match = _OWNER.search(_source() or "")
        return f"ghcr.io/{match[1].lower()}" if match else None
    if from_environment in ("", "none"):
        return None
    if not NAME.fullmatch(from_environment):
        raise SpecError(
            f"{REGISTRY}={from_environment}: not the name of a registry",
            "HOST[:PORT]/NAME in lower case and without https://, or none",
            f"for example {REGISTRY}=ghcr.io/owner",
        )
    return from_environment


def _source() -> str | None:
    """Where this program's source is: the remote of the checkout, or what the wheel says."""
    if CHECKOUT:
        line = ["git", "-C", str(CHECKOUT), "remote", "get-url", "origin"]
        # The owner of another repository, which this source lies in, does not publish images of it.
        ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        ours["GIT_CEILING_DIRECTORIES"] = str(CHECKOUT.parent)
        try:
            return subprocess.run(line, env=ours, capture_output=True, text=True, check=False).stdout
        except OSError:  # no git
            return None
    try:
        return "\n".join(importlib.metadata.metadata("drivetrain").get_all("Project-URL") or ())
    except importlib.metadata.PackageNotFoundError:
        return None


def tags(word: str) -> str:
    """The tag of the image that has this program's code."""
    return f"contents-{image_contents.digest(image_contents.hashes(word, PROJECT))}" if CHECKOUT else VERSION


def name(word: str) -> str | None:
    """The full name of the published image; None if there is no registry."""
    registry_name = registry()
    return f"{registry_name}/drivetrain/{word}:{tags(word)}" if registry_name else None


def fetch(engine: Any, word: str) -> bool:
    """Pull the published image and give it the local name; False, with a line, if it cannot be had.

    Raises:
        SpecError: if the variable does not name a registry.
    """
    full_name = name(word)
    if full_name is None:
        return False
    digest = _digest(engine, full_name)
    if not digest.startswith("sha256:"):
        say(f"image {full_name} is not to be had: {digest}")
        return False
    say(f"image {full_name} ({digest[:19]}) is published; pulling it, {REGISTRY}=none would not")
    pinned = f"{full_name.rpartition(':')[0]}@{digest}"
    if subprocess.run(["docker", "pull", pinned], stdout=sys.stderr, check=False).returncode:
        say(f"image {full_name} could not be pulled")
        return False
    pulled = engine.images.get(pinned)
    if obstacle := _unfit(pulled.labels, word):
        say(f"image {full_name} is not used: {obstacle}")
        return False
    return bool(pulled.tag(image(word)))


def pull_named(engine: Any, image_name: str) -> None:
    """Pull an image that the user names, unless it is here.

    Raises:
        DeviceError: if it is neither here nor in its registry.
    """
    import docker

    try:
        engine.images.get(image_name)
    except docker.errors.DockerException:
        if subprocess.run(["docker", "pull", image_name], stdout=sys.stderr, check=False).returncode:
            raise DeviceError(
                f"--image {image_name}: it is not here, and cannot be pulled (see above)",
                "an image of this program, by the name that `docker images` shows or that a registry has",
                f"correct the name, or leave --image away, which means {image('cpu')}",
            ) from None


def _digest(engine: Any, image_name: str) -> str:
    """The digest under which a registry has an image, or in a few words why there is none."""
    import requests

    import docker

    usual, engine.api.timeout = engine.api.timeout, ANSWER_SECONDS
    try:
        return str(engine.images.get_registry_data(image_name).id)
    except requests.exceptions.Timeout:
        return f"no answer within {ANSWER_SECONDS} seconds"
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        message = str(getattr(error, "explanation", None) or error)
        return "not published" if "unknown" in message or "denied" in message else message.splitlines()[-1][:150]
    finally:
        engine.api.timeout = usual


def _unfit(labels: Mapping[str, str], word: str) -> str | None:
    """Why an image is not the one of this program; None if it is."""
    if CHECKOUT:
        return "it contains other code than this checkout" if image_contents.differs(labels, word) else None
    version = labels.get("org.opencontainers.image.version")
    return None if version == VERSION else f"it is of version {version}, this program of {VERSION}"
