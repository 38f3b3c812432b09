"""Lists a folder of images, or of other files, that has one subfolder per class."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from drivetrain.data import file_paths
from drivetrain.data.file_paths import is_leftover
from drivetrain.data.notes import list_names
from drivetrain.errors import DataError
from drivetrain.job.formatting import readable
from drivetrain.tasks.image import IMAGES
from drivetrain.tasks.modality import FileKind


@dataclass
class FolderListing:
    """Files with their labels, and notes on skipped files."""

    names: list[str] = field(default_factory=list)
    """Paths relative to the folder."""
    labels: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read(folder: Path, key: str, kind: FileKind = IMAGES) -> FolderListing:
    """List the files of a kind of every class, nested ones too, in sorted order.

    Hidden files and folders are skipped silently. Folders of thumbnails and deleted files, files of other kinds, empty
    folders, files outside of every class folder and folders that link back to themselves are skipped with a note.

    Raises:
        DataError: if there are no class folders, or they are splits such as train and test; names `key`.
    """
    listing = FolderListing()
    empty_folders = []
    skipped = _SkippedFiles(kind)
    top = sorted(_list_entries(folder, key, skipped), key=lambda entry: entry.name)
    classes = [entry.name for entry in top if _is_folder(entry)]
    _check_no_splits(folder, classes, key)
    _check_names(folder, classes, key)
    for label in classes:
        names = list(_iterate_files(folder, label, (os.path.realpath(folder),), skipped, key))
        listing.names += names
        listing.labels += [label] * len(names)
        if not names:
            empty_folders.append(label)
    file_paths.check_links(skipped.links, folder, key)
    loose_files = [entry.name for entry in top if not _is_folder(entry) and _is_of_kind(entry.name, kind)]
    _check_not_nested(folder, classes, listing.names, key)
    if not listing.names:
        contents = [f"{len(loose_files):,} {kind.nouns} outside of class folders"] if loose_files else []
        contents += skipped.count_kinds(
            entry.name for entry in top if not _is_folder(entry) and not _is_of_kind(entry.name, kind)
        )
        raise DataError(
            f"{folder} has no {kind.nouns} in class folders, but {', '.join(contents[:4]) or 'no files at all'}",
            f"one folder per class with files of the kinds {' '.join(kind.extensions)}",
            f"move the {kind.nouns} into one folder per class, or list them in a manifest"
            if loose_files
            else kind.advice,
            key=key,
        )
    if empty_folders:
        listing.notes.append(f"{folder}: folders without {kind.nouns} are ignored: {list_names(empty_folders)}")
    if loose_files:
        listing.notes.append(
            f"{folder}: {len(loose_files):,} {kind.nouns} outside of class folders are skipped: {list_names(loose_files)}"
        )
    listing.notes += skipped.notes(folder)
    return listing


def list_all(folder: Path, key: str, kind: FileKind = IMAGES) -> FolderListing:
    """List all files of a kind in a folder and its subfolders, without labels, as `read` lists those of a class."""
    skipped = _SkippedFiles(kind)
    names = list(_iterate_files(folder, "", (), skipped, key))
    return FolderListing(names, notes=list(skipped.notes(folder)))


@dataclass
class _SkippedFiles:
    """Files and folders that were skipped inside class folders, for notes, and links."""

    kind: FileKind
    """Kind of files that are not skipped."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Number of files, by extension."""
    leftovers: dict[str, int] = field(default_factory=dict)
    """Number of folders, by name."""
    loops: list[str] = field(default_factory=list)
    """Links to a parent folder."""
    links: list[str] = field(default_factory=list)
    """Paths of all links, also of files that were not skipped."""

    def count_kinds(self, other_files: Iterable[str] = ()) -> list[str]:
        """Return the number of skipped files and `other_files` of each extension, as `7 .txt`."""
        counts = Counter(self.kinds)
        counts.update(os.path.splitext(name)[1].lower() for name in other_files)
        return [f"{count:,} {kind or 'without extension'}" for kind, count in sorted(counts.items())]

    def notes(self, folder: Path) -> Iterator[str]:
        if self.kinds:
            yield f"{folder}: files without {self.kind.article} extension are skipped: {list_names(self.count_kinds())}"
        if self.leftovers:
            counts = [f"{name} ({count:,})" if count > 1 else name for name, count in sorted(self.leftovers.items())]
            yield f"{folder}: folders of thumbnails, deleted files and the like are skipped: {list_names(counts)}"
        if self.loops:
            yield f"{folder}: symbolic links to a parent folder are not followed: {list_names(self.loops)}"


def _iterate_files(
    root: Path, subfolder: str, above: tuple[str, ...], skipped: _SkippedFiles, key: str
) -> Iterator[str]:
    """Yield the files of a folder and its subfolders, as paths relative to `root`.

    `above` has the real paths of the parent folders, to recognize links to them.
    """
    real_path = os.path.realpath(root / subfolder)
    if real_path in above:
        skipped.loops.append(subfolder)
        return
    entries = sorted(_list_entries(root / subfolder, key, skipped), key=lambda entry: entry.name)
    kind = skipped.kind
    stems = {os.path.splitext(entry.name)[0] for entry in entries if _is_of_kind(entry.name, kind)}
    for entry in entries:
        name = os.path.join(subfolder, entry.name)
        if _is_folder(entry):
            yield from _iterate_files(root, name, (*above, real_path), skipped, key)
            continue
        stem, ending = os.path.splitext(entry.name)
        ending = ending.lower()
        # A picture that cannot be read is a bad sample, unless a readable one has the same name.
        if _is_of_kind(entry.name, kind) or (ending in kind.unread and stem not in stems):
            yield name
        else:
            skipped.kinds[ending] = skipped.kinds.get(ending, 0) + 1


def _list_entries(folder: Path, key: str, skipped: _SkippedFiles) -> list[os.DirEntry[str]]:
    """List the entries of a folder, without hidden files and folders and without leftovers, which `skipped` counts."""
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(
            f"{folder} cannot be listed: {(error.strerror or str(error)).lower()}",
            "a folder that this user may read",
            "give this user read permission",
            key=key,
        ) from None
    skipped.links += [entry.path for entry in visible if entry.is_symlink()]
    leftovers = [entry.name for entry in visible if is_leftover(entry.name) and _is_folder(entry)]
    for name in leftovers:
        skipped.leftovers[name] = skipped.leftovers.get(name, 0) + 1
    return [entry for entry in visible if entry.name not in leftovers]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether the entry is a folder; a broken link is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_of_kind(name: str, kind: FileKind) -> bool:
    return name.lower().endswith(kind.extensions)


def _check_names(folder: Path, classes: list[str], key: str) -> None:
    """Refuse class names that the files of a run cannot hold, and class names that look the same."""
    not_utf8 = [name for name in classes if name.encode("utf-8", "replace").decode() != name]
    if not_utf8:
        raise DataError(
            f"the names of these folders of {folder} are not UTF-8: {list_names([readable(name) for name in not_utf8])}",
            "names in UTF-8, since classes are written to files",
            f"rename them, as archives of other systems need: convmv -r -f latin1 -t utf8 --notest {folder}",
            key=key,
        )
    names_by_form: dict[str, list[str]] = {}
    for name in classes:
        names_by_form.setdefault(unicodedata.normalize("NFC", name).strip(), []).append(name)
    if look_alikes := [" and ".join(map(repr, names)) for names in names_by_form.values() if len(names) > 1]:
        raise DataError(
            f"folders of {folder} have names that look the same, in two forms of Unicode or with blanks: {list_names(look_alikes)}",
            "one folder for each class",
            "move the files of each pair into one folder",
            key=key,
        )


def _check_not_nested(folder: Path, classes: list[str], names: list[str], key: str) -> None:
    """Refuse a folder that holds only the folder with the classes, as archives often do."""
    parts = {tuple(name.split("/")[1:-1]) for name in names}
    inner = {part[0] for part in parts if part}
    if len(classes) == 1 and len(inner) > 1 and () not in parts:
        inner_folder = folder / classes[0]
        raise DataError(
            f"{folder} holds a single folder, {classes[0]}, which has the folders {list_names(sorted(inner))}",
            "a folder with one folder per class",
            f"name the inner one if those are the classes: {inner_folder}",
            key=key,
        )


def _check_no_splits(folder: Path, classes: list[str], key: str) -> None:
    """Refuse folders that are splits, such as train and test, instead of classes."""
    if len(classes) > 1 and file_paths.are_splits(classes):
        raise DataError(
            f"the folders of {folder} are splits of a data set, not classes: {list_names(classes)}",
            "a folder with one folder per class",
            f"name one of them: {' or '.join(str(folder / name) for name in classes)}",
            key=key,
        )
