"""`drivetrain init`: drafts a commented job file from the data; never overwrites a file."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from drivetrain.errors import DataError, SpecError
from drivetrain.job.draft import Draft, make_run_name, name_job_file
from drivetrain.pretrained import convert
from drivetrain.system import installation
from drivetrain.system.console import say
from drivetrain.system.files import storage_error


def init(options: argparse.Namespace) -> int:
    """Inspect the data, write the spec, and print the next steps.

    Raises:
        DataError: if no task fits the data.
        SpecError: if the file exists, or an option does not fit the data.
        StorageError: if the file cannot be written.
    """
    from drivetrain.data.survey.look import look
    from drivetrain.data.survey.settings import SurveyRequest

    # Two jobs of one file would share their runs if both had its name.
    output = options.output or name_job_file(options.data)
    name = make_run_name(output.stem)
    if os.path.lexists(options.data):  # else the draft explains the problem
        _check_is_free(output)
    if options.pretrained:
        convert.convert_local(Path(options.pretrained))
    draft = look(
        SurveyRequest(
            options.data,
            output.parent,
            options.task,
            tuple(options.target),
            tuple(options.text),
            options.csv,
            options.pretrained,
        )
    )
    _write(output, draft.text(name, _make_heading(options.data, output)))
    _print(draft, output)
    return 0


def _check_is_free(output: Path) -> None:
    if os.path.lexists(output):
        raise SpecError(
            f"{output} is there already",
            "a name that is not taken: no file is overwritten",
            f"--output with another name, or remove it: rm {shlex.quote(str(output))}",
        )


def _make_heading(data: Path, output: Path) -> list[str]:
    return [
        f"A first job file, written by `drivetrain init {shlex.quote(str(data))}` .",
        f"Train it: {installation.format_train_command(output)}",
        "Change any value; `drivetrain validate` checks the file. docs/spec.md lists all keys.",
    ]


def _write(output: Path, text: str) -> None:
    """Write the file; remove it again if it is no valid spec."""
    from drivetrain.job_spec import load_job as job_spec

    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        _check_is_free(output)
        raise
    except OSError as error:
        raise storage_error(output, error, "--output FILE") from None
    try:
        job_spec.load(output)
    except (DataError, SpecError) as error:
        output.unlink()
        raise DataError(
            f"init: a spec for these data would not be valid: {error.lines()[0]}",
            "columns and paths that a spec can name",
            "rename what it names, or write the spec by hand from one in jobs/",
        ) from None


def _print(draft: Draft, output: Path) -> None:
    say(f"{output}: {draft.task}, {draft.reason}")
    for line in (*draft.found, *draft.choices):
        say(f"  {line}")
    say(f"written to {output.resolve()}; relative paths in it start from that folder")
    say(f"next: {installation.format_train_command(output)}")
