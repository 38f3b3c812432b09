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

from runtime.errors import DataError, DeviceError, SpecError
from runtime.inference.predict import STDIN, TERMINAL
from runtime.job import Job
from runtime.job.remote_data import whole_paths
from runtime.launch import mounts, output_folder
from runtime.launch.project import PROJECT, image
from runtime.system.console import say
from runtime.system.installation import SETUP
from runtime.system.printable import printable_text
from runtime.system.run_files import RunFiles

WITH_JOB = ("find-lr", "memory", "bench", "fetch")
COMMANDS = (
    *WITH_JOB,
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


def wanted(command: str) -> bool:
    """Whether this command needs the image: there is no torch here, and this is not one of our containers."""
    if command == "init" and all(map(find_spec, READERS)):
        return False
    return command in COMMANDS and missing()


def missing() -> bool:
    """Whether torch, or a library that `make setup` installs beside it, exists in the image only."""
    return not all(map(find_spec, TRAINING)) and "DRIVETRAIN_IMAGE" not in os.environ


def run(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run a command line in the image; returns its exit code.

    Args:
        given: the parsed command line.
        arguments: the whole command line, starting with the command.

    Raises:
        DeviceError: if no engine answers, or the image cannot be built.
        SpecError: if the spec is invalid, or names something that may not be mounted.
    """
    from runtime.launch import container_limits, docker_engine, engine_traits, run_secrets

    client = docker_engine.connect()
    if isinstance(client, docker_engine.EngineMissing):
        raise DeviceError(
            f"`{given.command}` needs torch, which is not installed here, and no Docker engine answers: {client.why}",
            "torch in the local environment, or an engine",
            f"`{SETUP}`, or {client.cure}",
        )
    workdir, info = _workdir(Path.cwd()), client.info()
    engine, output = engine_traits.find(info), getattr(given, "output", None)
    # `sample` has no option: its folder is where it writes.
    written = output_folder.mount(given.folder, "") if given.command == "sample" else output_folder.mount(output)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is reserved for the command's output
        needs = _needs(given, info)
        docker_engine.provide_image(client, "cpu")
        # What writes new files of the user's, and runs none of their code, runs as the user who called it.
        owner = container_limits.owner(PROJECT) if given.command not in ("sample", "init") else {}
    user = owner.get("DRIVETRAIN_UID", str(os.getuid())), owner.get("DRIVETRAIN_GID", str(os.getgid()))
    if engine.rootless:
        user = ("0", "0")
    else:
        output_folder.check_writable(output, int(user[0]))
    limits = needs.limits | engine.limits(gpu=False)
    with run_secrets.written(needs.secrets, info, int(user[0])) as secrets:
        seen = needs.mounts + [mounts.Mount(Path(source), Path(target)) for target, source in secrets.mounts().items()]
        # The engine's command line relabels only mounts of the short form, in which no path may have a colon.
        options = ["--security-opt", "label=disable"] if engine.selinux else []
        options += ["--interactive"] if STDIN in getattr(given, "inputs", ()) else []
        seen = [mount for mount in mounts.together(iter(seen)) if mount.target != written]
        command = line(arguments, workdir, user, limits, seen, network=needs.network, written=written)
        return _wait([*command[:2], *options, *command[2:]])


@dataclass
class _Needs:
    """What a command needs in its container, by what it and its jobs name."""

    mounts: list[mounts.Mount]
    secrets: dict[str, bytes] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    """Of the first job, as variables; the usual ones if there is none."""
    network: bool = False


def _needs(given: argparse.Namespace, info: Mapping[str, Any]) -> _Needs:
    """What the command line needs; prints what is handed over.

    Args:
        given: the parsed command line.
        info: what the engine says about itself.
    """
    from runtime.launch import container_limits, network, run_secrets

    needs = _Needs([mount for path in _named(given) for mount in mounts.of_path("the command line", path, PROJECT)])
    for path, job in _jobs(given):
        needs.mounts += mounts.of_job(path, job, PROJECT)
        if given.command in WITH_JOB or whole_paths(job):
            needs.network |= network.told(job)[0]
            found, lines = run_secrets.collect(job, needs.network)
            needs.secrets |= found
            for line in lines:
                say(line)
        if given.command in WITH_JOB:
            needs.limits = needs.limits or container_limits.variables(info, job)
    if needs.network:
        say("network: on, the job needs a download")
    return needs


def line(
    arguments: Sequence[str],
    workdir: Path,
    user: tuple[str, str],
    limits: Mapping[str, str],
    seen: Sequence[mounts.Mount],
    *,
    network: bool,
    written: Path | None = None,
) -> list[str]:
    """The engine's command line: hardened as in compose; the project and `written` are writable, `seen` is read-only."""
    from runtime.launch import compose_flags

    places = [PROJECT, *([written] if written else [])]
    binds = [
        *(_bind(place, place) for place in places),
        *(f"{_bind(mount.source, mount.target)},readonly" for mount in seen),
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
        *compose_flags.flags(limits),
        *([] if network else ["--network", "none"]),
        *mounted,
        *terminal,
        "--user",
        ":".join(user),
        "--workdir",
        str(workdir),
        image("cpu"),
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
    shown = [stream if stream.isatty() else None for stream in (sys.stdout, sys.stderr)]
    try:
        code = _show(command, *shown) if any(shown) else subprocess.run(command, check=False).returncode
        # The engine's client fails where `| head` has seen enough; ours ends well.
        return 0 if code and _has_no_reader(1) else code
    finally:
        signal.signal(signal.SIGINT, before)


def _show(command: Sequence[str], output: TextIO | None, errors: TextIO | None) -> int:
    """Run a command, and print on terminals what it prints; returns its exit code.

    Args:
        command: its command line.
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
    asked = select.poll()
    asked.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in asked.poll(0))


def _workdir(here: Path) -> Path:
    """The folder from which relative paths start.

    Raises:
        DeviceError: outside of the project, which is all that the container can see.
    """
    if not here.is_relative_to(PROJECT):
        raise DeviceError(
            f"called in {here}, and torch is not installed here",
            f"any folder below {PROJECT}, which is mounted in the container",
            f"cd {PROJECT}, or `{SETUP}`",
        )
    return here


def _jobs(given: argparse.Namespace) -> Iterator[tuple[Path, Job]]:
    """The specs whose data the command reads: that on the command line, or the one a run was trained with."""
    if given.command in WITH_JOB:
        from runtime.job_spec import load as job_spec

        against = [given.against] if getattr(given, "against", None) else []
        for more in ([], *against):
            yield given.job, job_spec.load(given.job, [*given.set, *more])
    elif (
        given.command in ("evaluate", "reproduce")
        and getattr(given, "data", None) is None
        and (given.run / "job.yaml").is_file()
    ):
        from runtime.inference import evaluate as evaluating

        yield given.run / "job.yaml", evaluating.stored_job(given.run, download=False)
    elif given.command == "export" and (given.run / "job.yaml").is_file():
        from runtime.inference import evaluate as evaluating

        # Without its data, which may be gone, a model is compared on random samples.
        with contextlib.suppress(DataError, SpecError):
            yield given.run / "job.yaml", evaluating.stored_job(given.run, download=False)


def _named(given: argparse.Namespace) -> Iterator[Path]:
    """Paths on the command line; a manifest of images refers to files in its folder."""
    words = [value for values in vars(given).values() for value in (values if isinstance(values, list) else [values])]
    for word in words:
        path = Path(os.path.abspath(word)) if isinstance(word, Path) else None
        if path and path.exists() and word not in (getattr(given, "job", None), getattr(given, "output", None)):
            yield path.parent if path.suffix.lower() in mounts.MANIFESTS and _of_images(given) else path


def _of_images(given: argparse.Namespace) -> bool:
    run = getattr(given, "run", None)
    found = [RunFiles(folder).read_json("config.json") for folder in (run, run / "model")] if run else []
    return any(isinstance(config, dict) and str(config.get("task")).startswith("image-") for config in found)
