"""Checkout: the folder of this project on the host, and the names that the engine knows it by."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def image(word: str) -> str:
    """The image of a word. No registry can have it: names below `localhost/` are resolved on this machine alone."""
    return f"localhost/drivetrain/{word}:latest"


def name(project: Path = PROJECT, uid: int | None = None) -> str:
    """What this user's containers of this checkout are called at the start; scripts/project-name computes the same.

    Args:
        project: the checkout.
        uid: the user; the caller if None.
    """
    mark = hashlib.sha256(f"{os.getuid() if uid is None else uid}:{project}".encode()).hexdigest()
    return f"drivetrain-{mark[:8]}"
