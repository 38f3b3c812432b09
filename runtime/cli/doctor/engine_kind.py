"""Checks which kind of engine answers, and what does not work with it: rootless, Podman, a snap, SELinux."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from runtime.cli.doctor.finding import Finding, ok, warn
from runtime.cli.doctor.snapshot import Snapshot
from runtime.launch import engine_traits
from runtime.system import installation


def check(snapshot: Snapshot, version: str | None) -> Iterator[Finding]:
    """What is unusual about the engine.

    Args:
        snapshot: the machine.
        version: the answer of `docker version`.
    """
    try:
        info = json.loads(snapshot.run(["docker", "info", "--format", "{{json .}}"]) or "{}")
    except ValueError:
        return
    engine = engine_traits.find(info)
    if is_podman(version):
        yield warn(
            "engine kind",
            "Podman: jobs train in it through docker compose, but it needs the package catatonit, and docker buildx "
            "builds an image only if docker.io/moby/buildkit can be pulled",
            f"sudo apt-get install catatonit; for builds a Docker engine: {installation.ENGINE}",
        )
    if engine.rootless:
        yield _rootless(engine)
    elif engine.unenforced:
        yield warn("limits", engine.note().removeprefix("limits: "), "enable the cgroup controllers of the host")
    if engine.snap:
        yield _snap(snapshot)
    if engine.selinux:
        yield ok("SELinux", "enforced by the engine: the project is relabelled for containers, data elsewhere is not")


def is_podman(version: str | None) -> bool:
    """Whether the engine is Podman, by the answer of `docker version`; its versions are counted in another way."""
    try:
        parts = (json.loads(version or "{}").get("Server") or {}).get("Components") or []
    except ValueError:
        return False
    return any("podman" in str(part.get("Name", "")).lower() for part in parts)


def _rootless(engine: engine_traits.EngineTraits) -> Finding:
    whose = "rootless: uid 0 in a container is the user of the engine, and files of runs are that user's"
    if not engine.unenforced:
        return ok("engine kind", whose)
    return warn("engine kind", f"{whose}; {', '.join(engine.unenforced)} cannot be limited", engine.cure())


def _snap(snapshot: Snapshot) -> Finding:
    home = Path(snapshot.environ.get("HOME") or "/root")
    project = snapshot.project
    if project and (not project.is_relative_to(home) or project.relative_to(home).parts[0].startswith(".")):
        return warn(
            "engine kind",
            f"a snap, which sees only files below {home} that are not hidden, and the project is in {project}",
            f"move the project below {home}, or install an engine without snap: {installation.ENGINE}",
        )
    return ok("engine kind", f"a snap: data of a job must lie below {home} and must not be hidden")
