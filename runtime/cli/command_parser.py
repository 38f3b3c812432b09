"""A parser of the standard library whose errors are ours."""

from __future__ import annotations

import argparse
from typing import NoReturn

from runtime.errors import SpecError

_REQUIRED = "the following arguments are required: "


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors have the three parts of all others."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            SpecError: always.
        """
        usage = " ".join(self.format_usage().removeprefix("usage: ").split())
        lacking = message.removeprefix(_REQUIRED)
        what = f"{self.prog}: {lacking} {'are' if ',' in lacking else 'is'} missing" if lacking != message else message
        given, choices, possible = what.removeprefix("argument ").partition(" (choose from ")
        raise SpecError(
            given, possible.removesuffix(")") if choices else usage, f"`{self.prog} --help` explains the arguments"
        )
