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

from drivetrain.errors import DeviceError, SpecError
from drivetrain.hardware import device_check, gpu_selection, image_selection
from drivetrain.hardware.detect import detect
from drivetrain.job import Job
from drivetrain.job_spec import load_job as spec
from drivetrain.job_spec import sweep_space
from drivetrain.launch import (
    compose_project,
    container_limits,
    docker_engine,
    engine_traits,
    follow_container,
    mounts,
    network,
    nvidia_toolkit,
    published_image,
    run_secrets,
)
from drivetrain.launch import project as checkout
from drivetrain.launch.project import PROJECT
from drivetrain.supervisor import provenance
from drivetrain.supervisor.started_runs import StartedRuns
from drivetrain.system import installation
from drivetrain.system.child_process import path_word, surroundings
from drivetrain.system.console import say
from drivetrain.system.files import storage_error
from drivetrain.system.installation import CHECKOUT
from drivetrain.tracking import tracker_child


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
    """What runs in the container: train, repeat, inspect or sweep."""

    def jobs(self, job: Job) -> list[Job]:
        """The job, and for a sweep what its choices make of it: each can name other data or another network."""
        variants = sweep_space.choices(job) if self.command == "sweep" else ()
        return [job, *(spec.load(self.spec, (*self.assignments, "sweep=null", variant)) for variant in variants)]


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
    check_work_folder()
    override = _override(request, job)
    online, line = max(network.decide(variant, requested=request.network) for variant in request.jobs(job))
    values, lines = run_secrets.collect(job, online)
    for text in (line, *lines):
        say(text)
    info = client.info()
    engine = engine_traits.find(info)
    if note := engine.note():
        say(note)
    variables = container_limits.variables(info, job, gpu=word != "cpu") | engine.limits(gpu=word != "cpu")
    variables |= engine.owner() or container_limits.owner(PROJECT, report=True)
    variables["DRIVETRAIN_NETWORK"] = "bridge" if online else "none"
    variables[checkout.TAG] = checkout.tag()
    if word != "cpu":
        variables |= nvidia_toolkit.find(info).variables()
    image = _image(client, request, override, word)
    trainer = override["services"]["trainer"]
    trainer |= follow_container.terminal_settings(info)
    if Path.cwd() != PROJECT:  # the container names its runs as it sees them
        say(f"runs: below {PROJECT / 'runs'}, as the project is {PROJECT}")
    runs = StartedRuns(PROJECT)
    environment = describe_starter(client, image, request.spec) | runs.variables()
    trainer["environment"] = trainer.get("environment", {}) | compose_project.literal(environment)
    with (
        run_secrets.write_for_block(values, info, int(variables["DRIVETRAIN_UID"])) as secrets,
        tracker_child.children_for_runs(job.track) as opened,
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
    published_image.pull_named(client, request.image)
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
        "drivetrain",
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
        path_inside(request.spec),
        *_options(request, run_inside(request.extend)),
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
        for mount in mounts.together(m for variant in request.jobs(job) for m in mounts.of_job(request.spec, variant))
    ]
    return {
        "services": {
            "trainer": {"command": compose_project.literal(command), "volumes": compose_project.literal(volumes)}
        }
    }


def describe_starter(client: Any, image: str, spec: Path) -> dict[str, str]:
    """Environment variables that record in the container what only its starter knows.

    Args:
        client: the engine's.
        image: the name of the image that it starts.
        spec: the job file.
    """
    facts = {
        provenance.IMAGE: str(client.images.get(image).id),
        provenance.COMMIT: provenance.commit(spec.absolute().parent, PROJECT / "runs") or "",
    }
    return {tracker_child.TRACKED_BY_VARIABLE: "host", **{name: text for name, text in facts.items() if text}}


def check_work_folder() -> None:
    """Check that the current folder may be mounted, and create its runs/; a checkout is always ready.

    Raises:
        SpecError: if it contains more than a container should see.
        StorageError: if runs/ cannot be created.
    """
    if CHECKOUT:
        return
    if obstacle := mounts.refusal(PROJECT):
        raise SpecError(
            f"{PROJECT} would be mounted in the container, read-only except for runs/, and {obstacle}",
            "a folder with only what your jobs need; runs/ is created in it",
            "mkdir training && cd training, and move the job file there; its data may be elsewhere",
        )
    try:
        (PROJECT / "runs").mkdir(exist_ok=True)
    except OSError as error:
        raise storage_error(PROJECT / "runs", error) from None


def path_inside(path: Path) -> str:
    """A path as seen in the container: relative to the project if it lies inside."""
    # For a spec that is a symlink, relative paths start from the folder of the link, on the host and in the container.
    for full in (Path(os.path.abspath(path)), path.parent.resolve() / path.name):
        if full.is_relative_to(PROJECT):
            return str(full.relative_to(PROJECT))
    return os.path.abspath(path)


def run_inside(run: Path | None) -> Path | None:
    """A run folder as seen in the container.

    Raises:
        SpecError: if it is outside of runs/, the only run folders that a container sees.
    """
    if run is None:
        return None
    full = Path(os.path.abspath(run))
    if not full.is_relative_to(PROJECT / "runs"):
        raise SpecError(
            f"--extend {run}: a container does not see this folder",
            f"a run in {PROJECT / 'runs'}",
            "copy it there, or train without a container: `drivetrain train`",
        )
    return full.relative_to(PROJECT)
