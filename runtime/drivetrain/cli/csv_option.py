"""The option --csv: how CSV files are written, such as `delimiter=semicolon,decimal=comma`."""

from __future__ import annotations

import argparse
from typing import get_args

from drivetrain.data.formats.csv_dialect import OPTION
from drivetrain.errors import SpecError, nearest
from drivetrain.job.data import CsvOptions

HELP = "how CSV files are written, if it is not clear: delimiter=semicolon,decimal=comma,encoding=windows-1252"


def add(command: argparse.ArgumentParser) -> None:
    """Add the option to a command."""
    command.add_argument("--csv", default="", metavar="KEY=VALUE,...", help=HELP)


def parse(text: str) -> dict[str, str]:
    """The declared options, with the keys and values of `data.csv` in a job.

    Raises:
        SpecError: for an unknown key or value.
    """
    # No values for `skip_rows`, which takes a number.
    allowed = {name: get_args(field.annotation) for name, field in CsvOptions.model_fields.items()}
    declared = {}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        if key not in allowed:
            keys = ", ".join(f"{name}=..." for name in allowed)
            raise SpecError(f"{OPTION}: {pair!r} names no option", keys, nearest(key, allowed) or "use one of these")
        is_valid = value in allowed[key] if allowed[key] else value.isdecimal()
        if not is_valid:
            possible = ", ".join(allowed[key]) or "a number of lines"
            action = nearest(value, allowed[key]) or "use one of these"
            raise SpecError(f"{OPTION}: {key} is {value!r}", possible, action)
        # `auto` is as if nothing were written.
        if value != "auto":
            declared[key] = value
    return declared
