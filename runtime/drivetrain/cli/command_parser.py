"""The parser of a command line, whose errors have the three parts of all others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from drivetrain.errors import SpecError

_REQUIRED = "the following arguments are required: "


class CommandParser(argparse.ArgumentParser):
    """Parser whose errors say what was given, what is allowed and how to fix it."""

    def add_switch(self, name: str, text: str) -> None:
        """Add an option without a value."""
        self.add_argument(name, action="store_true", help=text)

    def add_path(self, name: str, metavar: str, text: str) -> None:
        """Add an option whose value is a file or a folder."""
        self.add_argument(name, type=Path, metavar=metavar, help=text)

    def add_choice(self, name: str, choices: Sequence[str], text: str) -> None:
        """Add an option with a choice of values, whose first is the default."""
        self.add_argument(name, choices=choices, default=choices[0], help=f"{text} (default: {choices[0]})")

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            SpecError: always.
        """
        usage = " ".join(self.format_usage().removeprefix("usage: ").split())
        lacking = message.removeprefix(_REQUIRED)
        text = f"{self.prog}: {lacking} {'are' if ',' in lacking else 'is'} missing" if lacking != message else message
        description, choices, possible = text.removeprefix("argument ").partition(" (choose from ")
        raise SpecError(
            description,
            possible.removesuffix(")") if choices else usage,
            f"`{self.prog} --help` explains the arguments",
        )
