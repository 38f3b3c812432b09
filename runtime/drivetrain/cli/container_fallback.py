"""Runs a command that trains in a container if torch is installed only in the image."""

from __future__ import annotations

import argparse
from pathlib import Path

from drivetrain.cli.request import make_request
from drivetrain.errors import DeviceError
from drivetrain.launch import project
from drivetrain.system.console import say
from drivetrain.system.installation import INSTALL_TORCH

TRAINING = ("train", "repeat", "inspect", "sweep", "tradeoffs")
"""Commands that train."""
FORWARDED_SWITCHES = ("plain", "new", "trace", "restart_schedule", "verbose")
FORWARDED_NUMBERS = ("seeds", "folds", "trials", "within")


def run_in_container(options: argparse.Namespace) -> int:
    """Run a command that trains in a container; returns the exit code.

    Raises:
        DeviceError: if training in the container does not support an option or the working folder.
        DrivetrainError: if the spec is invalid, or the container cannot be started.
    """
    is_unsupported = any(getattr(options, name, None) for name in ("plan", "nodes", "json"))
    # The container mounts the project, and writes below its runs/.
    if is_unsupported or options.runs != Path("runs") or Path.cwd() != project.PROJECT:
        limits = "no --plan, --runs, --nodes or --json" if options.command == "train" else "no --runs"
        raise DeviceError(
            f"torch is not installed here, and training in the container supports {limits}; it writes to runs/ in the "
            "project",
            f"the other options, run in {project.PROJECT}",
            f"remove these options, or run `{INSTALL_TORCH}` to install torch here",
        )
    say(
        "torch is not installed here: training in a container, like `drivetrain launch`; "
        f"`{INSTALL_TORCH}` installs torch here"
    )
    from drivetrain.launch import container

    return container.launch(make_request(container.LaunchRequest, options, flags=list_flags(options)))


def list_flags(options: argparse.Namespace) -> tuple[str, ...]:
    """The command line options that are passed on to the command in the container."""
    flags = [f"--{name.replace('_', '-')}" for name in FORWARDED_SWITCHES if getattr(options, name, False)]
    for name in FORWARDED_NUMBERS:
        if (value := getattr(options, name, None)) is not None:
            flags += [f"--{name}", str(value)]
    return tuple(flags)
