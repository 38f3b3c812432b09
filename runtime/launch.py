"""The host side: pick the image and the limits, start the container through compose, follow it to its end.

    engine answers? -> image there? -> runs/ writable? -> compose up -> follow the log -> exit code

Without a reachable engine the same job trains natively, in the local environment, with the same plan.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from runtime import spec
from runtime.errors import DeviceError, SpecError, StorageError
from runtime.hardware import size
from runtime.job import Job

PROJECT = Path(__file__).resolve().parent.parent
ENGINE_TIMEOUT = 5
"""Seconds that a local engine may take to answer."""
SECURE_UID = 1000
"""Whose the files are if root starts a container from a checkout of root's."""


@dataclass(frozen=True)
class Request:
    """What `drivetrain launch` was asked."""

    spec: Path
    assignments: Sequence[str] = ()
    device: str = "cpu"
    new: bool = False


def launch(request: Request) -> int:
    """Train in a container, or natively where no engine answers; returns the exit code.

    Raises:
        DrivetrainError: if the spec is invalid, or the container cannot be started.
    """
    job = spec.load(request.spec, request.assignments)
    engine = connect()
    if isinstance(engine, str):
        print(f"no Docker engine ({engine}): training natively, limits are not enforced; `make engine` sets one up")
        return _native(request)
    word = "cpu"
    _build_if_missing(engine, word)
    return _follow(engine, request, _start(engine, request, job))


def connect() -> Any:
    """A client of the local engine, or why there is none."""
    try:
        import docker

    except ImportError:
        return "the docker package is not installed here"
    try:
        client = docker.from_env(timeout=ENGINE_TIMEOUT)
        client.ping()
    except docker.errors.DockerException as error:
        return _short(error)
    client.api.timeout = None
    return client


def _short(error: Exception) -> str:
    text = str(error)
    for known in ("Permission denied", "Connection refused", "No such file"):
        if known in text:
            meaning = {"Permission denied": "this user may not use it", "Connection refused": "none is listening",
                       "No such file": "none is running"}  # fmt: skip
            return meaning[known]
    return text.splitlines()[0][:120]


def _native(request: Request) -> int:
    """Train in the local environment, which is completed first if torch is missing."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        done = subprocess.run([str(PROJECT / "scripts" / "setup"), "native"], check=False)
        if done.returncode:
            raise DeviceError("the local environment could not be made", "see the lines above",
                              "mend it, or run `make engine` and train in a container")  # fmt: skip
    command = [sys.executable, "-m", "runtime", "train", str(request.spec), *_options(request)]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _options(request: Request) -> list[str]:
    options = [word for assignment in request.assignments for word in ("--set", assignment)]
    return [*options, "--new"] if request.new else options


def _build_if_missing(engine: Any, word: str) -> None:
    import docker

    try:
        _tell_age(engine.images.get(f"drivetrain/{word}:latest"), word)
    except docker.errors.ImageNotFound:
        print(f"image drivetrain/{word}:latest is not here yet: building it, once", flush=True)
        done = subprocess.run([str(PROJECT / "scripts" / "image"), word], check=False)
        if done.returncode:
            raise DeviceError(f"the image {word} could not be built", "see the lines above",
                              f"mend it, then `make image-{word}`") from None  # fmt: skip


def _tell_age(image: Any, word: str) -> None:
    """An image holds the code it was built from; say so where the checkout has moved on."""
    built = image.labels.get("org.opencontainers.image.revision", "unknown")
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    if head.returncode == 0 and built not in ("unknown", head.stdout.strip()):
        print(f"image drivetrain/{word} was built from revision {built}, the checkout is at {head.stdout.strip()}: "
              "`make rebuild` brings it up to date")  # fmt: skip


def _start(engine: Any, request: Request, job: Job) -> Any:
    """Start the compose service under the job's limits; returns the container."""
    project = f"drivetrain-{job.name.lower().replace('.', '-')}"
    _refuse_if_running(engine, project)
    environment = {**os.environ, **_limits(engine, job), **_owner()}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as override:
        json.dump(_override(request, job), override)
        override.flush()
        command = ["docker", "compose", "--project-directory", str(PROJECT), "-p", project,
                   "-f", str(PROJECT / "compose.yaml"), "-f", override.name]  # fmt: skip
        done = subprocess.run(
            [*command, "up", "--detach", "--force-recreate", "--quiet-pull", "trainer"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    found = _containers(engine, project, "trainer")
    if done.returncode or not found:
        for container in _containers(engine, project, "prepare"):
            print(container.logs().decode(errors="replace"), end="", file=sys.stderr)
        raise DeviceError(
            f"the container could not be started:\n{done.stderr.strip()[-2000:]}",
            "see the engine's own words above",
            "`docker compose config` shows what was asked of it",
        )
    return found[0]


def _containers(engine: Any, project: str, service: str) -> list[Any]:
    labels = [f"com.docker.compose.project={project}", f"com.docker.compose.service={service}"]
    return list(engine.containers.list(all=True, filters={"label": labels}))


def _refuse_if_running(engine: Any, project: str) -> None:
    for container in _containers(engine, project, "trainer"):
        if container.status == "running":
            raise StorageError(
                f"{container.name} is already training this job",
                "one container per job name",
                f"follow it with `docker logs -f {container.name}`, or end it with `make stop`",
            )


def _limits(engine: Any, job: Job) -> dict[str, str]:
    """The job's limits as the variables that compose/base.yaml reads; absent ones keep its defaults."""
    info = engine.info()
    cpus = min(job.limits.cpus or 2.0, float(info["NCPU"]))
    if job.limits.cpus and cpus < job.limits.cpus:
        print(f"limits.cpus: {job.limits.cpus:g} asked for, this host has {cpus:g}")
    values = {"DRIVETRAIN_CPUS": f"{cpus:g}"}
    if job.limits.memory:
        values |= {"DRIVETRAIN_MEMORY": job.limits.memory, "DRIVETRAIN_RESERVATION": _reservation(job.limits.memory)}
    if job.limits.shm:
        values["DRIVETRAIN_SHM"] = job.limits.shm
    return values


def _reservation(memory: str) -> str:
    """The default reservation of 1 GiB, never more than the limit."""
    from runtime.job.values import size_bytes

    return str(min(1 << 30, size_bytes(memory)))


def _owner() -> dict[str, str]:
    """Whose the run's files will be: the caller's; for root the owner of the checkout, else uid 1000."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        owner = PROJECT.stat()
        uid, gid = (owner.st_uid, owner.st_gid) if owner.st_uid else (SECURE_UID, SECURE_UID)
        why = "the owner of this checkout" if owner.st_uid else "because the checkout is root's own"
        print(f"started by root: files in runs/ will belong to uid {uid}, {why}")
    return {"DRIVETRAIN_UID": str(uid), "DRIVETRAIN_GID": str(gid)}


def _override(request: Request, job: Job) -> dict[str, Any]:
    """The compose file of this one job: its command, and its folders outside the project, read-only."""
    command = ["train", _inside(request.spec), *_options(request)]
    mounts = sorted({str(path) for path in _outside(request.spec, job)})
    volumes = [{"type": "bind", "source": path, "target": path, "read_only": True} for path in mounts]
    return {"services": {"trainer": {"command": command, "volumes": volumes}}}


def _inside(path: Path) -> str:
    """A path as the container sees it: relative to the project if it lies in there."""
    full = path.resolve()
    return str(full.relative_to(PROJECT)) if full.is_relative_to(PROJECT) else str(full)


def _outside(path: Path, job: Job) -> Iterator[Path]:
    """What the job needs that the project folder does not hold: the folder of the spec, and data by absolute path."""
    if not path.resolve().is_relative_to(PROJECT):
        yield path.resolve().parent
    for key, text in job.data_paths():
        given = job.resolve(text)
        if given.resolve().is_relative_to(PROJECT) or given.resolve().is_relative_to(path.resolve().parent):
            continue
        if not Path(text).expanduser().is_absolute():
            raise SpecError(f"{job.document.place(key)}: {'.'.join(key)}: {text!r} leads out of the project",
                            "a path inside the project, or an absolute path, which is mounted read-only",
                            f"write {given.resolve()}")  # fmt: skip
        yield given


def _follow(engine: Any, request: Request, container: Any) -> int:
    """Print the container's log until it ends; a signal to us stops it gracefully."""

    def stop(number: int, frame: FrameType | None) -> None:
        container.kill(signal="SIGTERM")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    for chunk in container.logs(stream=True, follow=True):
        sys.stdout.write(chunk.decode(errors="replace"))
        sys.stdout.flush()
    code = int(container.wait()["StatusCode"])
    container.reload()
    if container.attrs["State"].get("OOMKilled"):
        limit = size(container.attrs["HostConfig"]["Memory"])
        print(f"the container reached its memory limit of {limit} and was killed for it\n"
              "  possible: a smaller train.batch_size or optimize.micro_batch, or a higher limits.memory\n"
              f"  do:       for example --set optimize.micro_batch=8, then run the same command again",
              file=sys.stderr)  # fmt: skip
    return code
