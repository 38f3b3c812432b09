"""The published images: finds the registry, pulls an image, and gives it the name of this program's image.

A checkout takes only an image with exactly its code: images of a release have a tag with the digest of their contents.
An installed program takes the image of its version.
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
from drivetrain.launch.project import PROJECT, image_name
from drivetrain.supervisor import provenance
from drivetrain.system.console import say
from drivetrain.system.installation import CHECKOUT
from drivetrain.system.version import VERSION

REGISTRY = "DRIVETRAIN_REGISTRY"
"""The environment variable that says where images are published; `none`: nowhere."""
REGISTRY_NAME = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*")
ANSWER_SECONDS = 15
"""Timeout in seconds for the registry's answer; the pull itself may take long."""
_OWNER = re.compile(r"github\.com[:/]([\w.-]+)/")


def find_registry(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the registry: the variable, else the GitHub registry of the project's owner; None if unknown.

    Raises:
        SpecError: if the variable does not name a registry.
    """
    from_environment = environ.get(REGISTRY)
    if from_environment is None:
        match = _OWNER.search(_find_source() or "")
        return f"ghcr.io/{match[1].lower()}" if match else None
    if from_environment in ("", "none"):
        return None
    if not REGISTRY_NAME.fullmatch(from_environment):
        raise SpecError(
            f"{REGISTRY}={from_environment}: not the name of a registry",
            "HOST[:PORT]/NAME in lower case and without https://, or none",
            f"for example {REGISTRY}=ghcr.io/owner",
        )
    return from_environment


def _find_source() -> str | None:
    """Return text with the address of this program's source: the remote of the checkout, or the wheel's metadata."""
    if CHECKOUT:
        return provenance.read_origin(CHECKOUT)
    try:
        return "\n".join(importlib.metadata.metadata("drivetrain").get_all("Project-URL") or ())
    except importlib.metadata.PackageNotFoundError:
        return None


def published_tag(variant: str) -> str:
    """Return the tag of the published image that has this program's code."""
    if not CHECKOUT:
        return VERSION
    return f"contents-{image_contents.combine_hashes(image_contents.hash_files(variant, PROJECT))}"


def published_name(variant: str) -> str | None:
    """Return the full name of the published image; None if there is no registry."""
    registry_name = find_registry()
    return f"{registry_name}/drivetrain/{variant}:{published_tag(variant)}" if registry_name else None


def pull_published(engine: Any, variant: str) -> bool:
    """Pull the published image and give it the local name; prints a line and returns False if that is impossible.

    Raises:
        SpecError: if the variable does not name a registry.
    """
    full_name = published_name(variant)
    if full_name is None:
        return False
    digest = _ask_digest(engine, full_name)
    if not digest.startswith("sha256:"):
        say(f"image {full_name} is not to be had: {digest}")
        return False
    say(f"image {full_name} ({digest[:19]}) is published; pulling it, {REGISTRY}=none would not")
    name_with_digest = f"{full_name.rpartition(':')[0]}@{digest}"
    if subprocess.run(["docker", "pull", name_with_digest], stdout=sys.stderr, check=False).returncode:
        say(f"image {full_name} could not be pulled")
        return False
    pulled = engine.images.get(name_with_digest)
    obstacle = _find_mismatch(pulled.labels, variant)
    if obstacle:
        say(f"image {full_name} is not used: {obstacle}")
        return False
    return bool(pulled.tag(image_name(variant)))


def pull_named(engine: Any, full_name: str) -> None:
    """Pull an image that the user names, unless it is here.

    Raises:
        DeviceError: if it is neither here nor in its registry.
    """
    import docker

    try:
        engine.images.get(full_name)
    except docker.errors.DockerException:
        if subprocess.run(["docker", "pull", full_name], stdout=sys.stderr, check=False).returncode:
            raise DeviceError(
                f"--image {full_name}: it is not here, and cannot be pulled (see above)",
                "an image of this program, by the name that `docker images` shows or that a registry has",
                f"correct the name, or leave --image away, which means {image_name('cpu')}",
            ) from None


def _ask_digest(engine: Any, full_name: str) -> str:
    """Return the digest under which a registry has an image, or a few words on why there is none."""
    import requests

    import docker

    previous_timeout, engine.api.timeout = engine.api.timeout, ANSWER_SECONDS
    try:
        return str(engine.images.get_registry_data(full_name).id)
    except requests.exceptions.Timeout:
        return f"no answer within {ANSWER_SECONDS} seconds"
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        message = str(getattr(error, "explanation", None) or error)
        return "not published" if "unknown" in message or "denied" in message else message.splitlines()[-1][:150]
    finally:
        engine.api.timeout = previous_timeout


def _find_mismatch(labels: Mapping[str, str], variant: str) -> str | None:
    """Return why an image with these labels is not the one of this program; None if it is."""
    if CHECKOUT:
        return "it contains other code than this checkout" if image_contents.differs(labels, variant) else None
    version = labels.get("org.opencontainers.image.version")
    return None if version == VERSION else f"it is of version {version}, this program of {VERSION}"
