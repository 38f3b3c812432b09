"""The option --csv: how CSV files are written, such as `delimiter=semicolon,decimal=comma`."""

from __future__ import annotations

from typing import get_args

from runtime.data.formats.csv_dialect import OPTION
from runtime.errors import SpecError, nearest
from runtime.job.data import CsvOptions

HELP = "how CSV files are written, if it is not clear: delimiter=semicolon,decimal=comma,encoding=windows-1252"


def parse(text: str) -> dict[str, str]:
    """The declared options, with the keys and values of `data.csv` in a job.

    Raises:
        SpecError: for an unknown key or value.
    """
    fields = {name: get_args(field.annotation) for name, field in CsvOptions.model_fields.items()}
    found = {}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        if key not in fields:
            keys = ", ".join(f"{name}=..." for name in fields)
            raise SpecError(f"{OPTION}: {pair!r} names no option", keys, nearest(key, fields) or "use one of these")
        if value not in fields[key] if fields[key] else not value.isdecimal():
            given, possible = f"{OPTION}: {key} is {value!r}", ", ".join(fields[key]) or "a number of lines"
            raise SpecError(given, possible, nearest(value, fields[key]) or "use one of these")
        if value != "auto":
            found[key] = value
    return found
