"""Checks the container engine, its plugins, and the local images."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime

from runtime.cli.doctor import engine_kind
from runtime.cli.doctor.finding import Finding, fail, ok, warn
from runtime.cli.doctor.snapshot import Snapshot
from runtime.launch import image_contents
from runtime.launch.project import image, name
from runtime.system import installation

ENGINE, COMPOSE = (20, 10), (2, 20)
"""Versions required by the Dockerfile (`RUN --mount`) and compose.yaml (`include`)."""
OLD = 90 * 86400
"""Seconds; an older image lacks too many security fixes of its distribution."""
WORDS = ("cpu", "ampere", "legacy")


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Only on a host: in a container the engine is deliberately out of reach."""
    if snapshot.hardware.place != "host":
        yield ok("engine", f"running inside a container ({snapshot.hardware.place}); run doctor on the host too")
        return
    answer = snapshot.run(["docker", "version", "--format", "{{json .}}"])
    version = _server(answer)
    if version is None:
        yield _silent(snapshot)
        return
    if engine_kind.is_podman(answer):
        yield ok("engine", f"Podman {version}")
    elif numbers(version) < ENGINE:
        yield fail("engine", f"{version}; the images need 20.10 or newer", installation.ENGINE)
    else:
        yield ok("engine", version)
    yield from engine_kind.check(snapshot, answer)
    yield from _plugins(snapshot)
    yield from _ended(snapshot)
    for word in WORDS:
        yield from _image(snapshot, word)


def numbers(version: str) -> tuple[int, ...]:
    """`v2.26.1-4` as (2, 26, 1)."""
    found = re.search(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _server(answer: str | None) -> str | None:
    try:
        return str(json.loads(answer or "")["Server"]["Version"])
    except (ValueError, KeyError, TypeError):
        return None


def _silent(snapshot: Snapshot) -> Finding:
    if snapshot.run(["docker", "--version"]) is None:
        return warn(
            "engine",
            "not installed: jobs train without a container, so their limits are not enforced",
            installation.ENGINE,
        )
    sock = snapshot.run(["stat", "-c", "%U %G", "/var/run/docker.sock"])
    if sock and snapshot.uid != 0:
        return warn(
            "engine",
            f"user {snapshot.uid} has no permission to use it; its socket belongs to {sock}",
            "sudo usermod -aG docker $USER, then log in again",
        )
    return warn(
        "engine",
        "the client is installed, but no engine is running: jobs train without a container",
        installation.ENGINE,
    )


def _plugins(snapshot: Snapshot) -> Iterator[Finding]:
    compose = snapshot.run(["docker", "compose", "version", "--short"])
    if compose is None:
        yield fail("compose", "docker compose is missing", installation.ENGINE)
    elif numbers(compose) < COMPOSE:
        yield fail("compose", f"{compose}; compose.yaml needs 2.20 or newer", installation.ENGINE)
    else:
        yield ok("compose", compose)
    buildx = snapshot.run(["docker", "buildx", "version"])
    if buildx is None:
        yield warn("buildx", "missing: existing images run, but no image can be built", installation.ENGINE)
    else:
        yield ok("buildx", ".".join(map(str, numbers(buildx))))


def _ended(snapshot: Snapshot) -> Iterator[Finding]:
    """Containers of this checkout that have ended; the engine keeps them and their logs."""
    line = ["docker", "ps", "-aq", "--filter", f"name=^{name()}-", "--filter", "status=exited"]
    if count := len((snapshot.run(line) or "").split()):
        yield ok(
            "containers",
            f"{count} of this checkout ended and are kept for `make logs`; `make prune` removes them, leaves runs/, and "
            "empties the caches that your checkouts share",
        )


def _image(snapshot: Snapshot, word: str) -> Iterator[Finding]:
    title = f"image {word}"
    answer = snapshot.run(["docker", "image", "inspect", image(word)])
    if answer is None:
        return
    data = json.loads(answer)[0]
    labels = (data.get("Config") or {}).get("Labels") or {}
    built = labels.get("org.opencontainers.image.revision", "unknown")
    age = snapshot.now - datetime.fromisoformat(re.sub(r"\.\d+", "", data["Created"])).timestamp()
    if word != "cpu" and snapshot.hardware.gpu is None:
        yield ok(title, f"revision {built}; not used on this host, which has no GPU")
    elif age > OLD:
        yield warn(title, f"built {age / 86400:.0f} days ago: it lacks recent security fixes", f"make image-{word}")
    elif snapshot.project and image_contents.differs(labels, word, snapshot.project):
        yield ok(title, f"revision {built}, of other code than this checkout: the next start updates it")
    else:
        yield ok(title, f"revision {built}, {age / 86400:.0f} days old")
