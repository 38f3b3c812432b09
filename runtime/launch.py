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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from runtime import allowance, gpus, guard, image, spec, toolkit
from runtime.detect import detect
from runtime.errors import DeviceError, SpecError, StorageError
from runtime.hardware import size
from runtime.job import Job

PROJECT = Path(__file__).resolve().parent.parent
ENGINE_TIMEOUT = 5
"""Seconds that a local engine may take to answer."""


@dataclass(frozen=True)
class Request:
    """What `drivetrain launch` was asked."""

    spec: Path
    assignments: Sequence[str] = ()
    device: str = "cpu"
    flags: Sequence[str] = ()
    """Options of `train` that are handed on."""


def launch(request: Request) -> int:
    """Train in a container, or natively where no engine answers; returns the exit code.

    Raises:
        DrivetrainError: if the spec is invalid, or the container cannot be started.
    """
    job = spec.load(request.spec, request.assignments)
    word = _word(request, job)
    engine = connect()
    if isinstance(engine, str):
        print(f"no Docker engine ({engine}): training natively, limits are not enforced; `make engine` sets one up")
        return _native(request, job, word)
    variables = allowance.variables(engine.info(), job, gpu=word != "cpu") | allowance.owner(PROJECT)
    if word != "cpu":
        variables |= toolkit.find(engine.info()).variables()
    build_if_missing(engine, word)
    return _follow(engine, _start(engine, request, job, word, variables))


def _word(request: Request, job: Job) -> str:
    """The image, by the chip and the driver of this host."""
    if request.device == "cpu":
        return "cpu"
    if job.limits.gpus == "none":
        raise SpecError("--device gpu, and limits.gpus is none in the job", "one of them", "`make train-cpu`")
    machine = gpus.used(detect(Path("runs")), job.limits.gpus)
    word = guard.launchable(machine)
    print(f"image {word}: {image.choose(machine).reason}")
    if machine.gpu_note:
        print(f"gpu: {machine.gpu_note}")
    return word


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


def _native(request: Request, job: Job, word: str) -> int:
    """Train in the local environment, which is completed first if torch is missing."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        done = subprocess.run([str(PROJECT / "scripts" / "setup"), "native", word], check=False)
        if done.returncode:
            raise DeviceError("the local environment could not be made", "see the lines above",
                              "mend it, or run `make engine` and train in a container")  # fmt: skip
    command = [sys.executable, "-m", "runtime", "train", str(request.spec), *_options(request)]
    if word == "cpu" and job.limits.gpus == "auto" and detect(Path("runs")).gpus:
        command += ["--set", "limits.gpus=none"]  # no container hides the GPU here
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _options(request: Request) -> list[str]:
    options = [word for assignment in request.assignments for word in ("--set", assignment)]
    return [*options, *request.flags]


def build_if_missing(engine: Any, word: str) -> None:
    """Build an image that is not here; tell of one that is older than the checkout.

    Raises:
        DeviceError: if it cannot be built.
    """
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


def _start(engine: Any, request: Request, job: Job, word: str, variables: Mapping[str, str]) -> Any:
    """Start the compose service under the job's limits; returns the container."""
    project = f"drivetrain-{job.name.lower().replace('.', '-')}"
    _refuse_if_running(engine, project)
    caches = _caches(engine, variables["DRIVETRAIN_UID"])
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as override:
        json.dump(_override(request, job) | {"volumes": caches, "networks": {"default": _network(engine)}}, override)
        override.flush()
        files = [str(PROJECT / "compose" / name) for name in ("base.yaml", f"{word}.yaml")]
        options = [part for file in (*files, override.name) for part in ("--file", file)]
        command = ["docker", "compose", "--project-directory", str(PROJECT), "-p", project, *options]
        done = subprocess.run(
            [*command, "up", "--detach", "--force-recreate", "--quiet-pull", "trainer"],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    found = _containers(engine, project, "trainer")
    if done.returncode or not found:
        for container in _containers(engine, project, "prepare"):
            print(container.logs().decode(errors="replace"), end="", file=sys.stderr)
        raise toolkit.refused(done.stderr) or DeviceError(
            f"the container could not be started:\n{done.stderr.strip()[-2000:]}",
            "see the engine's own words above",
            "`docker compose config` shows what was asked of it",
        )
    return found[0]


def _caches(engine: Any, uid: str) -> dict[str, Any]:
    """The cache volumes, which all jobs of a user share: labelled as compose would in a checkout named drivetrain."""
    caches = {}
    for short in ("compile", "huggingface"):
        name = f"drivetrain_{short}_{uid}"
        labels = {"com.docker.compose.project": "drivetrain", "com.docker.compose.volume": short}
        engine.volumes.create(name, labels=labels)
        caches[short] = {"name": name, "external": True}
    return caches


def _network(engine: Any) -> dict[str, Any]:
    """The network that all jobs share: an engine has room for about thirty, and one for each job would stay behind."""
    name = "drivetrain_default"
    if name not in {network.name for network in engine.networks.list(names=[name])}:
        labels = {"com.docker.compose.project": "drivetrain", "com.docker.compose.network": "default"}
        engine.networks.create(name, driver="bridge", labels=labels)
    return {"name": name, "external": True}


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


def _override(request: Request, job: Job) -> dict[str, Any]:
    """The compose file of this one job: its command, and its folders outside the project, read-only."""
    command = ["train", _inside(request.spec), *_options(request)]
    mounts = sorted({str(path) for path in outside(request.spec, job)})
    volumes = [{"type": "bind", "source": path, "target": path, "read_only": True} for path in mounts]
    return {"services": {"trainer": {"command": command, "volumes": volumes}}}


def _inside(path: Path) -> str:
    """A path as the container sees it: relative to the project if it lies in there."""
    full = path.resolve()
    return str(full.relative_to(PROJECT)) if full.is_relative_to(PROJECT) else str(full)


def outside(path: Path, job: Job) -> Iterator[Path]:
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


def _follow(engine: Any, container: Any) -> int:
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
