"""Writes sample data sets, learnable and realistic in shape, from a seed, so that all example jobs run offline."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.system.files import blame_storage

KINDS = {"images": "images", "texts": "text", "series": "series", "table": "tables"}
"""Kinds of data sets, and the module that writes each. None of them imports torch."""
EXAMPLES = {
    "data/patterns": ("images", "data/patterns", 1200),
    "data/reports/reports.csv": ("texts", "data/reports", 6000),
    "data/series/train.csv": ("series", "data/series", 64000),
    "data/table/train.parquet": ("table", "data/table", 40000),
}
"""By the path that an example job names: kind, folder and size of its sample data."""
MIN_SAMPLES = 20
"""Fewest samples with which every class occurs, in validation too."""
Write = Callable[[Path, int, int], list[Path]]


def command(path: str) -> str | None:
    """The command that writes the sample data that an example job names by `path`; None for any other path."""
    if path not in EXAMPLES:
        return None
    kind, folder, size = EXAMPLES[path]
    return f"drivetrain sample {kind} {folder} --size {size}"


def write(kind: str, folder: Path, size: int, seed: int) -> list[Path]:
    """Write a data set into a new or empty folder.

    Args:
        kind: a key of KINDS.
        folder: destination.
        size: images, texts, or rows of a series or a table.
        seed: the same seed gives the same bytes, on the same machine with the same library versions.

    Returns:
        The files, in order.

    Raises:
        SpecError: if `size` is below MIN_SAMPLES, or the folder is not empty.
        StorageError: if it cannot be written.
    """
    if size < MIN_SAMPLES:
        raise SpecError(f"--size {size}", f"{MIN_SAMPLES} samples or more", "raise --size")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        state = "not empty" if folder.is_dir() else "a file"
        raise SpecError(
            f"{folder} is {state}",
            "a new or empty folder, so that no other data is mixed in",
            "name another one, or remove it first",
        )
    make: Write = import_module(f"{__package__}.{KINDS[kind]}").write
    with blame_storage(folder):
        return make(folder, size, seed)
