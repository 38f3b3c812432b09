"""Checks the container engine and its kind, its plugins, and the local images."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from drivetrain.cli.doctor.finding import Finding, fail, ok, warn
from drivetrain.cli.doctor.snapshot import Snapshot
from drivetrain.launch import docker_engine, engine_traits, image_contents
from drivetrain.launch.project import PROJECT, container_prefix, image_name
from drivetrain.system import installation
from drivetrain.system.files import parse_row
from drivetrain.system.run_records import read_mapping, read_objects

ENGINE, COMPOSE = (20, 10), (2, 20)
"""Versions required by the Dockerfile (`RUN --mount`) and compose.yaml (`include`)."""
OLD_IMAGE_SECONDS = 90 * 86400
"""Seconds; an older image lacks too many security fixes of its distribution."""
IMAGES = ("cpu", "ampere", "legacy")


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the engine, only on a host: in a container it is deliberately out of reach."""
    if snapshot.hardware.place != "host":
        yield ok("engine", f"running inside a container ({snapshot.hardware.place}); run doctor on the host too")
        return
    server = read_mapping(_ask(snapshot, "version"), "Server")
    if "Version" not in server:
        yield _explain_silence(snapshot)
        return
    version = str(server["Version"])
    if is_podman(server):
        yield ok("engine", f"Podman {version}")
    elif parse_version(version) < ENGINE:
        yield fail("engine", f"{version}; the images need 20.10 or newer", installation.INSTALL_ENGINE)
    else:
        yield ok("engine", version)
    yield from check_kind(snapshot, server)
    yield from _check_plugins(snapshot)
    yield from _list_ended_containers(snapshot)
    for variant in IMAGES:
        yield from _check_image(snapshot, variant)


def parse_version(version: str) -> tuple[int, ...]:
    """Parse `v2.26.1-4` as (2, 26, 1)."""
    match = re.search(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _ask(snapshot: Snapshot, command: str) -> Mapping[str, Any]:
    """Return the engine's answer to a command, such as `version`; empty without an answer."""
    return parse_row(snapshot.run(["docker", command, "--format", "{{json .}}"]) or "") or {}


def _explain_silence(snapshot: Snapshot) -> Finding:
    if snapshot.run(["docker", "--version"]) is None:
        text = "not installed: jobs train without a container, so their limits are not enforced"
        return warn("engine", text, installation.INSTALL_ENGINE)
    sock = snapshot.run(["stat", "-c", "%U %G", "/var/run/docker.sock"])
    if sock and snapshot.uid != 0:
        return warn(
            "engine",
            f"user {snapshot.uid} has no permission to use it; its socket belongs to {sock}",
            "sudo usermod -aG docker $USER, then log in again",
        )
    text = "the client is installed, but no engine is running: jobs train without a container"
    return warn("engine", text, installation.INSTALL_ENGINE)


def _check_plugins(snapshot: Snapshot) -> Iterator[Finding]:
    compose = snapshot.run(["docker", "compose", "version", "--short"])
    if compose is None:
        yield fail("compose", "docker compose is missing", installation.INSTALL_ENGINE)
    elif parse_version(compose) < COMPOSE:
        yield fail("compose", f"{compose}; compose.yaml needs 2.20 or newer", installation.INSTALL_ENGINE)
    else:
        yield ok("compose", compose)
    buildx = snapshot.run(["docker", "buildx", "version"])
    if buildx is None:
        yield warn("buildx", "missing: existing images run, but no image can be built", installation.INSTALL_ENGINE)
    else:
        yield ok("buildx", ".".join(map(str, parse_version(buildx))))


def _list_ended_containers(snapshot: Snapshot) -> Iterator[Finding]:
    """List containers of this checkout that have ended; the engine keeps them and their logs."""
    line = ["docker", "ps", "-aq", "--filter", f"name=^{container_prefix()}-", "--filter", "status=exited"]
    if count := len((snapshot.run(line) or "").split()):
        yield ok(
            "containers",
            f"{count} of this checkout ended and are kept for `make logs`; `make prune` removes them, leaves runs/, and "
            "empties the caches that your checkouts share",
        )


def _check_image(snapshot: Snapshot, variant: str) -> Iterator[Finding]:
    title = f"image {variant}"
    answer = snapshot.run(["docker", "image", "inspect", image_name(variant)])
    if answer is None:
        return
    data = json.loads(answer)[0]
    if variant == "cpu" and snapshot.project == PROJECT:
        listing = snapshot.run(docker_engine.look_into_project(image_name(variant)))
        if unseen := docker_engine.explain_unseen_project(listing):
            yield fail("project", unseen.given, unseen.action)
    labels = (data.get("Config") or {}).get("Labels") or {}
    built = labels.get("org.opencontainers.image.revision", "unknown")
    age = snapshot.now - datetime.fromisoformat(re.sub(r"\.\d+", "", data["Created"])).timestamp()
    if variant != "cpu" and snapshot.hardware.gpu is None:
        yield ok(title, f"revision {built}; not used on this host, which has no GPU")
    elif age > OLD_IMAGE_SECONDS:
        yield warn(title, f"built {age / 86400:.0f} days ago: it lacks recent security fixes", f"make image-{variant}")
    elif snapshot.project and image_contents.differs(labels, variant, snapshot.project):
        yield ok(title, f"revision {built}, of other code than this checkout: the next start updates it")
    else:
        yield ok(title, f"revision {built}, {age / 86400:.0f} days old")


def check_kind(snapshot: Snapshot, server: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the limits of this kind of engine: rootless, Podman, a snap, SELinux.

    Args:
        server: what `docker version` says of the engine.
    """
    engine = engine_traits.find(_ask(snapshot, "info"))
    if is_podman(server):
        yield warn(
            "engine kind",
            "Podman: jobs train in it through docker compose, but it needs the package catatonit, and docker buildx "
            "builds an image only if docker.io/moby/buildkit can be pulled",
            f"sudo apt-get install catatonit; for builds a Docker engine: {installation.INSTALL_ENGINE}",
        )
    if engine.rootless:
        yield _check_rootless(engine)
    elif engine.unenforced:
        yield warn("limits", engine.note().removeprefix("limits: "), "enable the cgroup controllers of the host")
    if engine.snap:
        yield _check_snap(snapshot)
    if engine.selinux:
        yield ok("SELinux", "enforced by the engine: the project is relabelled for containers, data elsewhere is not")


def is_podman(server: Mapping[str, Any]) -> bool:
    """Return whether the engine is Podman, whose versions are counted in another way."""
    return any("podman" in str(component.get("Name", "")).lower() for component in read_objects(server, "Components"))


def _check_rootless(engine: engine_traits.EngineTraits) -> Finding:
    whose = "rootless: uid 0 in a container is the user of the engine, and files of runs are that user's"
    if not engine.unenforced:
        return ok("engine kind", whose)
    return warn("engine kind", f"{whose}; {', '.join(engine.unenforced)} cannot be limited", engine.explain_limits()[1])


def _check_snap(snapshot: Snapshot) -> Finding:
    home = Path(snapshot.environ.get("HOME") or "/root")
    project = snapshot.project
    if project and (not project.is_relative_to(home) or project.relative_to(home).parts[0].startswith(".")):
        return warn(
            "engine kind",
            f"a snap, which sees only files below {home} that are not hidden, and the project is in {project}",
            f"move the project below {home}, or install an engine without snap: {installation.INSTALL_ENGINE}",
        )
    return ok("engine kind", f"a snap: data of a job must lie below {home} and must not be hidden")
