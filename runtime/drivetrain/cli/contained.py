"""The commands that train several times, and training in a container if torch exists in the image only."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from drivetrain.errors import DeviceError
from drivetrain.launch import image_contents, project, run_in_image
from drivetrain.system.console import say
from drivetrain.system.installation import INSTALL_TORCH

SWITCHES = ("plain", "new", "trace", "restart_schedule", "verbose")
NUMBERS = ("seeds", "folds", "trials")


def train(arguments: argparse.Namespace) -> int:
    """Run `train`, `repeat`, `inspect` or `sweep` in a container; returns the exit code.

    Raises:
        DeviceError: if an option names what a container does not see.
        DrivetrainError: if the spec is invalid, or the container cannot be started.
    """
    if (
        getattr(arguments, "plan", None)
        or getattr(arguments, "nodes", None)
        or getattr(arguments, "json", False)
        or arguments.runs != Path("runs")
        or Path.cwd() != project.PROJECT
    ):
        options = "no --plan, --runs, --nodes or --json" if arguments.command == "train" else "no --runs"
        raise DeviceError(
            f"torch is not installed here, and training in the container supports {options}; it writes to runs/ in the "
            "project",
            f"the other options, run in {project.PROJECT}",
            f"remove these options, or run `{INSTALL_TORCH}` to install torch here",
        )
    how = f"training in a container, like `drivetrain launch`; `{INSTALL_TORCH}` installs torch here"
    say(f"torch is not installed here: {how}")
    from drivetrain.launch import container

    return container.launch(
        container.LaunchRequest(
            arguments.job,
            tuple(arguments.set),
            flags=list_flags(arguments),
            extend=getattr(arguments, "extend", None),
            command=arguments.command,
        )
    )


def list_flags(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The options that the command in the container gets, too."""
    switches = [f"--{name.replace('_', '-')}" for name in SWITCHES if getattr(arguments, name, False)]
    numbers = [(f"--{name}", str(value)) for name in NUMBERS if (value := getattr(arguments, name, None)) is not None]
    return (*switches, *(word for pair in numbers for word in pair))


def repeat(options: argparse.Namespace) -> int:
    """Train with several seeds or folds, the latter also for `inspect`."""
    if run_in_image.torch_is_missing():
        return train(options)
    _check_image()
    from drivetrain.supervisor import repeat as repeating

    seeds, assignments = getattr(options, "seeds", None), tuple(options.set)
    return repeating.repeat(
        repeating.RepeatRequest(
            options.job, assignments, options.runs, seeds, options.folds, options.plain, options.new
        )
    )


def sweep(options: argparse.Namespace) -> int:
    """Search for better values."""
    if run_in_image.torch_is_missing():
        return train(options)
    _check_image()
    from drivetrain.supervisor.sweep import sweep as sweeping

    return sweeping.sweep(
        sweeping.SweepRequest(options.job, tuple(options.set), options.runs, options.trials, options.plain, options.new)
    )


def _check_image() -> None:
    """In a container, check that the image was built from this code."""
    if word := os.environ.get("DRIVETRAIN_IMAGE"):
        image_contents.check_in_container(word)
