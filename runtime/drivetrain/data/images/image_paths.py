"""Finds the image files of a manifest whose cells are no paths yet: ids without folder and extension, backslashes; no torch.

The same change applies to all rows, and a note says which. Nothing is changed if the paths are right as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.data.images.split_folders import EXTENSIONS, list_subfolders
from drivetrain.errors import DataError

_ENDINGS = ("", *EXTENSIONS, *(ending.upper() for ending in EXTENSIONS))
_SAMPLED_ROWS = 200
"""Number of rows with which a form of the paths is tried."""
_FIRST_ROWS = 5
"""Number of rows, one of which must exist under a form before the form is tried with the sample."""
_MOST_FOLDERS = 200
"""Largest number of folders in which files are looked for."""
_MOST_DROPPED = 8
"""Largest number of leading folders of a cell that are dropped."""


@dataclass(frozen=True)
class PathForm:
    """How a cell becomes a path, relative to the folder of the manifest."""

    dropped: int = 0
    """Folders at the beginning of the cell that are those of another machine."""
    folder: str = ""
    """The folder that is put before the cell."""
    ending: str = ""
    """The extension that is put behind the cell."""

    def path(self, cell: str) -> str:
        """The path for a cell."""
        parts = cell.replace("\\", "/").split("/")
        return os.path.join(self.folder, "/".join(parts[min(self.dropped, len(parts) - 1) :]) + self.ending)


def find(folder: Path, cells: Sequence[str], column: str, key: str) -> tuple[list[str], list[str]]:
    """Find the paths of a column, relative to the folder of its manifest; also notes on changes. Empty cells stay empty.

    Raises:
        DataError: if the files of the cells are in two folders; names `key`.
    """
    filled = [cell for cell in cells if cell]
    sample = filled[:: -(-len(filled) // _SAMPLED_ROWS)] if filled else []
    existing = sum(os.path.lexists(folder / cell) for cell in sample)
    if 2 * existing >= len(sample):
        return list(cells), []
    counts = {
        form: sum(os.path.lexists(folder / form.path(cell)) for cell in sample) for form in _find_forms(folder, sample)
    }
    highest_count = max(counts.values(), default=0)
    best = [form for form, count in counts.items() if count == highest_count]
    if highest_count <= existing or 2 * highest_count < len(sample):
        return list(cells), []
    form = best[0]
    possible_folders = sorted(
        {candidate.folder for candidate in best if (candidate.dropped, candidate.ending) == (form.dropped, form.ending)}
    )
    if len(possible_folders) > 1:
        raise DataError(
            f'{key}: column "{column}" has {sample[0]}, and there are such files in {" and in ".join(possible_folders[:3])}',
            f"paths that are relative to {folder}",
            f"write the folder into the column: {form.path(sample[0])}",
        )
    note = f'{key}: column "{column}" has {sample[0]}, which is read as {form.path(sample[0])}, and so for all rows'
    return [form.path(cell) if cell else "" for cell in cells], [note]


def _find_forms(folder: Path, sample: Sequence[str]) -> Iterator[PathForm]:
    """Yield the forms under which one of the first files exists; the least change first."""
    depth = min(_MOST_DROPPED, max((cell.replace("\\", "/").count("/") for cell in sample), default=0))
    folders = ["", *_folders(folder)]
    for dropped in range(depth + 1):
        for inner_folder in folders:
            for ending in _ENDINGS:
                form = PathForm(dropped, inner_folder, ending)
                if any(os.path.isfile(folder / form.path(cell)) for cell in sample[:_FIRST_ROWS]):
                    yield form


def _folders(folder: Path) -> list[str]:
    """The folders in a folder and those in them, relative to it."""
    paths: list[str] = []
    for first in list_subfolders(folder)[:_MOST_FOLDERS]:
        paths += [first, *(os.path.join(first, second) for second in list_subfolders(folder / first))]
    return paths[:_MOST_FOLDERS]
