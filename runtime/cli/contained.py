"""Training in a container, like `drivetrain launch`, if torch exists in the image only."""

from __future__ import annotations

import argparse
from pathlib import Path

from runtime.errors import DeviceError
from runtime.launch import project
from runtime.system.console import say
from runtime.system.installation import SETUP

SWITCHES = ("plain", "new", "trace", "restart_schedule")
NUMBERS = ("seeds", "folds", "trials")


def train(given: argparse.Namespace) -> int:
    """Run `train`, `repeat` or `sweep` in a container; returns the exit code.

    Raises:
        DeviceError: if an option names what a container does not see.
        DrivetrainError: if the spec is invalid, or the container cannot be started.
    """
    if (
        getattr(given, "plan", None)
        or getattr(given, "nodes", None)
        or given.runs != Path("runs")
        or Path.cwd() != project.PROJECT
    ):
        options = "no --plan, --runs or --nodes" if given.command == "train" else "no --runs"
        raise DeviceError(
            f"torch is not installed here, and training in the container supports {options}; it writes to runs/ in the "
            "project",
            f"the other options, run in {project.PROJECT}",
            f"remove these options, or run `{SETUP}` to install torch here",
        )
    say(
        f"torch is not installed here: training in a container, like `drivetrain launch`; `{SETUP}` installs torch here"
    )
    from runtime.launch import container

    return container.launch(
        container.LaunchRequest(
            given.job,
            tuple(given.set),
            flags=flags(given),
            extend=getattr(given, "extend", None),
            command=given.command,
        )
    )


def flags(given: argparse.Namespace) -> tuple[str, ...]:
    """The options that the command in the container gets, too."""
    switches = [f"--{name.replace('_', '-')}" for name in SWITCHES if getattr(given, name, False)]
    numbers = [(f"--{name}", str(value)) for name in NUMBERS if (value := getattr(given, name, None)) is not None]
    return (*switches, *(word for pair in numbers for word in pair))
