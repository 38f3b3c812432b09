"""The command line: `python -m drivetrain COMMAND`, installed as `drivetrain`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from drivetrain.cli.arguments import TRAINING, list_commands, make_parser
from drivetrain.cli.command_line import parse
from drivetrain.errors import DataError, DrivetrainError, SpecError, StorageError
from drivetrain.supervisor import named_run
from drivetrain.system import interpreter, secrets
from drivetrain.system.console import VERBOSE_VARIABLE, guard_output, say_error, say_json
from drivetrain.system.files import storage_error


def command() -> NoReturn:
    """Run the command of this process and end it, or print its completions for a shell."""
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    interpreter.exit_process(main())


def _complete() -> None:
    """Print what may come next in the shell's command line, runs by their names, and end this process."""
    import argcomplete

    parser = make_parser()
    for command_parser in list_commands(parser).values():
        for action in command_parser._actions:
            if action.type is named_run.parse:
                # argcomplete reads the attribute.
                setattr(action, "completer", named_run.list_names)  # noqa: B010
    argcomplete.autocomplete(parser)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    guard_output(needed=True)
    secrets.load_secrets()
    try:
        options = parse(arguments)
        if options.command in TRAINING:
            guard_output()
        _check(options)
        if getattr(options, "verbose", False):
            os.environ[VERBOSE_VARIABLE] = "1"
        from drivetrain.cli import commands  # not before, so that `--help` answers at once

        code = commands.run(options, sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except DrivetrainError as error:
        say_error(error)
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            say_json(error.to_json())
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


def _check(options: argparse.Namespace) -> None:
    """Check the runs and options that the parser cannot check; `watch` without a run means the newest."""
    if options.command == "watch" and options.run is None:
        options.run = named_run.find_newest()
    # `runs` is the parent of the run folders in all other commands.
    runs = list(options.runs) if options.command == "compare" else []
    runs += [getattr(options, name) for name in ("run", "extend") if getattr(options, name, None)]
    for path in runs:
        named_run.check_exists(path)
    if options.command == "watch":
        options.run = named_run.find_newest_trial(options.run)
    if options.command == "train" and options.plain and options.plan:
        raise SpecError("--plain and --plan together", "one of them", "remove one")
    if getattr(options, "if_unfinished", False) and options.new:
        raise SpecError("--new and --if-unfinished together", "one of them", "remove one")
