"""The folder into which a command in a container writes what it makes, if it lies outside of the project."""

from __future__ import annotations

import os
from pathlib import Path

from runtime.errors import SpecError, StorageError
from runtime.launch import mounts, one_line
from runtime.launch.project import PROJECT
from runtime.system.installation import SETUP


def mount(output: Path | None, option: str = "--output ") -> Path | None:
    """The existing folder that is mounted for writing, at its own path; None if the output lies in the project.

    Args:
        output: as on the command line.
        option: what stands before it there.

    Raises:
        SpecError: if that folder contains more than a container should be able to change.
    """
    if output is None or Path(os.path.abspath(output)).is_relative_to(PROJECT):
        return None
    folder = _existing(output).resolve()
    for path in (output, folder):
        one_line.check({option.strip(" =") or "the output": str(path)})
    if why := mounts.refusal(folder):
        raise SpecError(
            f"{option}{output}: a container would have to write to {folder}, and {why}",
            f"a folder of its own, or one in {PROJECT}",
            f"{option}runs/{output.name}, or name a folder that exists and has nothing else in it",
        )
    return folder


def check_writable(output: Path | None, uid: int) -> None:
    """Check the output folder for root, whose container runs as another user that cannot write everywhere.

    Args:
        output: as on the command line.
        uid: the user of the container.

    Raises:
        StorageError: if the output is in a folder owned by root.
    """
    if output is None or uid == os.getuid():
        return
    folder = _existing(output)
    if folder.stat().st_uid != uid and not folder.stat().st_mode & 0o002:
        raise StorageError(
            f"--output {output}: {folder} belongs to uid {folder.stat().st_uid}, and for root the container runs as "
            f"uid {uid}",
            "a folder of that user, as runs/ is",
            f"--output runs/{output.name}, or `{SETUP}`, then no container is needed for this",
        )


def _existing(output: Path) -> Path:
    return next(path for path in Path(os.path.abspath(output)).parents if path.exists())
