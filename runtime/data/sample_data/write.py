"""Samples: learnable data of realistic shape, made from a seed, so that every example job runs offline. No torch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from runtime.errors import SpecError
from runtime.system.files import storage_error

KINDS = {"images": "images", "texts": "text", "series": "series", "table": "tables"}
"""What can be made, and the module that makes it."""
LEAST = 20
"""So few samples hold every class, and something for validation."""
Write = Callable[[Path, int, int], list[Path]]


def write(kind: str, folder: Path, size: int, seed: int) -> list[Path]:
    """Write a data set into a folder that is new or empty.

    Args:
        kind: a key of KINDS.
        folder: where the files go.
        size: images, texts, or rows of a series or a table.
        seed: the same seed gives the same bytes, on the same machine and with the same libraries.

    Returns:
        The files, in order.

    Raises:
        SpecError: if there are fewer samples than LEAST, or the folder has something in it.
        StorageError: if it cannot be written.
    """
    if size < LEAST:
        raise SpecError(f"--size {size}", f"{LEAST} samples or more", "ask for more")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "not empty" if folder.is_dir() else "a file"
        raise SpecError(
            f"{folder} is {what}",
            "a new or an empty folder, so that no other data gets mixed in",
            "name another one, or remove it first",
        )
    make: Write = import_module(f"{__package__}.{KINDS[kind]}").write
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return make(folder, size, seed)
    except OSError as error:
        raise storage_error(folder, error) from None
