"""The request for a draft: the data, and what the user already specified."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.job.draft import Entry, quote

KEY = "init"
"""Stands for the spec key in messages about the data, since there is no spec yet."""


@dataclass(frozen=True)
class SurveyRequest:
    """The data to draft a spec for, and the options of `drivetrain init`."""

    path: Path
    base: Path
    """The folder of the spec."""
    task: str | None = None
    targets: tuple[str, ...] = ()
    """Columns named with --target."""
    texts: tuple[str, ...] = ()
    """Columns named with --text."""
    csv: Mapping[str, str] = field(default_factory=dict)
    """How CSV files are written, with the keys of `data.csv`."""
    pretrained: str | None = None
    """A folder or a name of pretrained weights."""

    def format_path(self, path: Path) -> str:
        """A path for the spec: relative to the spec if both are in the working folder."""
        text, base, working_folder = os.path.abspath(path), os.path.abspath(self.base), os.getcwd()
        if Path(text).is_relative_to(working_folder) and Path(base).is_relative_to(working_folder):
            text = os.path.relpath(text, self.base)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SpecError(
                f"{KEY}: the path {os.fsencode(text)!r} is not UTF-8",
                "a path that can stand in a YAML file",
                "rename the file or folder",
            ) from None
        return f"./{text}" if text.startswith("~") else text

    def path_entry(self, key: str, path: Path, reason: str) -> Entry:
        """A key of the draft with a path."""
        return Entry(key, quote(self.format_path(path)), reason)

    def check_task(self, possible: tuple[str, ...], reason: str) -> None:
        """Check that the requested task, if any, fits the data; raises SpecError if it does not."""
        if self.task and self.task not in possible:
            raise SpecError(
                f"--task {self.task}: {reason}", f"for these data: {', '.join(possible)}", "leave --task out"
            )

    def check_no_columns(self, reason: str) -> None:
        """Check that no columns are named for data without columns; raises SpecError if some are."""
        options = {"--target": self.targets, "--text": self.texts}
        if used := " and ".join(option for option, values in options.items() if values):
            raise SpecError(f"{used}: {reason}", "columns of a table", f"leave {used} out")
