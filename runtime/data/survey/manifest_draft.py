"""Drafts a spec for a manifest: paths of images beside a class, several labels or numbers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from runtime.data.formats import column_values
from runtime.data.images import separated_labels
from runtime.data.images.picture_endings import EXTENSIONS
from runtime.data.labels import listed
from runtime.data.survey import first_values, image_draft, target_guess
from runtime.data.survey.image_draft import REGRESSION, TASK, ImageSurvey
from runtime.data.survey.request import KEY, SurveyRequest
from runtime.data.survey.table_sample import ColumnProfile, TableSample
from runtime.data.survey.target_guess import TargetGuess
from runtime.errors import DataError, SpecError
from runtime.job.draft import Draft, Entry, flow, scalar

TASKS = (TASK, REGRESSION)
LABEL_NAMES = ("labels", "tags", "label", "tag", "attributes", "classes", "etiquetas")
"""Names of a column with all labels of an image, in the order of preference."""


def manifest_draft(request: SurveyRequest, sample: TableSample) -> Draft | None:
    """The draft for a table with a column of image paths; None if it has no such column, or nothing to predict.

    Raises:
        DataError: if none of the paths leads to an image.
        SpecError: if the named columns do not fit the named task.
    """
    column = _paths(sample)
    if column is None:
        return None
    others = [c for c in sample.columns.values() if c.name != column.name]
    guess = target_guess.named(request, sample) or _guess(request, others, sample)
    if guess is None or column.name in guess.names:
        return None
    targets = [sample.columns[name] for name in guess.names]
    task, kind = _kind(request, targets, sample)
    names = [path for path in _texts(sample, column.name) if path]
    about, entries, weights = _about(sample, guess, kind)
    draft = image_draft.started(
        ImageSurvey([os.path.join(sample.path.parent, name) for name in names]).open_some(),
        about,
        f"column {column.name} holds paths of images",
        task,
    )
    what = {"class": "its label", "labels": "its labels", "cell": "its labels", "numbers": "numbers"}[kind]
    split = first_values.validation(sample.rows, "images")
    suffix = {"class": ", of each class", "numbers": ""}.get(kind, ", by the rarest label of each image")
    draft.data = [
        Entry(
            "train",
            scalar(request.written(sample.path)),
            f"{sample.rows:,} rows, each with the path of an image and {what}",
        ),
        Entry("path_column", scalar(column.name), f"such as {names[0]}"),
        *entries,
        Entry(split.key, split.value, f"{split.reason}{suffix}"),
        *draft.data,
    ]
    draft.train += weights
    draft.choices += guess.choice
    return draft


def _paths(sample: TableSample) -> ColumnProfile | None:
    """The column with paths of images."""
    for column in sample.columns.values():
        if column.kind == "text" and column.words <= 2 and column.filled:
            paths = column_values.texts(sample.table[column.name]).to_pylist()
            if sum(str(path).lower().endswith(EXTENSIONS) for path in paths) >= 0.9 * column.filled:
                return column
    return None


def _texts(sample: TableSample, name: str) -> list[str]:
    return [text or "" for text in column_values.texts(sample.table[name]).to_pylist()]


def _several(sample: TableSample, column: ColumnProfile) -> str:
    """A cell of a column that looks like several labels; empty if there is none."""
    return separated_labels.example(Counter(filter(None, _texts(sample, column.name)))) if column.kind == "text" else ""


def _binary(column: ColumnProfile) -> bool:
    return bool(column.counts) and set(column.counts) <= {"0", "1", "true", "false"}


def _guess(request: SurveyRequest, columns: Sequence[ColumnProfile], sample: TableSample) -> TargetGuess | None:
    """The columns to predict: labels in one column, labels of 0 and 1, classes, or numbers."""
    if request.task == REGRESSION:
        return target_guess.number(columns)
    if cells := [column for column in columns if _several(sample, column)]:
        name = target_guess.by_name(cells, LABEL_NAMES) or cells[-1].name
        return TargetGuess((name,), "cells with several labels", tuple(c.name for c in columns if c.name != name))
    classes = target_guess.classes(columns)
    binary = tuple(column.name for column in columns if _binary(column))
    if len(binary) > 1 and (classes is None or classes.reason != "by its name"):
        others = tuple(column.name for column in columns if column.name not in binary)
        return TargetGuess(binary, "columns of 0 and 1", others)
    return classes or (target_guess.number(columns) if request.task is None else None)


def _kind(request: SurveyRequest, targets: Sequence[ColumnProfile], sample: TableSample) -> tuple[str, str]:
    """The task, and what the columns hold: class, labels, cell (all labels in one), or numbers."""
    numbers = all(column.kind == "number" and not column.refused for column in targets)
    possible = []
    if len(targets) > 1:
        possible += [(TASK, "labels")] * all(map(_binary, targets))
    elif _several(sample, targets[0]):
        possible += [(TASK, "cell")]
    elif targets[0].trainable and not (numbers and not targets[0].classes):
        possible += [(TASK, "class")]
    possible += [(REGRESSION, "numbers")] * numbers
    if numbers and len(targets) == 1 and targets[0].trainable and not targets[0].classes:
        possible += [(TASK, "class")]
    for task, kind in possible:
        if request.task in (None, task):
            return task, kind
    held = listed([f"{c.name} has {c.different:,} different values in {c.filled:,} rows" for c in targets])
    raise SpecError(
        f"{KEY}: {held}",
        "one column of classes, of several labels in a cell, or of numbers; several columns of 0 and 1, or of numbers",
        "name other columns with --target",
    )


def _about(sample: TableSample, guess: TargetGuess, kind: str) -> tuple[list[str], list[Entry], list[Entry]]:
    """What is known of the targets, their keys in the spec, and class weights."""
    name = guess.names[0]
    names = scalar(name) if len(guess.names) == 1 else flow(guess.names)
    if kind == "class":
        cells = [cell for cell in _texts(sample, name) if cell]
        counts = image_draft.checked_classes(sample.path, cells)
        about = [first_values.counted(counts), *first_values.single(counts)]
        return (
            about,
            [Entry("label_column", names, f"{len(counts):,} different labels")],
            first_values.class_weights(counts),
        )
    if kind == "labels":
        entry = Entry("label_column", names, "labels of 0 and 1, each of which can be true")
        return [f"{len(guess.names):,} labels: {listed(guess.names, 8)}"], [entry], []
    if kind == "numbers":
        return [f"{listed(guess.names)} to predict"], [Entry("label_column", names, guess.reason)], []
    return _cell(sample, name)


def _cell(sample: TableSample, name: str) -> tuple[list[str], list[Entry], list[Entry]]:
    """A column with all labels of an image."""
    cells = _texts(sample, name)
    mark, why = "", ""
    try:
        mark = separated_labels.separator(cells, name, sample.path, "auto")
    except DataError as error:
        why = error.given.removeprefix("data.label_column: ")
        mark = max(separated_labels.SEPARATORS, key=lambda one: sum(one in cell for cell in cells))
    counts = Counter(label for cell in cells for label in separated_labels.split(cell, mark))
    without = sum(not cell for cell in cells)
    seen = separated_labels.example(Counter(filter(None, cells)))
    entries = [
        Entry("label_column", scalar(name), f"such as {seen}"),
        Entry("multi_label", "true", "an image has any number of labels; false: each cell is one class"),
    ]
    if why:
        entries.append(Entry("label_separator", f'"{mark}"', f"check it: {why}"))
    return [separated_labels.described(counts, without)], entries, []
