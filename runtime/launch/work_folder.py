"""The folder that containers work in, the checkout or for an installed program the current folder; paths inside it."""

from __future__ import annotations

import os
from pathlib import Path

from runtime.errors import SpecError
from runtime.launch import mounts
from runtime.launch.project import PROJECT
from runtime.system.files import storage_error
from runtime.system.installation import CHECKOUT


def check() -> None:
    """Check that the current folder may be mounted, and create its runs/; a checkout is always ready.

    Raises:
        SpecError: if it contains more than a container should see.
        StorageError: if runs/ cannot be created.
    """
    if CHECKOUT:
        return
    if why := mounts.refusal(PROJECT):
        raise SpecError(
            f"{PROJECT} would be mounted in the container, read-only except for runs/, and {why}",
            "a folder with only what your jobs need; runs/ is created in it",
            "mkdir training && cd training, and move the job file there; its data may be elsewhere",
        )
    try:
        (PROJECT / "runs").mkdir(exist_ok=True)
    except OSError as error:
        raise storage_error(PROJECT / "runs", error) from None


def path_inside(path: Path) -> str:
    """A path as seen in the container: relative to the project if it lies inside."""
    # For a spec that is a symlink, relative paths start from the folder of the link, on the host and in the container.
    for full in (Path(os.path.abspath(path)), path.parent.resolve() / path.name):
        if full.is_relative_to(PROJECT):
            return str(full.relative_to(PROJECT))
    return os.path.abspath(path)


def run_inside(run: Path | None) -> Path | None:
    """A run folder as seen in the container.

    Raises:
        SpecError: if it is outside of runs/, the only run folders that a container sees.
    """
    if run is None:
        return None
    full = Path(os.path.abspath(run))
    if not full.is_relative_to(PROJECT / "runs"):
        raise SpecError(
            f"--extend {run}: a container does not see this folder",
            f"a run in {PROJECT / 'runs'}",
            "copy it there, or train without a container: `drivetrain train`",
        )
    return full.relative_to(PROJECT)
