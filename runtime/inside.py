"""Inside: a command in the CPU image, where this environment has no torch of its own.

`make train-cpu` sets up what launching containers needs and no more; with this, all that follows a training works
with the same words: the project is mounted at its own path, so every path means inside what it means here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from runtime.errors import DeviceError

PROJECT = Path(__file__).resolve().parent.parent
WITH_JOB = ("find-lr", "memory", "bench")
COMMANDS = (*WITH_JOB, "report", "compare", "evaluate", "predict", "sample", "convert")
"""What computes, draws or decodes, and is no training."""


def wanted(command: str) -> bool:
    """Whether this command needs the image: there is no torch here, and this is no container of ours."""
    return command in COMMANDS and find_spec("torch") is None and "DRIVETRAIN_IMAGE" not in os.environ


def run(command: str, arguments: Sequence[str], job: Path | None = None, assignments: Sequence[str] = ()) -> int:
    """Run a command line in the image; returns its exit code.

    Args:
        command: its first word.
        arguments: the whole command line, the command first.
        job: the spec whose limits hold, for commands that take one.
        assignments: its overrides.

    Raises:
        DeviceError: if no engine answers, or the image cannot be built.
        SpecError: if the spec is invalid.
    """
    from runtime import allowance, launch, spec

    engine = launch.connect()
    if isinstance(engine, str):
        raise DeviceError(f"`{command}` needs torch, which is not installed here, and no Docker engine answers: {engine}",
                          "torch in the local environment, or an engine", "`make setup`, or `make engine`")  # fmt: skip
    limits, seen = {}, list(_named(arguments, Path.cwd()))
    with contextlib.redirect_stdout(sys.stderr):  # standard output is the command's own
        launch.build_if_missing(engine, "cpu")
        owner = allowance.owner(PROJECT) if command != "sample" else {}
        if job:
            checked = spec.load(job, assignments)
            limits = allowance.variables(engine.info(), checked)
            seen += launch.outside(job, checked)
    user = owner.get("DRIVETRAIN_UID", str(os.getuid())), owner.get("DRIVETRAIN_GID", str(os.getgid()))
    return subprocess.run(line(arguments, Path.cwd(), user, limits, seen, network=bool(job)), check=False).returncode


def line(
    arguments: Sequence[str], here: Path, user: tuple[str, str], limits: Mapping[str, str], seen: Sequence[Path],
    *, network: bool,
) -> list[str]:  # fmt: skip
    """The command line for the engine: hardened as compose does it; the project can be written, `seen` be read."""
    memory = limits.get("DRIVETRAIN_MEMORY", "4g")
    bounds = ["--cpus", limits.get("DRIVETRAIN_CPUS", "2"), "--memory", memory, "--memory-swap", memory,
              "--shm-size", limits.get("DRIVETRAIN_SHM", "256m"), "--pids-limit", "512"]  # fmt: skip
    hardened = ["--init", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true",
                "--tmpfs", "/tmp:exec,mode=1777,size=512m"]  # fmt: skip
    project = str(PROJECT)
    mounts = [f"{project}:{project}", *(f"{path}:{path}:ro" for path in sorted(set(seen)))]
    volumes = [f"drivetrain_{name}_{user[0]}:/cache/{name}" for name in ("compile", "huggingface")]
    places = [part for mount in (*mounts, *volumes) for part in ("--volume", mount)]
    return ["docker", "run", "--rm", *hardened, *bounds, *([] if network else ["--network", "none"]), *places,
            "--user", ":".join(user), "--workdir", str(_workdir(here)), "drivetrain/cpu:latest", *arguments]  # fmt: skip


def _workdir(here: Path) -> Path:
    """Where relative paths count from.

    Raises:
        DeviceError: outside of the project, which is all that the container sees.
    """
    if not here.is_relative_to(PROJECT):
        raise DeviceError(f"called in {here}, and torch is not installed here", f"any folder below {PROJECT}, "
                          "which the container sees", f"cd {PROJECT}, or `make setup`")  # fmt: skip
    return here


def _named(arguments: Sequence[str], here: Path) -> Iterator[Path]:
    """What is named and lies outside of the project."""
    for word in arguments:
        path = Path(os.path.normpath(here / word))
        if word[:1] != "-" and path.exists() and not path.is_relative_to(PROJECT):
            yield path
