"""Runs a command in the CPU image if the local environment has no torch.

`make train-cpu` installs only the packages that start containers. This makes all other commands work in the same way, with
the compose service that trains. The project is also mounted at its own path, so every path is the same in the container.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, TextIO

from drivetrain.errors import CheckpointError, DataError, DeviceError, SpecError
from drivetrain.inference.export import PACKAGES
from drivetrain.inference.predict import TERMINAL
from drivetrain.job import Job
from drivetrain.job.draft import name_job_file
from drivetrain.job.remote_data import list_remote_paths
from drivetrain.launch import (
    command_output,
    compose_project,
    container_limits,
    docker_engine,
    engine_traits,
    mounts,
    network,
    run_secrets,
)
from drivetrain.launch.image_contents import torch_is_missing
from drivetrain.launch.mounts import Mount
from drivetrain.launch.project import PROJECT, RUNS, TAG, image_name, image_tag
from drivetrain.pretrained import convert
from drivetrain.pretrained.model_config import CONFIG
from drivetrain.system import signals
from drivetrain.system.console import say
from drivetrain.system.installation import INSTALL_TORCH
from drivetrain.system.printable import printable_text
from drivetrain.system.run_files import JOB_FILE, MODEL, RunFiles
from drivetrain.tasks import JOBS, modality_of

WITH_JOB = ("bench speed", "bench lr", "bench memory", "bench models", "fetch")
COMMANDS = (*WITH_JOB, "report", "compare", "evaluate", "predict", "export", "init")
"""Commands that compute, draw or decode, except training."""
READERS = ("numpy", "pyarrow", "PIL")
"""The libraries that `init` needs to read data; it needs no torch."""


def is_needed(command: str) -> bool:
    """Return whether this command needs the image: there is no torch here, and this is not one of our containers.

    An export runs there, too, if its packages are missing here and the image exists.
    """
    if command == "init" and all(map(find_spec, READERS)):
        return False
    if command == "export" and not all(map(find_spec, PACKAGES)) and "DRIVETRAIN_IMAGE" not in os.environ:
        return torch_is_missing() or docker_engine.has_image("cpu")
    return command in COMMANDS and torch_is_missing()


def run(parsed: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run a command line in the image; returns its exit code.

    Args:
        parsed: the parsed command line.
        arguments: the whole command line, starting with the command.

    Raises:
        DeviceError: if no engine answers, the image cannot be built, or the container would not see the working folder.
        SpecError: if the spec is invalid, or names something that may not be mounted.
    """
    client = docker_engine.connect()
    if isinstance(client, docker_engine.EngineMissing):
        raise DeviceError(
            f"`{parsed.command}` needs torch, which is not installed here, and no Docker engine answers: {client.why}",
            "torch in the local environment, or an engine",
            f"`{INSTALL_TORCH}`, or {client.cure}",
        )
    info = client.info()
    engine = engine_traits.find(info)
    outputs = _list_outputs(parsed)
    if any(Path(os.path.abspath(path)).is_relative_to(RUNS) for path in outputs):
        command_output.make_runs_folder()
    with contextlib.redirect_stdout(sys.stderr):  # stdout is reserved for the command's output
        needs = _needs(parsed)
        docker_engine.provide_image(client, "cpu")
    variables = container_limits.variables(info, needs.job) | engine.variables(gpu=False)
    variables |= {"DRIVETRAIN_NETWORK": "bridge" if needs.network else "none", TAG: image_tag()}
    # What writes new files of the user's, and runs none of their code, runs as the user who called it.
    caller = {"DRIVETRAIN_UID": str(os.getuid()), "DRIVETRAIN_GID": str(os.getgid())}
    variables |= engine.owner() or (caller if parsed.command == "init" else container_limits.owner(PROJECT))
    uid = int(variables["DRIVETRAIN_UID"])
    project = compose_project.ComposeProject(client)
    with (
        command_output.open_output(outputs, uid, needs.list_mounts()) as bind_mounts,
        run_secrets.write_for_block(needs.secrets, info, uid) as secrets,
        tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=run_secrets.make_engine_folder(info)) as file,
    ):
        override = {"services": {"trainer": _service([*bind_mounts, *secrets.mounts()], engine)}}
        file.write(project.to_yaml(override, variables))
        file.flush()
        line = [*project.list_words("cpu", file.name), "run", "--rm", "-T", "--no-deps"]
        name = f"{project.name}-{parsed.command.replace(' ', '-')}-{os.getpid()}"
        line += ["--name", name, "--interactive=false", "--workdir", str(RUNS.parent), "trainer", *arguments]
        code = _wait(line, {**os.environ, **variables}, partial(_stop, client, name))
    # No command of ours ends with 1: the engine has refused the container.
    if code == 1:
        docker_engine.check_project_is_seen(image_name("cpu"))
    return code


def _stop(client: Any, name: str, number: int) -> None:
    """Send a signal to a container, if there is one by now."""
    import docker

    with contextlib.suppress(docker.errors.APIError):
        client.containers.get(name).kill(signal=signal.Signals(number).name)


def _service(mounted: Sequence[Mount], engine: engine_traits.EngineTraits) -> dict[str, Any]:
    """Return the additions of a command to the service that trains."""
    # The records of trained models are read-only, so that code run with a model cannot add to them.
    records = {"type": "volume", "source": "state", "target": "/cache/state", "read_only": True}
    return {
        "volumes": [*compose_project.bind_mounts(mounted), records],
        "environment": {TERMINAL: "1"} if sys.stdout.isatty() else {},
        **engine.labels(outside=True),
    }


def _list_outputs(options: argparse.Namespace) -> list[Path]:
    """Return the files or the folder that a command writes outside of runs/."""
    output: Path | None = getattr(options, "output", None)
    if options.command == "fetch":
        paths = [job.resolve(path) for _, job in _jobs(options) for _, path in job.model_paths()]
        return [pair[1] for pair in map(convert.find_target, paths) if pair][:1]
    if options.command == "init":
        return [output or name_job_file(options.data)]
    if options.command == "compare":
        from drivetrain.report import comparison

        return [comparison.name_folder(options.runs)]
    if options.command == "export" and output:
        return [output, output.with_suffix(".json")]
    if options.command in ("report", "evaluate", "export") and not output:
        return [options.run]
    return [output] if output else []


@dataclass
class _Needs:
    """Find the needs of a command in its container, from its options and its jobs."""

    mounts: list[Mount]
    secrets: dict[str, bytes] = field(default_factory=dict)
    job: Job | None = None
    """The first job, whose limits the container gets; the usual ones if there is none."""
    network: bool = False

    def list_mounts(self) -> list[Mount]:
        """List the mounts: the project at its own path with runs/ for writing, and the paths that the command names."""
        runs = [Mount(RUNS, RUNS, writable=True)] if RUNS.is_dir() else []
        return [Mount(PROJECT, PROJECT), *runs, *mounts.drop_nested_mounts(self.mounts)]


def _needs(options: argparse.Namespace) -> _Needs:
    """Find the needs of the command line; print the names of the secrets."""
    needs = _Needs(
        [mount for path in _list_paths(options) for mount in mounts.list_path_mounts("the command line", path, PROJECT)]
    )
    for path, job in _jobs(options):
        needs.mounts += mounts.list_job_mounts(path, job, PROJECT)
        if options.command in WITH_JOB or list_remote_paths(job):
            needs.network |= network.decide(job)[0]
            values, lines = run_secrets.collect(job, needs.network)
            needs.secrets |= values
            for line in lines:
                say(line)
        if options.command in WITH_JOB:
            needs.job = needs.job or job
    if needs.network:
        say("network: on, the job needs a download")
    return needs


def _wait(
    command: Sequence[str], environ: Mapping[str, str] | None = None, stop: Callable[[int], None] = lambda number: None
) -> int:
    """Wait for the command to end, in a session of its own: compose would give up at a signal, and its container go on.

    Code of the job can print anything, so a terminal gets its text without escapes; a file gets its bytes.

    Args:
        stop: hands a signal on to what runs in the container.
    """
    numbers = {*signals.STOP_SIGNALS, signal.SIGHUP} - signals.IGNORED_SIGNALS
    old_handlers = {number: signal.signal(number, lambda number, frame: stop(number)) for number in numbers}
    terminals = [stream if stream.isatty() else None for stream in (sys.stdout, sys.stderr)]
    pipes = [subprocess.PIPE if terminal else None for terminal in terminals]
    try:
        with (
            subprocess.Popen(command, env=environ, stdout=pipes[0], stderr=pipes[1], start_new_session=True) as process,
            ThreadPoolExecutor() as pool,
        ):
            for pipe, terminal in zip((process.stdout, process.stderr), terminals, strict=True):
                if pipe and terminal:
                    pool.submit(_copy_clean, pipe, terminal)
        code = process.returncode
        # The engine's client fails where `| head` has seen enough; ours ends well.
        return 0 if code and _has_no_reader(1) else code
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def _copy_clean(pipe: IO[bytes], terminal: TextIO) -> None:
    """Print the text of a pipe as it comes, with its control characters replaced."""
    text = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a chunk may end within a character
    for chunk in iter(lambda: os.read(pipe.fileno(), 1 << 16), b""):
        terminal.write(printable_text(text.decode(chunk)))
        terminal.flush()


def _has_no_reader(descriptor: int) -> bool:
    """Return whether a descriptor is a pipe that nobody reads any more."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))


def _jobs(options: argparse.Namespace) -> Iterator[tuple[Path, Job]]:
    """Yield the specs whose data the command reads: that on the command line, or the one a run was trained with."""
    if options.command in WITH_JOB:
        from drivetrain.job_spec import load_job as job_spec

        against = [options.against] if getattr(options, "against", None) else []
        for overrides in ([], *against):
            yield options.job, job_spec.load(options.job, [*options.set, *overrides])
    elif options.command == "export" or (options.command == "evaluate" and options.data is None):
        from drivetrain.inference import evaluate as evaluating

        # Without its data, which may be gone, `export` compares a model on random samples.
        is_optional = options.command == "export" or not (options.run / JOB_FILE).exists()
        with contextlib.suppress(*((CheckpointError, DataError, SpecError) if is_optional else ())):
            yield options.run / JOB_FILE, evaluating.load_stored_job(options.run, download=False)


def _list_paths(options: argparse.Namespace) -> Iterator[Path]:
    """Yield the paths on the command line; a manifest of images refers to files in its folder."""
    mounted_elsewhere = getattr(options, "job", None), getattr(options, "output", None)
    for values in vars(options).values():
        for value in values if isinstance(values, list) else [values]:
            path = Path(os.path.abspath(value)) if isinstance(value, Path) else None
            if path and path.exists() and value not in mounted_elsewhere:
                yield path.parent if path.suffix.lower() in mounts.MANIFEST_SUFFIXES and _of_images(options) else path


def _of_images(options: argparse.Namespace) -> bool:
    run = getattr(options, "run", None)
    tasks = [RunFiles(folder).read_object(CONFIG).get("task") for folder in (run, run / MODEL)] if run else []
    return any(task in tasks and modality_of(JOBS[task]).has_sample_files for task in JOBS)
