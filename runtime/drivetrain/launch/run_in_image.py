"""Runs a command in the CPU image if the local environment has no torch.

`make train-cpu` installs only what is needed to start containers. This makes all other commands work in the same way:
the project is mounted at its own path, so every path is the same in the container.
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
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, TextIO

from drivetrain.errors import CheckpointError, DataError, DeviceError, SpecError
from drivetrain.inference.export import PACKAGES
from drivetrain.inference.predict import STDIN, TERMINAL
from drivetrain.job import Job
from drivetrain.job.remote_data import list_whole_paths
from drivetrain.launch import docker_engine, mounts
from drivetrain.launch.project import PROJECT, image_name
from drivetrain.pretrained.earlier_run import CONFIG
from drivetrain.system.console import say
from drivetrain.system.installation import INSTALL_TORCH
from drivetrain.system.printable import printable_text
from drivetrain.system.run_files import JOB_FILE, MODEL, RunFiles

WITH_JOB = ("plan", "find-lr", "memory", "bench", "fetch", "baseline")
COMMANDS = (
    *(command for command in WITH_JOB if command != "plan"),
    "report",
    "compare",
    "evaluate",
    "predict",
    "export",
    "reproduce",
    "sample",
    "convert",
    "init",
    "calibrate",
)
"""Commands that compute, draw or decode, except training."""
READERS = ("numpy", "pyarrow", "PIL")
"""The libraries with which `init` reads data; it needs no torch."""
TRAINING = ("torch", "numpy", "safetensors", "PIL", "threadpoolctl")
"""Libraries of which some are still missing while `make setup` is at work, or after it was interrupted."""


def is_needed(command: str, *, times_steps: bool = False) -> bool:
    """Whether this command needs the image: there is no torch here, and this is not one of our containers.

    Of `plan` only the option that times steps computes.

    An export runs there, too, if its packages are missing here and the image is at hand.
    """
    if command == "init" and all(map(find_spec, READERS)):
        return False
    if command == "export" and not all(map(find_spec, PACKAGES)) and "DRIVETRAIN_IMAGE" not in os.environ:
        return torch_is_missing() or docker_engine.has_image("cpu")
    return (command in COMMANDS or (command == "plan" and times_steps)) and torch_is_missing()


def torch_is_missing() -> bool:
    """Whether torch, or a library that `make setup` installs beside it, exists in the image only."""
    return not all(map(find_spec, TRAINING)) and "DRIVETRAIN_IMAGE" not in os.environ


def run(parsed: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run a command line in the image; returns its exit code.

    Args:
        parsed: the parsed command line.
        arguments: the whole command line, starting with the command.

    Raises:
        DeviceError: if no engine answers, the image cannot be built, or the container would not see the working folder.
        SpecError: if the spec is invalid, or names something that may not be mounted.
    """
    from drivetrain.launch import container_limits, docker_engine, engine_traits, run_secrets

    client = docker_engine.connect()
    if isinstance(client, docker_engine.EngineMissing):
        raise DeviceError(
            f"`{parsed.command}` needs torch, which is not installed here, and no Docker engine answers: {client.why}",
            "torch in the local environment, or an engine",
            f"`{INSTALL_TORCH}`, or {client.cure}",
        )
    workdir = Path.cwd()
    if not workdir.is_relative_to(PROJECT):
        raise DeviceError(
            f"called in {workdir}, and torch is not installed here",
            f"any folder below {PROJECT}, which is mounted in the container",
            f"cd {PROJECT}, or `{INSTALL_TORCH}`",
        )
    info, output = client.info(), getattr(parsed, "output", None)
    engine = engine_traits.find(info)
    # `sample` has no option: its folder is where it writes.
    written = mounts.mount_output(parsed.folder, "") if parsed.command == "sample" else mounts.mount_output(output)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is reserved for the command's output
        needs = _needs(parsed, info)
        docker_engine.provide_image(client, "cpu")
    # What writes new files of the user's, and runs none of their code, runs as the user who called it.
    owner = engine.owner() or (container_limits.owner(PROJECT) if parsed.command not in ("sample", "init") else {})
    user = owner.get("DRIVETRAIN_UID", str(os.getuid())), owner.get("DRIVETRAIN_GID", str(os.getgid()))
    if not engine.rootless:
        mounts.check_output_writable(output, int(user[0]))
    limits = needs.limits | engine.limits(gpu=False)
    with run_secrets.write_for_block(needs.secrets, info, int(user[0])) as secrets:
        # The engine's command line relabels only mounts of the short form, in which no path may have a colon.
        options = ["--security-opt", "label=disable"] if engine.selinux else []
        options += ["--interactive"] if STDIN in getattr(parsed, "inputs", ()) else []
        sources = mounts.drop_nested_mounts((*needs.mounts, *secrets.mounts()))
        readable = [mount for mount in sources if mount.target != written]
        command = line(arguments, workdir, user, limits, readable, network=needs.network, written=written)
        return _wait([*command[:2], *options, *command[2:]])


@dataclass
class _Needs:
    """What a command needs in its container, by what it and its jobs name."""

    mounts: list[mounts.Mount]
    secrets: dict[str, bytes] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    """Of the first job, as variables; the usual ones if there is none."""
    network: bool = False


def _needs(options: argparse.Namespace, info: Mapping[str, Any]) -> _Needs:
    """What the command line needs; prints what is handed over.

    Args:
        options: the parsed command line.
        info: what the engine says about itself.
    """
    from drivetrain.launch import container_limits, network, run_secrets

    needs = _Needs(
        [mount for path in _list_paths(options) for mount in mounts.list_path_mounts("the command line", path, PROJECT)]
    )
    for path, job in _jobs(options):
        needs.mounts += mounts.list_job_mounts(path, job, PROJECT)
        if options.command in WITH_JOB or list_whole_paths(job):
            needs.network |= network.decide(job)[0]
            values, lines = run_secrets.collect(job, needs.network)
            needs.secrets |= values
            for line in lines:
                say(line)
        if options.command in WITH_JOB:
            needs.limits = needs.limits or container_limits.variables(info, job)
    if needs.network:
        say("network: on, the job needs a download")
    return needs


def line(
    arguments: Sequence[str],
    workdir: Path,
    user: tuple[str, str],
    limits: Mapping[str, str],
    readable: Sequence[mounts.Mount],
    *,
    network: bool,
    written: Path | None = None,
) -> list[str]:
    """The engine's command line: hardened as in compose; the project and `written` are writable, `readable` is read-only."""
    from drivetrain.launch import compose_project

    places = [PROJECT, *([written] if written else [])]
    binds = [
        *(_bind(path, path) for path in places),
        *(f"{_bind(mount.source, mount.target)},readonly" for mount in readable),
    ]
    volumes = [
        f"type=volume,source=drivetrain_{name}_{user[0]},target=/cache/{name}" for name in ("compile", "huggingface")
    ]
    # The records of trained models are read-only, so that code run with a model cannot add to them.
    volumes.append(f"type=volume,source=drivetrain_state_{user[0]},target=/cache/state,readonly")
    mounted = [part for mount in (*binds, *volumes) for part in ("--mount", mount)]
    terminal = ["--env", f"{TERMINAL}=1"] if sys.stdout.isatty() else []
    return [
        "docker",
        "run",
        "--rm",
        "--pull",
        "never",
        *compose_project.compose_flags(limits),
        *([] if network else ["--network", "none"]),
        *mounted,
        *terminal,
        "--user",
        ":".join(user),
        "--workdir",
        str(workdir),
        image_name("cpu"),
        *arguments,
    ]


def _bind(source: Path, target: Path) -> str:
    """A mount option for the engine's command line, which is parsed as a row of CSV."""
    cells = ("type=bind", f"source={source}", f"target={target}")
    return ",".join('"' + cell.replace('"', '""') + '"' if set(cell) & set(',"\n\r') else cell for cell in cells)


def _wait(command: Sequence[str]) -> int:
    """Wait for the command to end; Ctrl-C reaches it from the terminal directly, and the command handles it.

    Code of the job can print anything, so a terminal gets its text without escapes; a file gets its bytes.
    """
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    terminals = [stream if stream.isatty() else None for stream in (sys.stdout, sys.stderr)]
    try:
        code = _show(command, *terminals) if any(terminals) else subprocess.run(command, check=False).returncode
        # The engine's client fails where `| head` has seen enough; ours ends well.
        return 0 if code and _has_no_reader(1) else code
    finally:
        signal.signal(signal.SIGINT, before)


def _show(command: Sequence[str], output: TextIO | None, errors: TextIO | None) -> int:
    """Run a command, and print on terminals what it prints; returns its exit code.

    Args:
        output: the terminal that its output is for; None if it goes where ours goes.
        errors: the same for its messages.
    """
    pipes = [subprocess.PIPE if terminal else None for terminal in (output, errors)]
    with subprocess.Popen(command, stdout=pipes[0], stderr=pipes[1]) as process:
        threads = [
            threading.Thread(target=_copy_clean, args=(pipe, terminal))
            for pipe, terminal in ((process.stdout, output), (process.stderr, errors))
            if pipe and terminal
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return process.wait()


def _copy_clean(pipe: IO[bytes], terminal: TextIO) -> None:
    """Print the text of a pipe as it comes, with its control characters replaced."""
    text = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a piece may end within a character
    while piece := os.read(pipe.fileno(), 1 << 16):
        terminal.write(printable_text(text.decode(piece)))
        terminal.flush()


def _has_no_reader(descriptor: int) -> bool:
    """Whether a descriptor is a pipe that nobody reads any more."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))


def _jobs(options: argparse.Namespace) -> Iterator[tuple[Path, Job]]:
    """The specs whose data the command reads: that on the command line, or the one a run was trained with."""
    if options.command in WITH_JOB:
        from drivetrain.job_spec import load_job as job_spec

        against = [options.against] if getattr(options, "against", None) else []
        for overrides in ([], *against):
            yield options.job, job_spec.load(options.job, [*options.set, *overrides])
    elif options.command == "export" or (
        options.command in ("evaluate", "reproduce") and getattr(options, "data", None) is None
    ):
        from drivetrain.inference import evaluate as evaluating

        # Without its data, which may be gone, `export` compares a model on random samples.
        is_optional = options.command == "export" or not (options.run / JOB_FILE).exists()
        with contextlib.suppress(*((CheckpointError, DataError, SpecError) if is_optional else ())):
            yield options.run / JOB_FILE, evaluating.load_stored_job(options.run, download=False)


def _list_paths(options: argparse.Namespace) -> Iterator[Path]:
    """Paths on the command line; a manifest of images refers to files in its folder."""
    values_of_options = [
        value for values in vars(options).values() for value in (values if isinstance(values, list) else [values])
    ]
    for word in values_of_options:
        path = Path(os.path.abspath(word)) if isinstance(word, Path) else None
        if path and path.exists() and word not in (getattr(options, "job", None), getattr(options, "output", None)):
            yield path.parent if path.suffix.lower() in mounts.MANIFEST_SUFFIXES and _of_images(options) else path


def _of_images(options: argparse.Namespace) -> bool:
    run = getattr(options, "run", None)
    configurations = [RunFiles(folder).read_object(CONFIG) for folder in (run, run / MODEL)] if run else []
    return any(str(config.get("task")).startswith("image-") for config in configurations)
