"""Recognizes folders that are the splits of a data set, train/, val/ and test/ with class folders each; without torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import DataError

TRAIN, VALIDATION, TEST = (
    ("train", "training"),
    ("validation", "valid", "val", "dev"),
    ("test", "testing", "eval"),
)
NAMES = {*TRAIN, *VALIDATION, *TEST}


@dataclass(frozen=True)
class SplitFolders:
    """Names of the folders of a data set; None for what it does not have."""

    train: str
    validation: str | None
    test: str | None

    @property
    def names(self) -> list[str]:
        """All of them."""
        return [name for name in (self.train, self.validation, self.test) if name]


def find(folder: Path, key: str) -> SplitFolders | None:
    """The splits in a folder; None if its folders are classes.

    Raises:
        DataError: if there are classes beside splits, or two folders for the same split; names `key`.
    """
    names = _subfolders(folder)
    found = [[name for name in names if name.lower() in words] for words in (TRAIN, VALIDATION, TEST)]
    train, *held = found
    others = [name for name in names if name.lower() not in NAMES]
    if not train or not (any(held) or (len(names) == 1 and len(_subfolders(folder / train[0])) > 1)):
        return None
    twice = next((same for same in found if len(same) > 1), None)
    if others or twice:
        given = f"{' and '.join(twice)} for one split" if twice else f"{_listed(others)} beside them"
        raise DataError(
            f"{key}: the folders {_listed([name for same in found for name in same])} of {folder} look like the splits of a "
            f"data set, and there is {given}",
            "one folder for each split, train, validation and test, and no other; or one folder per class",
            f"move the others away, or name the splits: data.train: {folder / train[0]}"
            + (f", data.validation: {folder / held[0][0]}" if held[0] else ""),
        )
    return SplitFolders(train[0], *(same[0] if same else None for same in held))


def _subfolders(folder: Path) -> list[str]:
    """Names of the subfolders, sorted, without hidden ones; none if it cannot be listed, which its reader reports."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except (OSError, ValueError):
        return []


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
