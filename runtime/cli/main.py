"""The command line: `python -m runtime COMMAND`, installed as `drivetrain`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from runtime.cli.command_line import parse
from runtime.cli.commands import COMMANDS
from runtime.errors import DrivetrainError
from runtime.launch import run_in_image
from runtime.supervisor import named_run
from runtime.system import secrets


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    secrets.take()
    try:
        given = parse(arguments)
        _find_runs(given)
        if run_in_image.wanted(given.command):
            return run_in_image.run(given, sys.argv[1:] if arguments is None else arguments)
        return COMMANDS[given.command](given)
    except DrivetrainError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


def _find_runs(given: argparse.Namespace) -> None:
    """Check that every run on the command line exists; `watch` without a run means the newest."""
    if given.command == "watch" and given.run is None:
        given.run = named_run.newest()
    for path in [given.run] if hasattr(given, "run") else given.runs if given.command == "compare" else ():
        named_run.existing(path)
