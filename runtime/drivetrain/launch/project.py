"""The folder that containers work in, the compose files, and the names of images and containers.

`python -m drivetrain.launch.project image WORD` prints the name of an image, `... project` the prefix of container names.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from drivetrain.system.installation import CHECKOUT
from drivetrain.system.version import VERSION


def _find_current() -> Path:
    """Return the current folder, the project of an installed program."""
    try:
        return Path.cwd()
    except FileNotFoundError:  # the folder was removed; its users report that
        return Path("/")


PROJECT = CHECKOUT or _find_current()
"""Folder that a container sees as its project: the checkout, or for an installed program the current folder."""
RUNS = _find_current() / "runs"
"""Folder of the runs, in containers and without: what a run prints works where the command was typed."""
COMPOSE = CHECKOUT / "compose" if CHECKOUT else Path(__file__).parent / "compose"
"""The compose files; a wheel carries a copy (setup.py)."""
TAG = "DRIVETRAIN_TAG"
"""The environment variable with the tag of the images; compose reads it from .env."""


def image_name(variant: str) -> str:
    """Return the name of the image of a variant, such as cpu. No registry is asked for names below `localhost/`."""
    return f"localhost/drivetrain/{variant}:{image_tag()}"


def image_tag(project: Path = PROJECT) -> str:
    """Return the tag of the images: two checkouts never share one, and an installed program uses its version."""
    tag = f"checkout-{hashlib.sha256(str(project).encode()).hexdigest()[:8]}" if CHECKOUT else VERSION
    return os.environ.get(TAG) or tag


def container_prefix(project: Path = PROJECT, uid: int | None = None) -> str:
    """Return the prefix of the container names of a user, by default the current user, for this project."""
    if uid is None:
        uid = os.getuid()
    user_digest = hashlib.sha256(f"{uid}:{project}".encode()).hexdigest()
    return f"drivetrain-{user_digest[:8]}"


if __name__ == "__main__":
    print(image_name(sys.argv[2]) if sys.argv[1] == "image" else container_prefix())
