"""What every measuring program of `tuning/processes` begins and ends with: its arguments and its exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from drivetrain.errors import DrivetrainError
from drivetrain.job_spec import spec_source
from drivetrain.system.console import guard_output, say_error


def make_parser(*paths: str) -> argparse.ArgumentParser:
    """The parser: FOLDER, further paths, SPEC, then what the program adds, and values that override the spec."""
    parser = argparse.ArgumentParser()
    for name in ("folder", *paths):
        parser.add_argument(name, type=Path)
    spec_source.add_options(parser)
    return parser


def run(work: Callable[[], None]) -> int:
    """The exit code of the work; an error of ours is printed."""
    guard_output()
    try:
        work()
    except DrivetrainError as error:
        say_error(error)
        return error.exit_code
    return 0
