"""`drivetrain launch`: picks image and limits, starts a container with compose, and follows it to its end.

    engine answers? -> image there? -> runs/ writable? -> compose up -> follow the log -> exit code

Without a reachable engine the same job trains natively, in the local environment, with the same plan.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import DeviceError, SpecError
from runtime.hardware import device_check, gpu_selection, image_selection
from runtime.hardware.detect import detect
from runtime.job import Job
from runtime.job_spec import load as spec
from runtime.job_spec import sweep_space
from runtime.launch import (
    compose_project,
    container_limits,
    container_terminal,
    docker_engine,
    engine_traits,
    follow_container,
    mounts,
    network,
    nvidia_toolkit,
    published_image,
    run_secrets,
    starter_facts,
    work_folder,
)
from runtime.launch import project as checkout
from runtime.launch.project import PROJECT
from runtime.supervisor.started_runs import StartedRuns
from runtime.system import installation
from runtime.system.child_process import path_word, surroundings
from runtime.system.console import say
from runtime.tracking import tracker_child


@dataclass(frozen=True)
class LaunchRequest:
    """The options of `drivetrain launch`."""

    spec: Path
    assignments: Sequence[str] = ()
    device: str = "cpu"
    flags: Sequence[str] = ()
    """Options that are passed on to the command."""
    extend: Path | None = None
    """The finished run that this one continues."""
    network: bool = False
    """Whether the container gets a network although the job does not need one."""
    image: str | None = None
    """Instead of the image of this checkout or version."""
    command: str = "train"
    """What runs in the container: train, repeat or sweep."""

    def jobs(self, job: Job) -> list[Job]:
        """The job, and for a sweep what its choices make of it: each can name other data or another network."""
        variants = sweep_space.choices(job) if self.command == "sweep" else ()
        return [job, *(spec.load(self.spec, (*self.assignments, "sweep=null", each)) for each in variants)]


def launch(request: LaunchRequest) -> int:
    """Train in a container, or natively if no engine answers; returns the exit code.

    Raises:
        DrivetrainError: if the spec is invalid, or the container cannot be started.
    """
    job = spec.load(request.spec, request.assignments)
    word = _word(request, job)
    client = docker_engine.connect()
    if isinstance(client, docker_engine.EngineMissing):
        # Before the lines of a setup, also where the output goes to a file.
        say(
            f"no Docker engine can be used ({client.why}); training without a container, so limits are not enforced. "
            f"To use one: {client.cure}"
        )
        return _native(request, job, word)
    work_folder.check()
    override = _override(request, job)
    online, line = max(network.told(each, asked=request.network) for each in request.jobs(job))
    values, lines = run_secrets.collect(job, online)
    for text in (line, *lines):
        say(text)
    info = client.info()
    engine = engine_traits.find(info)
    if note := engine.note():
        say(note)
    variables = container_limits.variables(info, job, gpu=word != "cpu") | engine.limits(gpu=word != "cpu")
    variables |= engine.owner() or container_limits.owner(PROJECT, tell=True)
    variables["DRIVETRAIN_NETWORK"] = "bridge" if online else "none"
    variables[checkout.TAG] = checkout.tag()
    if word != "cpu":
        variables |= nvidia_toolkit.find(info).variables()
    image = _image(client, request, override, word)
    trainer = override["services"]["trainer"]
    trainer |= container_terminal.service(info)
    runs = StartedRuns(PROJECT)
    environment = starter_facts.variables(client, image, request.spec) | runs.variables()
    trainer["environment"] = trainer.get("environment", {}) | compose_project.literal(environment)
    with (
        run_secrets.written(values, info, int(variables["DRIVETRAIN_UID"])) as secrets,
        tracker_child.following(job.track) as opened,
    ):
        add_secrets(trainer, secrets, engine)
        project = compose_project.ComposeProject(client, job.name)
        code = follow_container.follow(project.start(override, word, variables), runs, secrets.remove, opened)
        if code == 0:  # what a run that failed has left can still be looked at
            project.remove()
        return code


def _image(client: Any, request: LaunchRequest, override: dict[str, Any], word: str) -> str:
    """The image that the job runs in, which is there afterwards; one that the user names takes the place of ours."""
    if not request.image:
        docker_engine.provide_image(client, word)
        return checkout.image(word)
    published_image.named(client, request.image)
    for service in ("trainer", "prepare"):
        override["services"].setdefault(service, {})["image"] = compose_project.literal(request.image)
    return request.image


def add_secrets(trainer: dict[str, Any], secrets: run_secrets.RunSecrets, engine: engine_traits.EngineTraits) -> None:
    """Mount the secrets beside what the job needs from outside of the project; each is readable under SELinux, too."""
    trainer |= engine.labels(outside=bool(trainer["volumes"]))
    private = compose_project.literal(secrets.volumes())
    for volume in private if engine.selinux else ():
        volume["bind"]["selinux"] = "z"  # they are ours, and gone soon
    trainer["volumes"] += private


def _word(request: LaunchRequest, job: Job) -> str:
    """The image for the chip and driver of this host."""
    if request.device == "cpu":
        return "cpu"
    if job.limits.gpus == "none":
        raise SpecError(
            "--device gpu, and limits.gpus is none in the job", "one of them", f"`{installation.TRAIN_CPU}`"
        )
    machine = gpu_selection.select_gpus(detect(Path("runs")), job.limits.gpus)
    word = device_check.launchable(machine)
    say(f"image {word}: {image_selection.choose_image(machine).reason}")
    if machine.gpu_note:
        say(f"gpu: {machine.gpu_note}")
    return word


def _native(request: LaunchRequest, job: Job, word: str) -> int:
    """Train in the local environment; torch is installed first if it is missing."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        if not installation.CHECKOUT:
            raise DeviceError(
                "torch is not installed here, and no Docker engine answers",
                "torch in the local environment, or an engine",
                f"`{installation.SETUP}`, or {installation.ENGINE}",
            )
        done = subprocess.run([str(PROJECT / "scripts" / "setup"), "native", word], check=False)
        if done.returncode:
            raise DeviceError(
                "the local Python environment could not be created",
                "see the output above",
                f"fix it, or run `{installation.ENGINE}` and train in a container",
            )
    command = [
        sys.executable,
        "-m",
        "runtime",
        request.command,
        path_word(request.spec),
        *_options(request, request.extend),
    ]
    if word == "cpu" and job.limits.gpus == "auto" and detect(Path("runs")).gpus:
        command += ["--set", "limits.gpus=none"]  # without a container the GPU is visible
    sys.stdout.flush()
    os.execve(sys.executable, command, surroundings({}))


def _options(request: LaunchRequest, extend: Path | None) -> list[str]:
    options = [word for assignment in request.assignments for word in ("--set", assignment)]
    return [*options, *request.flags, *(["--extend", str(extend)] if extend else [])]


def _override(request: LaunchRequest, job: Job) -> dict[str, Any]:
    """The compose override of this job: its command, and read-only mounts of files outside of the project."""
    command = [
        request.command,
        work_folder.path_inside(request.spec),
        *_options(request, work_folder.run_inside(request.extend)),
    ]
    # Long form: a path may contain a colon, and a missing path must not be created.
    volumes = [
        {
            "type": "bind",
            "source": str(mount.source),
            "target": str(mount.target),
            "read_only": True,
            "bind": {"create_host_path": False},
        }
        for mount in mounts.together(m for each in request.jobs(job) for m in mounts.of_job(request.spec, each))
    ]
    return {
        "services": {
            "trainer": {"command": compose_project.literal(command), "volumes": compose_project.literal(volumes)}
        }
    }
