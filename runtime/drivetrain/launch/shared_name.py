"""Tells two checkouts on one engine that both use the default project name of compose: the `up` of one stops the other."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from drivetrain.launch.image_contents import CHECKOUT
from drivetrain.system.console import say

PROJECT_NAME = "DRIVETRAIN_PROJECT"
"""The variable that compose/base.yaml sets."""
DEFAULT = "drivetrain"
"""The name in compose.yaml."""
RECORD = "checkout-of-default-project"
"""The file in the volume of the user that has the path of the last checkout."""


def report_other_checkout(
    state: Path | None = None, mounts: Path = Path("/proc/self/mountinfo"), checkout: Path = CHECKOUT
) -> None:
    """Print what to do if the last container with the default project name was one of another checkout.

    Args:
        state: the folder that the containers of a user share.
        mounts: the mounts of this process, which name the checkout's path on its host.
    """
    if os.environ.get(PROJECT_NAME) != DEFAULT:
        return
    record = (state or Path(os.environ.get("XDG_STATE_HOME", "/cache/state"))) / RECORD
    with contextlib.suppress(OSError, ValueError):  # only a note
        rows = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
        host_path = next((row[3] for row in rows if row[4] == str(checkout)), "")
        last_path = record.read_text(encoding="utf-8") if record.exists() else host_path
        if host_path and last_path != host_path:
            name = f"drivetrain-{hashlib.sha256(host_path.encode()).hexdigest()[:8]}"
            say(
                f"the checkout {last_path} on this engine has the same project name, so `docker compose up` in one stops the "
                f"training of the other; give this one a name of its own: echo COMPOSE_PROJECT_NAME={name} >> .env"
            )
        if host_path:
            record.write_text(host_path, encoding="utf-8")
