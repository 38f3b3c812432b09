"""The folder that the containers of an installed program work in: the current one."""

from __future__ import annotations

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
