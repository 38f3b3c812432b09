"""`drivetrain repeat`: trains a job several times."""

from __future__ import annotations

import argparse

from runtime.errors import DeviceError
from runtime.launch import run_in_image
from runtime.system.installation import SETUP


def repeat(given: argparse.Namespace) -> int:
    """Train with several seeds or folds.

    Raises:
        DeviceError: if torch is not installed here.
    """
    if run_in_image.missing():
        raise DeviceError(
            "torch is not installed here, and `drivetrain repeat` starts no container",
            "torch in the local environment, or this command inside a container",
            f"`{SETUP}`, or docker compose run --rm trainer repeat {given.job}",
        )
    from runtime.supervisor import repeat as repeating

    return repeating.repeat(
        repeating.RepeatRequest(
            given.job, tuple(given.set), given.runs, given.seeds, given.folds, given.plain, given.new
        )
    )


def sweep(given: argparse.Namespace) -> int:
    """Search for better values."""
    from runtime.supervisor.sweep import sweep as sweeping

    return sweeping.sweep(
        sweeping.SweepRequest(given.job, tuple(given.set), given.runs, given.trials, given.plain, given.new)
    )
