"""Recognizes pictures, folders left by programs, and the splits of a data set by their names; without torch.

Operating systems, network drives and cameras leave folders next to pictures. They hold thumbnails and deleted files, so
they are neither classes nor samples. Hidden folders, whose names begin with a dot, are skipped earlier.

The cells of a manifest may be paths without extension, or have backslashes. The same change then applies to all rows,
with a note. Nothing is changed if the paths are right.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.data.notes import list_names
from drivetrain.errors import DataError
from drivetrain.job.formatting import readable

_LEFTOVER_NAMES = {
    # Synology, QNAP
    *("@eadir", "@tmp", "@sharebin", "@recycle", "@recently-snapshot", "@__thumb", "#recycle", "#snapshot"),
    # macOS, Windows, Linux, Android
    *("__macosx", "network trash folder", "temporary items", "thevolumesettingsfolder"),
    *("$recycle.bin", "recycler", "recycled", "system volume information", "lost+found", "lost.dir"),
    # cameras and programs for photographs
    *("thmbnl", "picasaoriginals", "thumbnails", "_thumbnails", "_thumbs"),
    # Python
    *("__pycache__", "ipynb_checkpoints"),
}
_SHOWN_LINKS = 3
"""Number of broken links that a message names."""
_CHECKED_DISK = re.compile(r"found\.\d{3}")


def is_leftover(name: str) -> bool:
    """Return whether a folder of this name was left by a program and not made for pictures."""
    return name.casefold() in _LEFTOVER_NAMES or _CHECKED_DISK.fullmatch(name.casefold()) is not None


def is_broken_link(path: str) -> bool:
    """Return whether a path is a symlink whose target does not exist here, for example in a container."""
    return os.path.islink(path) and not os.path.exists(path)


def copy_without_links(folder: Path) -> str:
    """Return the command that copies a folder together with the targets of its links."""
    return shlex.join(["cp", "-rL", str(folder), f"{folder}-copy"])


def check_links(paths: Iterable[str], folder: Path, key: str) -> None:
    """Refuse broken symlinks: with samples missing, a container would train on other data than the host.

    Raises:
        DataError: with the first broken links and their targets; names `key`.
    """
    broken = [f"{path} -> {os.readlink(path)}" for path in paths if is_broken_link(path)]
    if broken:
        link_names = [readable(link) for link in broken[:_SHOWN_LINKS]]
        raise DataError(
            f"{len(broken):,} of the files and folders are links to what does not exist here: {', '.join(link_names)}",
            "links to what exists; in a container, only to what it mounts: below the named folder or the project, by "
            "relative links",
            f"fetch what they lead to, or remove them; if a container does not see it: {copy_without_links(folder)}",
            key=key,
        )


TRAIN, VALIDATION, TEST = (("train", "training"), ("validation", "valid", "val", "dev"), ("test", "testing", "eval"))
_SPLITS = {
    "train": {*TRAIN, "trn", "trainval"},
    "validation": {*VALIDATION, "validate", "valida", "holdout"},
    "test": {*TEST, "tests", "tst", "evaluation"},
}
_UNLABELED = {"pred", "predict", "prediction", "predictions", "unlabeled", "unlabelled"}
_COMPANIONS = {
    *("set", "data", "dataset", "split", "folder", "images", "image", "imgs", "img", "pictures", "pics", "photos")
}
"""Words that may stand next to the word of a split: `training_set`, `val_images`."""
_ENDS = re.compile(rf"(?<=[a-z])({'|'.join(sorted(_COMPANIONS, key=len, reverse=True))})$")
_MAX_FOLDER_LEVELS = 3
"""Largest number of folders between the folder of a split and its class folders, as in archives of archives."""


@dataclass(frozen=True)
class SplitFolders:
    """Folders of a data set, as paths relative to its own; None for missing splits."""

    train: str
    validation: str | None
    test: str | None
    unused: tuple[str, ...] = ()
    """Folders of images without classes, such as a flat test/."""

    @property
    def names(self) -> list[str]:
        """The folders of all splits that exist."""
        return [name for name in (self.train, self.validation, self.test) if name]


def are_splits(names: Sequence[str]) -> bool:
    """Return whether all of these names are names of splits."""
    return all(_splits_of(names).get(name) for name in names)


def find_splits(folder: Path, key: str) -> SplitFolders | None:
    """Find the splits in a folder; None if its folders are classes.

    Raises:
        DataError: if there are classes next to splits, or two folders for the same split; names `key`.
    """
    names = list_subfolders(folder)
    splits = _splits_of(names)
    groups = [[name for name in names if splits.get(name) == split] for split in _SPLITS]
    train, *evaluated = groups
    unlabeled = [name for name in names if splits.get(name) == "unlabeled"]
    other_names = [name for name in names if name not in splits]
    if not train or not (
        any(evaluated) or (len(names) == 1 and len(list_subfolders(folder / _descend(folder, train[0]))) > 1)
    ):
        return None
    duplicates = next((same for same in groups if len(same) > 1), None)
    if other_names or duplicates:
        problem = (
            f"{' and '.join(duplicates)} for one split" if duplicates else f"{list_names(other_names, 5)} beside them"
        )
        raise DataError(
            f"the folders {list_names([name for same in groups for name in same], 5)} of {folder} look like the splits of a "
            f"data set, and there is {problem}",
            "one folder for each split, train, validation and test, and no other; or one folder per class",
            f"move the others away, or name the splits: data.train: {folder / train[0]}"
            + (f", data.validation: {folder / evaluated[0][0]}" if evaluated[0] else ""),
            key=key,
        )
    train_folder = _descend(folder, train[0])
    classes = list_subfolders(folder / train_folder)
    evaluated_folders = [_descend(folder, same[0], classes) if same else None for same in evaluated]
    flat = [
        split_path for split_path in evaluated_folders if split_path and _has_no_classes(folder / split_path, classes)
    ]
    validation, test = (None if split_path in flat else split_path for split_path in evaluated_folders)
    return SplitFolders(train_folder, validation, test, (*flat, *unlabeled))


def _splits_of(names: Sequence[str]) -> dict[str, str]:
    """Find the split that each name stands for, `unlabeled` for images without classes; other names are skipped.

    `seg_train` stands for a split if another such name also has `seg`; a class called `steam train` does not.
    """
    words_of = {name: _split_into_words(name) for name in names}
    kinds = {**_SPLITS, "unlabeled": _UNLABELED}
    splits_of = {
        name: {split for split, split_words in kinds.items() if words_of[name] & split_words} for name in names
    }
    split_of_name = {name: splits for name, splits in splits_of.items() if len(splits) == 1}
    shared = Counter(word for name in split_of_name for word in words_of[name])
    usual_words = {word for split_words in (*_SPLITS.values(), _UNLABELED) for word in split_words} | _COMPANIONS
    return {
        name: next(iter(splits))
        for name, splits in split_of_name.items()
        if all(word in usual_words or shared[word] > 1 for word in words_of[name])
    }


def _split_into_words(name: str) -> set[str]:
    """Split the words of a name in lower case: `trainingSet_2` is training and set."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    spelled = [word for word in re.split(r"[^a-z]+", spaced.lower()) if word]
    return {part for word in spelled for part in ([word] if word in _COMPANIONS else _ENDS.sub(r" \1", word).split())}


def _descend(folder: Path, name: str, classes: Sequence[str] = ()) -> str:
    """Find the folder of a split that holds its classes: its own or the only one in it, as in seg_train/seg_train."""
    for _ in range(_MAX_FOLDER_LEVELS):
        below = list_subfolders(folder / name)
        if len(below) != 1 or below[0] in classes or not list_subfolders(folder / name / below[0]):
            return name
        name = os.path.join(name, below[0])
    return name


def _has_no_classes(folder: Path, classes: Sequence[str]) -> bool:
    """Return whether the images of a split are in its own folder, or in a single one that is no class: test/unknown."""
    below = list_subfolders(folder)
    return not below or (len(below) == 1 and below[0].casefold() not in {name.casefold() for name in classes})


def list_subfolders(folder: Path) -> list[str]:
    """List the names of the subfolders, sorted, without hidden ones and leftovers; empty if the folder cannot be
    listed, which its reader reports.
    """
    try:
        with os.scandir(folder) as entries:
            folders = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except (OSError, ValueError):
        return []
    return sorted(name for name in folders if not is_leftover(name))


_SAMPLED_ROWS = 200
"""Largest number of rows used to try an ending."""


def find_paths(
    folder: Path, cells: Sequence[str], column: str, key: str, extensions: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the paths of a column, relative to its manifest's folder, and notes; empty cells stay empty.

    If most files are missing, backslashes become slashes, and an extension is added, if most files then exist.
    """
    filled = [cell for cell in cells if cell]
    sample = filled[:: -(-len(filled) // _SAMPLED_ROWS)] if filled else []
    if 2 * sum(os.path.lexists(folder / cell) for cell in sample) >= len(sample):
        return list(cells), []

    def count(ending: str) -> int:
        return sum(os.path.lexists(folder / (cell.replace("\\", "/") + ending)) for cell in sample)

    best = max(("", *extensions, *(ending.upper() for ending in extensions)), key=count)
    if 2 * count(best) < len(sample):
        return list(cells), []
    paths = [cell.replace("\\", "/") + best if cell else "" for cell in cells]
    path = next(path for path, cell in zip(paths, cells, strict=True) if cell == sample[0])
    return paths, [f'{key}: column "{column}" has {sample[0]}, which is read as {path}, and so for all rows']
