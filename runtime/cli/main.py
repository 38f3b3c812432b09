"""The command line: `python -m runtime COMMAND`, installed as `drivetrain`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from runtime.cli import runs_option
from runtime.cli.command_line import parse
from runtime.cli.commands import COMMANDS
from runtime.errors import DataError, DrivetrainError, SpecError, StorageError
from runtime.launch import run_in_image
from runtime.supervisor import named_run
from runtime.system import interpreter, secrets
from runtime.system.console import guard_output, say_error
from runtime.system.files import storage_error

OUTLIVE_OUTPUT = ("train", "sweep", "repeat", "reproduce")
"""Commands whose results are run folders; they go on when nobody reads what they print."""


def command() -> NoReturn:
    """Run the command of this process and end it."""
    interpreter.leave(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    guard_output(needed=True)
    secrets.take()
    try:
        given = parse(arguments)
        if given.command in OUTLIVE_OUTPUT:
            guard_output()
        _check(given)
        if run_in_image.wanted(given.command):
            return run_in_image.run(given, sys.argv[1:] if arguments is None else arguments)
        code = COMMANDS[given.command](given)
        sys.stdout.flush()
        return code
    except DrivetrainError as error:
        say_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except UnicodeEncodeError as error:
        # Bytes of a name that are not UTF-8, which pyarrow and safetensors cannot open.
        if not any("\udc80" <= letter <= "\udcff" for letter in error.object):
            raise
        say_error(
            DataError(f"{error.object}: the path is not UTF-8", "a path that is UTF-8", "rename the file or folder")
        )
        return DataError.exit_code
    except PermissionError as error:
        # A folder of another user, or one that was closed meanwhile: any command meets it where it first looks inside.
        if error.filename is None:
            raise
        say_error(storage_error(Path(os.fsdecode(error.filename)), error))
        return StorageError.exit_code
    except BrokenPipeError:
        return 0  # who reads has seen enough, as `head` has


def _check(given: argparse.Namespace) -> None:
    """Check the runs and options that the parser cannot check; `watch` without a run means the newest."""
    runs_option.apply(given)
    runs_option.fetch(given)
    if given.command == "watch" and given.run is None:
        given.run = named_run.newest()
    named = [given.run] if hasattr(given, "run") else given.runs if given.command == "compare" else []
    for path in [*named, *filter(None, [getattr(given, "extend", None)])]:
        named_run.existing(path)
    if given.command == "watch":
        given.run = named_run.newest_trial(given.run)
    if given.command == "train" and given.plain and given.plan:
        raise SpecError("--plain and --plan together", "one of them", "remove one")
    if getattr(given, "restart_schedule", False) and not given.extend:
        raise SpecError("--restart-schedule without --extend", "both together", "add --extend RUN, or remove it")
