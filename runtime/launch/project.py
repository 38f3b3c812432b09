"""The folder of this project on the host, and the names of its images and containers."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
TAG = "DRIVETRAIN_TAG"
"""The environment variable with the tag of the images; compose reads it from .env."""


def image(word: str) -> str:
    """The image name for a word. Names below `localhost/` are never looked up in a registry."""
    return f"localhost/drivetrain/{word}:{tag()}"


def tag(project: Path = PROJECT) -> str:
    """The tag of a checkout's images: two checkouts never share one; scripts/image-name computes the same."""
    return os.environ.get(TAG) or f"checkout-{hashlib.sha256(str(project).encode()).hexdigest()[:8]}"


def name(project: Path = PROJECT, uid: int | None = None) -> str:
    """The prefix of this user's container names for this checkout; scripts/project-name computes the same.

    Args:
        project: the checkout.
        uid: the user; the current one if None.
    """
    mark = hashlib.sha256(f"{os.getuid() if uid is None else uid}:{project}".encode()).hexdigest()
    return f"drivetrain-{mark[:8]}"
