"""`drivetrain repeat` and `drivetrain sweep`: train a job several times."""

from __future__ import annotations

import argparse
import os

from runtime.cli import contained
from runtime.launch import image_contents, run_in_image


def repeat(given: argparse.Namespace) -> int:
    """Train with several seeds or folds."""
    if run_in_image.missing():
        return contained.train(given)
    _check_image()
    from runtime.supervisor import repeat as repeating

    return repeating.repeat(
        repeating.RepeatRequest(
            given.job, tuple(given.set), given.runs, given.seeds, given.folds, given.plain, given.new
        )
    )


def sweep(given: argparse.Namespace) -> int:
    """Search for better values."""
    if run_in_image.missing():
        return contained.train(given)
    _check_image()
    from runtime.supervisor.sweep import sweep as sweeping

    return sweeping.sweep(
        sweeping.SweepRequest(given.job, tuple(given.set), given.runs, given.trials, given.plain, given.new)
    )


def _check_image() -> None:
    """In a container, check that the image was built from this code."""
    if word := os.environ.get("DRIVETRAIN_IMAGE"):
        image_contents.check_in_container(word)
