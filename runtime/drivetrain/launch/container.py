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
    command_output,
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
from drivetrain.launch.project import PROJECT, RUNS
from drivetrain.supervisor import provenance
from drivetrain.system import installation
from drivetrain.system.child_process import build_environment, format_path_argument
from drivetrain.system.console import say
from drivetrain.system.installation import CHECKOUT


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
    """The name of an image that replaces the image of this checkout or version."""
    command: str = "train"
    """The command that runs in the container: train, repeat or sweep."""

    def load_jobs(self, job: Job) -> list[Job]:
        """Load the job, and for a sweep also one job per choice: each can name other data or another network."""
        choices = sweep_space.list_choices(job) if self.command == "sweep" else ()
        return [job, *(spec.load(self.spec, (*self.assignments, "sweep=null", choice)) for choice in choices)]

    def list_options(self, extend: Path | None, sizes: Sequence[str] = ()) -> list[str]:
        """List the options of the command.

        Args:
            extend: the run that it continues, as the command sees its path.
            sizes: assignments in addition to the user's.
        """
        options = [argument for assignment in (*self.assignments, *sizes) for argument in ("--set", assignment)]
        return [*options, *self.flags, *(["--extend", str(extend)] if extend else [])]


def launch(request: LaunchRequest) -> int:
    """Train in a container, or natively if no engine answers; returns the exit code.

    Raises:
        DrivetrainError: if the spec is invalid, or the container cannot be started.
    """
    job = spec.load(request.spec, request.assignments)
    variant = _choose_variant(request, job)
    client = docker_engine.connect()
    if isinstance(client, docker_engine.EngineMissing):
        # `say` flushes, so this stands before the lines of a setup, also where the output goes to a file.
        say(
            f"no Docker engine can be used ({client.why}); training without a container, so limits are not enforced. "
            f"To use one: {client.cure}"
        )
        return _train_natively(request, job, variant)
    check_work_folder()
    override = _build_override(request, job)
    has_network, network_line = max(
        network.decide(each_job, requested=request.network) for each_job in request.load_jobs(job)
    )
    secret_values, secret_lines = run_secrets.collect(job, has_network)
    for text in (network_line, *secret_lines):
        say(text)
    info = client.info()
    engine = engine_traits.find(info)
    note = engine.note()
    if note:
        say(note)
    variables = _choose_variables(info, job, engine, variant, has_network)
    image = _provide_image(client, request, override, variant)
    trainer = override["services"]["trainer"]
    trainer |= follow_container.terminal_settings(info)
    if "prepare" in override["services"]:
        override["services"]["prepare"] |= engine.labels(outside=True)
    environment = describe_starter(client, image, request.spec)
    trainer["environment"] = trainer.get("environment", {}) | compose_project.literal(environment)
    with run_secrets.write_for_block(secret_values, info, int(variables["DRIVETRAIN_UID"])) as secrets:
        add_secrets(trainer, secrets, engine)
        project = compose_project.ComposeProject(client, job.name)
        code = follow_container.follow(project.start(override, variant, variables), secrets.remove)
        if code == 0:  # after a failure the container stays, for a look at it
            project.remove()
        return code


def _choose_variables(
    info: dict[str, Any], job: Job, engine: engine_traits.EngineTraits, variant: str, has_network: bool
) -> dict[str, str]:
    """Build the variables that compose.yaml reads: limits, owner of the files, network, image, GPU."""
    variables = container_limits.variables(info, job, gpu=variant != "cpu") | engine.variables(gpu=variant != "cpu")
    variables |= engine.owner() or container_limits.owner(PROJECT, report=True)
    variables["DRIVETRAIN_NETWORK"] = "bridge" if has_network else "none"
    variables[checkout.TAG] = checkout.image_tag()
    if variant != "cpu":
        variables |= nvidia_toolkit.find(info)
    return variables


def _provide_image(client: Any, request: LaunchRequest, override: dict[str, Any], variant: str) -> str:
    """Provide the image that the job runs in, ours or the one that the user names; returns its name."""
    if not request.image:
        docker_engine.provide_image(client, variant)
        return checkout.image_name(variant)
    published_image.pull_named(client, request.image)
    for service in ("trainer", "prepare"):
        override["services"].setdefault(service, {})["image"] = compose_project.literal(request.image)
    return request.image


def add_secrets(trainer: dict[str, Any], secrets: run_secrets.RunSecrets, engine: engine_traits.EngineTraits) -> None:
    """Add the secrets to the volumes of the compose service `trainer`, readable for it under SELinux, too."""
    trainer |= engine.labels(outside=bool(trainer["volumes"]))
    secret_volumes = compose_project.bind_mounts(secrets.mounts())
    for volume in secret_volumes if engine.selinux else ():
        volume["bind"]["selinux"] = "z"  # relabelling is harmless: the files are our own and removed soon
    trainer["volumes"] += secret_volumes


def _choose_variant(request: LaunchRequest, job: Job) -> str:
    """Choose the image's variant, such as cpu or ampere, for the chip and driver of this host."""
    if request.device == "cpu":
        return "cpu"
    if job.limits.gpus == "none":
        raise SpecError(
            "--device gpu, and limits.gpus is none in the job", "one of them", f"`{installation.TRAIN_ON_CPU}`"
        )
    machine = gpu_selection.select_gpus(detect(Path("runs")), job.limits.gpus)
    variant = device_check.choose_launch_image(machine)
    say(f"image {variant}: {image_selection.choose_image(machine).reason}")
    if machine.gpu_note:
        say(f"gpu: {machine.gpu_note}")
    return variant


def _train_natively(request: LaunchRequest, job: Job, variant: str) -> int:
    """Replace this process by a training in the local environment; torch is installed first if it is missing."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        if not installation.CHECKOUT:
            raise DeviceError(
                "torch is not installed here, and no Docker engine answers",
                "torch in the local environment, or an engine",
                f"`{installation.INSTALL_TORCH}`, or {installation.INSTALL_ENGINE}",
            )
        setup = subprocess.run([str(PROJECT / "scripts" / "setup"), "native", variant], check=False)
        if setup.returncode:
            raise DeviceError(
                "the local Python environment could not be created",
                "see the output above",
                f"fix it, or run `{installation.INSTALL_ENGINE}` and train in a container",
            )
    command = [
        sys.executable,
        "-m",
        "drivetrain",
        request.command,
        format_path_argument(request.spec),
        *request.list_options(request.extend),
    ]
    if variant == "cpu" and job.limits.gpus == "auto" and detect(Path("runs")).gpus:
        command += ["--set", "limits.gpus=none"]  # without a container the GPU is visible
    sys.stdout.flush()
    os.execve(sys.executable, command, build_environment({}))


def _build_override(request: LaunchRequest, job: Job) -> dict[str, Any]:
    """Return the compose override of this job: its command, and read-only mounts of files outside of the project."""
    command = [
        request.command,
        to_container_path(request.spec),
        *request.list_options(to_container_run(request.extend)),
    ]
    # compose.yaml mounts the project's runs/. The container sees other runs at their own path, which it prints.
    runs = []
    if RUNS != PROJECT / "runs":
        runs.append(mounts.Mount(RUNS, RUNS, writable=True))
        command += ["--runs", str(RUNS)]
    job_mounts = mounts.drop_nested_mounts(
        mount for each_job in request.load_jobs(job) for mount in mounts.list_job_mounts(request.spec, each_job)
    )
    volumes = compose_project.bind_mounts([*job_mounts, *runs])
    services: dict[str, Any] = {"trainer": {"command": compose_project.literal(command), "volumes": volumes}}
    if runs:
        owned = {"command": compose_project.literal([str(RUNS)]), "volumes": compose_project.bind_mounts(runs)}
        services["prepare"] = owned
    return {"services": services}


def describe_starter(client: Any, image: str, spec: Path) -> dict[str, str]:
    """Return environment variables with facts that only the starter knows: the ids of image and commit."""
    facts = {provenance.IMAGE: str(client.images.get(image).id)}
    commit = provenance.read_commit(spec.absolute().parent)
    if commit:
        facts[provenance.COMMIT] = commit
    return facts


def check_work_folder() -> None:
    """Check that the folder of an installed program may be mounted, and create runs/ in the current folder.

    Raises:
        SpecError: if it contains more than a container should see.
        StorageError: if runs/ cannot be created.
    """
    obstacle = mounts.find_obstacle(PROJECT)
    if obstacle and not CHECKOUT:
        raise SpecError(
            f"{PROJECT} would be mounted in the container, read-only except for runs/, and {obstacle}",
            "a folder with only what your jobs need; runs/ is created in it",
            "mkdir training && cd training, and move the job file there; its data may be elsewhere",
        )
    command_output.make_runs_folder()


def to_container_path(path: Path) -> str:
    """Return a path as the container sees it: relative to the project if it lies inside."""
    # For a spec that is a symlink, relative paths start from the folder of the link, on the host and in the container.
    for absolute in (Path(os.path.abspath(path)), path.parent.resolve() / path.name):
        if absolute.is_relative_to(PROJECT):
            return str(absolute.relative_to(PROJECT))
    return os.path.abspath(path)


def to_container_run(run: Path | None) -> Path | None:
    """Return a run folder as the container sees it; None for None.

    Raises:
        SpecError: if it is outside of runs/, the only run folders that a container sees.
    """
    if run is None:
        return None
    for absolute in (Path(os.path.abspath(run)), run.parent.resolve() / run.name):
        if absolute.is_relative_to(RUNS):
            return absolute if RUNS != PROJECT / "runs" else absolute.relative_to(PROJECT)
    raise SpecError(
        f"--extend {run}: a container does not see this folder",
        f"a run in {RUNS}",
        "copy it there, or train without a container: `drivetrain train`",
    )
