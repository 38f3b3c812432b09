"""Drafts a spec for images: class folders, a data set with splits, or a manifest of paths and labels."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from drivetrain.data import file_paths, labels
from drivetrain.data.formats import column_values, table_paths
from drivetrain.data.notes import list_names
from drivetrain.data.survey import settings, table_sample
from drivetrain.data.survey.settings import KEY, SurveyRequest
from drivetrain.data.survey.table_sample import ColumnProfile, TableSample, TargetGuess
from drivetrain.errors import DataError
from drivetrain.job.draft import Draft, Entry, quote
from drivetrain.tasks.image import IMAGES, class_folders, decode, mirroring, near_copies, resize
from drivetrain.tasks.modality import FileKind

TASK, REGRESSION = "image-classification", "image-regression"
MAX_OPENED_IMAGES = 64
"""Largest number of images that are opened; the others are only counted."""
MAX_SIDE = 64
"""Largest side of the square in the draft: with it a first training shows results in minutes, even on two cores."""
MAX_FOLDER_LEVELS = 3
"""Largest number of folder levels above the class folders that are searched."""
TASKS = (TASK, REGRESSION)


def open_some(names: Sequence[str]) -> tuple[list[decode.ImageHeader], list[str]]:
    """Open images that are evenly spaced in a list of paths; returns them, and a line for each that cannot be decoded.

    Raises:
        DataError: if none of them can be decoded.
    """
    headers, unreadable = [], []
    with decode.quiet():
        for row in np.unique(np.linspace(0, len(names) - 1, MAX_OPENED_IMAGES).astype(int)).tolist():
            try:
                headers.append(decode.look(names[row]))
            except decode.UnreadableImage as reason:
                unreadable.append(f"{names[row]}: {reason}")
    if not headers:
        raise DataError(
            f"{KEY}: none of {len(unreadable):,} images could be decoded; {unreadable[0]}",
            f"images of the kinds {', '.join(decode.FORMATS)}",
            "check how they were written",
        )
    return headers, unreadable


def draft_folder(request: SurveyRequest, folder: Path) -> Draft:
    """Draft a spec for a folder of class folders, or of train/ and val/ with class folders each.

    Raises:
        DataError: if there are no images of two classes.
    """
    request.check_task((TASK,), f"{folder} holds images in folders")
    request.check_no_columns("a folder of images has no columns")
    root, validation_folder, test_folder, choices = find_split_folders(folder)
    listing = class_folders.read(root, KEY)
    counts = count_classes(root, listing.labels)
    validation, test, refusals = draft_splits(request, [validation_folder, test_folder], counts)
    paths = [os.path.join(root, name) for name in listing.names]
    draft = start_draft(paths, settings.describe_classes(counts), list(counts), "one folder for each class")
    draft.found += [*listing.notes, *_describe_sources(listing.names, listing.labels)]
    draft.choices += [*choices, *refusals]
    train = request.path_entry("train", root, f"{len(listing.names):,} images, a folder for each class")
    draft.data = [train, validation, *test, *draft.data]
    return draft


def draft_splits(
    request: SurveyRequest, folders: Sequence[Path | None], counts: Counter[str], kind: FileKind = IMAGES
) -> tuple[Entry, list[Entry], list[str]]:
    """Draft the keys for validation and test by their folders; also returns the reasons why a folder is unusable."""
    refusals = {folder: _refuse_for_validation(folder, counts, kind) for folder in folders if folder}
    validation_folder, test_folder = (None if folder and refusals[folder] else folder for folder in folders)
    if validation_folder is None:
        entry = settings.validation(counts.total(), kind.nouns)
        validation = Entry(entry.key, entry.value, f"{entry.reason}, of each class")
    else:
        count = len(class_folders.read(validation_folder, KEY, kind).names)
        reason = f"{count:,} {kind.nouns} in a folder of their own"
        validation = request.path_entry("validation", validation_folder, reason)
    test = [request.path_entry("test", test_folder, "evaluated once, after the training")] if test_folder else []
    return validation, test, list(filter(None, refusals.values()))


def find_split_folders(folder: Path) -> tuple[Path, Path | None, Path | None, list[str]]:
    """Find the folders with class folders for training, validation and test; also returns notes on the choice."""
    choices: list[str] = []
    inner = folder
    subfolders = file_paths.list_subfolders(folder)
    for _ in range(MAX_FOLDER_LEVELS):
        if len(subfolders) != 1 or file_paths.find_splits(inner, KEY):
            break
        inner /= subfolders[0]
        subfolders = file_paths.list_subfolders(inner)
    if inner != folder and len(subfolders) > 1:
        choices.append(f"classes are the folders of {inner}, the only folder there")
        folder = inner
    splits = file_paths.find_splits(folder, KEY)
    if not splits:
        return folder, None, None, choices
    validation_folder, test_folder = (folder / name if name else None for name in (splits.validation, splits.test))
    choices += [f"{folder / name} is not used, since it has no class folders" for name in splits.unused]
    return folder / splits.train, validation_folder, test_folder, choices


def count_classes(path: Path, labels: Sequence[str], kind: FileKind = IMAGES) -> Counter[str]:
    """Count the files of each class.

    Raises:
        DataError: if there are fewer than two classes, or only one file of each.
    """
    counts = Counter(labels)
    if len(counts) < 2:
        raise DataError(
            f"{KEY}: {path} has {len(labels):,} {kind.nouns} of one class: {list_names(sorted(counts))}",
            "two classes or more, one folder each",
            f"add the {kind.nouns} of another class, such as everything that is none of these",
        )
    if max(counts.values()) < 2:
        raise DataError(
            f"{KEY}: {path} has one {kind.noun} of each of {len(counts):,} classes, so none is left for validation",
            f"two {kind.nouns} of a class or more",
            f"add {kind.nouns}, or put those of one class into one folder",
        )
    return counts


def _refuse_for_validation(validation_folder: Path, counts: Counter[str], kind: FileKind) -> str:
    """Explain why a folder cannot be used for validation or test; empty for a usable one."""
    try:
        unknown = sorted(set(class_folders.read(validation_folder, KEY, kind).labels) - set(counts))
    except DataError as error:
        return f"{validation_folder} is not used: {error.description}"
    reason = f"{validation_folder} is not used: it has classes that training lacks: {list_names(unknown)}"
    return reason if unknown else ""


def start_draft(
    names: Sequence[str], label_facts: Sequence[str], label_names: Sequence[str], reason: str, task: str = TASK
) -> Draft:
    """Start a draft for images: facts on them, an image size, a network and first settings.

    Args:
        names: paths of the images.
        label_facts: facts on the targets.
        label_names: names of the classes or labels.
        reason: the reason for the task.
        task: the task.
    """
    headers, unreadable = open_some(names)
    sides, total = np.array([header.short_side for header in headers]), len(names)
    is_grey, oblong_count = all(header.grey for header in headers), sum(header.oblong for header in headers)
    middle = float(np.median(sides))
    fitting, _ = resize.choose_size("auto", sides, exact=False)
    size = min(fitting, MAX_SIDE)
    larger_hint = f"; up to {fitting} may be more accurate, and is slower" if fitting > size else ""
    kind = "all grey" if is_grey else "in color"
    draft = Draft(task, reason)
    draft.found = [
        f"{total:,} images, {label_facts[0]}",
        f"sizes from a sample of {len(sides):,}: short side {sides.min()} to {sides.max()} px, median {middle:.0f}; {kind}",
        *label_facts[1:],
    ]
    if unreadable:
        draft.found.append(f"{len(unreadable):,} of those opened cannot be decoded: {unreadable[0]}")
    draft.data = [Entry("image_size", str(size), f"median short side {middle:.0f} px{larger_hint}")]
    if oblong_count:
        part = f"{oblong_count / len(sides):.0%} are not square"
        # If most images are oblong, cropping might cut off the part that shows the class.
        fit = "pad" if 2 * oblong_count > len(sides) else "crop"
        draft.data.append(Entry("fit", fit, f"{part}: crop takes the center; pad and squash keep all of it"))
    if not is_grey and size >= 32 and task == TASK:
        value, reason = "{flip: true, crop_padding: 4}", "mirrored photos keep their class; remove flip for text"
        if mirrored := mirroring.find_mirrored(label_names):
            value, reason = "{crop_padding: 4}", f"without flip: a mirrored image may be of another class: {mirrored}"
        draft.data.append(Entry("augment", value, reason))
    network = "small-cnn" if size <= 32 else "{name: small-cnn, width: 16}"
    draft.model = Entry("model", network, "a small network for a first result; try resnet18 with many images")
    draft.train = settings.training(total, 36_000, (5, 30), 32, "images", "3e-3")
    return draft


def draft_manifest(request: SurveyRequest, sample: TableSample) -> Draft | None:
    """Draft a spec for a table with a column of image paths; None without such a column or without a target.

    Raises:
        DataError: if none of the paths leads to an image.
        SpecError: if the named columns do not fit the named task.
    """
    column = find_path_column(sample, IMAGES) if request.task in (None, *TASKS) else None
    if column is None:
        return None
    other_columns = [c for c in sample.columns.values() if c.name != column.name]
    guess = table_sample.find_named(request, sample) or _guess_targets(request, other_columns, sample)
    if guess is None or column.name in guess.names:
        return None
    targets = [sample.columns[name] for name in guess.names]
    are_cells = len(targets) == 1 and bool(_several_labels_example(sample, targets[0]))
    task, kind = table_sample.choose_task(request, guess, targets, TASKS, are_cells=are_cells)
    names = [path for path in _cell_texts(sample, column.name) if path]
    table_paths.check_named_files(sample.path, names, KEY)
    if kind == "class":
        count_classes(sample.path, list(filter(None, _cell_texts(sample, guess.names[0]))))
    entries = [Entry("label_column", guess.value, guess.reason)]
    label_facts = table_sample.describe_targets(targets, kind)
    if kind == "cell":
        label_facts, entries = _describe_label_cells(sample, guess.names[0])
    draft = start_draft(
        [os.path.join(sample.path.parent, name) for name in names],
        label_facts,
        guess.names if kind == "labels" else sorted(set(_cell_texts(sample, guess.names[0]))),
        f"column {column.name} holds paths of images",
        task,
    )
    target_noun = {"class": "its label", "labels": "its labels", "cell": "its labels", "numbers": "numbers"}[kind]
    split = settings.validation(sample.rows, "images")
    suffix = {"class": ", of each class", "numbers": ""}.get(kind, ", by the rarest label of each image")
    groups = table_sample.draft_groups(sample, (column.name, *guess.names), "images", any_name=True)
    if not groups:
        draft.found += _describe_sources(names, _cell_texts(sample, guess.names[0]), in_classes=False)
    draft.data = [
        request.path_entry(
            "train", sample.path, f"{sample.rows:,} rows, each with the path of an image and {target_noun}"
        ),
        Entry("path_column", quote(column.name), f"such as {names[0]}"),
        *entries,
        *groups,
        Entry(split.key, split.value, f"{split.reason}{suffix}"),
        *draft.data,
    ]
    draft.choices += guess.list_choices(other_columns)
    return draft


def find_path_column(sample: TableSample, kind: FileKind) -> ColumnProfile | None:
    """Find the column with paths of files of a kind; None if there is none."""
    for column in sample.columns.values():
        if column.kind == "text" and column.words <= 2 and column.filled:
            paths = column_values.texts(sample.table[column.name]).to_pylist()
            if sum(str(path).lower().endswith(kind.extensions) for path in paths) >= 0.9 * column.filled:
                return column
    return None


def _cell_texts(sample: TableSample, name: str) -> list[str]:
    """Return the cells of a column as text; empty text for empty cells."""
    return [text or "" for text in column_values.texts(sample.table[name]).to_pylist()]


def _several_labels_example(sample: TableSample, column: ColumnProfile) -> str:
    """Find a cell of a column that looks like several labels; empty text if there is none."""
    cells = _cell_texts(sample, column.name) if column.kind == "text" else []
    return labels.find_several_labels(Counter(filter(None, cells)))


def _guess_targets(request: SurveyRequest, columns: Sequence[ColumnProfile], sample: TableSample) -> TargetGuess | None:
    """Guess the columns to predict: labels in one column, labels of 0 and 1, classes, or numbers."""
    if request.task == REGRESSION:
        return table_sample.guess_number(columns)
    if cells := [column for column in columns if _several_labels_example(sample, column)]:
        return TargetGuess((cells[-1].name,), "cells with several labels")
    classes = table_sample.guess_classes(columns)
    # Several columns of 0 and 1 are labels, unless a column is called the class.
    binary = tuple(column.name for column in columns if column.binary)
    if len(binary) > 1 and (classes is None or classes.reason != table_sample.BY_NAME):
        return TargetGuess(binary, "columns of 0 and 1")
    return classes or (table_sample.guess_number(columns) if request.task is None else None)


def _describe_label_cells(sample: TableSample, name: str) -> tuple[list[str], list[Entry]]:
    """Return facts on a column with all labels of an image in each cell, and its keys in the spec."""
    cells = _cell_texts(sample, name)
    obstacle = ""
    try:
        label_separator = labels.find_separator(cells, name, sample.path, "auto")
    except DataError as error:
        # The draft names the likeliest separator, and the objection to it.
        obstacle = error.description
        label_separator = max(labels.SEPARATORS, key=lambda mark: sum(mark in cell for cell in cells))
    counts = Counter(label for cell in cells for label in labels.split_labels(cell, label_separator))
    unlabelled_count = sum(not cell for cell in cells)
    example = labels.find_several_labels(Counter(filter(None, cells)))
    entries = [
        Entry("label_column", quote(name), f"such as {example}"),
        Entry("multi_label", "true", "an image has any number of labels; false: each cell is one class"),
    ]
    if obstacle:
        entries.append(Entry("label_separator", f'"{label_separator}"', f"check it: {obstacle}"))
    return [labels.describe_label_counts(counts, unlabelled_count)], entries


def _describe_sources(paths: Sequence[str], class_names: Sequence[str], *, in_classes: bool = True) -> list[str]:
    """Describe images of one source, recognized by name only; training also compares the images."""
    if len(paths) != len(class_names):
        return []
    strata = np.unique(class_names, return_inverse=True)[1].astype(np.int64)
    sources = near_copies.find(
        paths, strata, lambda first, second: np.ones(len(first)), in_classes=in_classes, requested=""
    )
    reason = "all images of a source are on one side of the split"
    return [f"{sources.count:,} sources ({sources.reason}); {reason}"] if sources else []
