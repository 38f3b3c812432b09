"""Runs a command that trains in a container if torch is installed only in the image; `repeat`, `sweep` and `tradeoffs` use it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from drivetrain.cli.request import make_request
from drivetrain.errors import DeviceError
from drivetrain.launch import image_contents, project, run_in_image
from drivetrain.system.console import say
from drivetrain.system.installation import INSTALL_TORCH

FORWARDED_SWITCHES = ("plain", "new", "trace", "restart_schedule", "verbose")
FORWARDED_NUMBERS = ("seeds", "folds", "trials", "within")


def run_in_container(options: argparse.Namespace) -> int:
    """Run `train`, `repeat`, `inspect`, `sweep` or `tradeoffs` in a container; returns the exit code.

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


def repeat(options: argparse.Namespace) -> int:
    """Train with several seeds or folds (`repeat`), or with folds only (`inspect`)."""
    if run_in_image.torch_is_missing():
        return run_in_container(options)
    _check_image()
    from drivetrain.supervisor import repeat as repeated_runs

    return repeated_runs.repeat(make_request(repeated_runs.RepeatRequest, options))


def sweep(options: argparse.Namespace) -> int:
    """Search for better values of the spec keys that the job names under `sweep`."""
    if run_in_image.torch_is_missing():
        return run_in_container(options)
    _check_image()
    from drivetrain.supervisor.sweep import sweep as trials

    return trials.sweep(make_request(trials.SweepRequest, options))


def tradeoffs(options: argparse.Namespace) -> int:
    """Measure what changes of the job save in time, and what they cost in quality."""
    if run_in_image.torch_is_missing():
        return run_in_container(options)
    _check_image()
    from drivetrain.supervisor.tradeoffs import tradeoffs as variants

    return variants.measure_tradeoffs(
        variants.TradeoffsRequest(options.job, tuple(options.set), options.runs, options.within, options.new)
    )


def _check_image() -> None:
    """In a container, check that the image was built from this code."""
    if image_id := os.environ.get("DRIVETRAIN_IMAGE"):
        image_contents.check_in_container(image_id)
