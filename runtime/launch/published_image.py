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

from runtime.errors import DeviceError, SpecError
from runtime.launch import image_contents
from runtime.launch.project import PROJECT, image
from runtime.system.console import say
from runtime.system.installation import CHECKOUT
from runtime.system.version import VERSION

REGISTRY = "DRIVETRAIN_REGISTRY"
"""The environment variable that says where images are published; `none`: nowhere."""
NAME = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*")
TIMEOUT = 15
"""Timeout in seconds for the registry's answer; the pull itself may take long."""
_OWNER = re.compile(r"github\.com[:/]([\w.-]+)/")


def registry(environ: Mapping[str, str] = os.environ) -> str | None:
    """Where images are published: the variable, else the GitHub registry of the project's owner; None if unknown.

    Raises:
        SpecError: if the variable does not name a registry.
    """
    given = environ.get(REGISTRY)
    if given is None:
        found = _OWNER.search(_source() or "")
        return f"ghcr.io/{found[1].lower()}" if found else None
    if given in ("", "none"):
        return None
    if not NAME.fullmatch(given):
        raise SpecError(
            f"{REGISTRY}={given}: not the name of a registry",
            "HOST[:PORT]/NAME in lower case and without https://, or none",
            f"for example {REGISTRY}=ghcr.io/owner",
        )
    return given


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
    place = registry()
    return f"{place}/drivetrain/{word}:{tags(word)}" if place else None


def fetch(engine: Any, word: str) -> bool:
    """Pull the published image and give it the local name; False, with a line, if it cannot be had.

    Raises:
        SpecError: if the variable does not name a registry.
    """
    wanted = name(word)
    if wanted is None:
        return False
    found = _digest(engine, wanted)
    if not found.startswith("sha256:"):
        say(f"image {wanted} is not to be had: {found}")
        return False
    say(f"image {wanted} ({found[:19]}) is published; pulling it, {REGISTRY}=none would not")
    pinned = f"{wanted.rpartition(':')[0]}@{found}"
    if subprocess.run(["docker", "pull", pinned], stdout=sys.stderr, check=False).returncode:
        say(f"image {wanted} could not be pulled")
        return False
    pulled = engine.images.get(pinned)
    if why := _unfit(pulled.labels, word):
        say(f"image {wanted} is not used: {why}")
        return False
    return bool(pulled.tag(image(word)))


def named(engine: Any, wanted: str) -> None:
    """Pull an image that the user names, unless it is here.

    Raises:
        DeviceError: if it is neither here nor in its registry.
    """
    import docker

    try:
        engine.images.get(wanted)
    except docker.errors.DockerException:
        if subprocess.run(["docker", "pull", wanted], stdout=sys.stderr, check=False).returncode:
            raise DeviceError(
                f"--image {wanted}: it is not here, and cannot be pulled (see above)",
                "an image of this program, by the name that `docker images` shows or that a registry has",
                f"correct the name, or leave --image away, which means {image('cpu')}",
            ) from None


def _digest(engine: Any, wanted: str) -> str:
    """The digest under which a registry has an image, or in a few words why there is none."""
    import requests

    import docker

    usual, engine.api.timeout = engine.api.timeout, TIMEOUT
    try:
        return str(engine.images.get_registry_data(wanted).id)
    except requests.exceptions.Timeout:
        return f"no answer within {TIMEOUT} seconds"
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        words = str(getattr(error, "explanation", None) or error)
        return "not published" if "unknown" in words or "denied" in words else words.splitlines()[-1][:150]
    finally:
        engine.api.timeout = usual


def _unfit(labels: Mapping[str, str], word: str) -> str | None:
    """Why an image is not the one of this program; None if it is."""
    if CHECKOUT:
        return "it contains other code than this checkout" if image_contents.differs(labels, word) else None
    version = labels.get("org.opencontainers.image.version")
    return None if version == VERSION else f"it is of version {version}, this program of {VERSION}"
