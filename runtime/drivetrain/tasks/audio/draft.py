"""Drafts a spec for sounds: class folders, or a manifest of paths and classes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from drivetrain.data.formats import column_values, table_paths
from drivetrain.data.notes import list_counts
from drivetrain.data.survey import settings, table_sample
from drivetrain.data.survey.settings import KEY, SurveyRequest
from drivetrain.data.survey.table_sample import TableSample
from drivetrain.errors import DataError
from drivetrain.job.draft import Draft, Entry, quote
from drivetrain.tasks.audio import SOUNDS, sound_file
from drivetrain.tasks.audio.sound_file import Sound, UnreadableSound
from drivetrain.tasks.image import class_folders
from drivetrain.tasks.image import draft as image_draft

TASK = "audio-classification"
MAX_OPENED_SOUNDS = 64
"""Largest number of files that are decoded; the others are only counted."""


def draft_folder(request: SurveyRequest, folder: Path) -> Draft:
    """Draft a spec for a folder of class folders, or of train/ and val/ with class folders each.

    Raises:
        DataError: if there are no sounds of two classes.
    """
    request.check_task((TASK,), f"{folder} holds sounds in folders")
    request.check_no_columns("a folder of sounds has no columns")
    root, validation_folder, test_folder, choices = image_draft.find_split_folders(folder)
    listing = class_folders.read(root, KEY, SOUNDS)
    counts = image_draft.count_classes(root, listing.labels, SOUNDS)
    validation, test, refusals = image_draft.draft_splits(request, [validation_folder, test_folder], counts, SOUNDS)
    paths = [os.path.join(root, name) for name in listing.names]
    draft = _start_draft(paths, counts, "one folder for each class")
    draft.found += listing.notes
    draft.choices += [*choices, *refusals]
    reason = f"{len(listing.names):,} sounds, a folder for each class"
    draft.data = [request.path_entry("train", root, reason), validation, *test, *draft.data]
    return draft


def draft_manifest(request: SurveyRequest, sample: TableSample) -> Draft | None:
    """Draft a spec for a table with a column of paths of sounds; None without such a column or without a class."""
    column = image_draft.find_path_column(sample, SOUNDS) if request.task in (None, TASK) else None
    if column is None:
        return None
    others = [other for other in sample.columns.values() if other.name != column.name]
    guess = table_sample.find_named(request, sample) or table_sample.guess_classes(others)
    if guess is None or column.name in guess.names:
        return None
    paths = [path for path in column_values.texts(sample.table[column.name]).to_pylist() if path]
    table_paths.check_named_files(sample.path, paths, KEY)
    targets = [sample.columns[name] for name in guess.names]
    classes = column_values.texts(sample.table[guess.names[0]]).to_pylist()
    counts = Counter(name for name in classes if name) if len(targets) == 1 else Counter(guess.names)
    draft = _start_draft([os.path.join(sample.path.parent, path) for path in paths], counts, "a column of sound files")
    split = settings.validation(sample.rows, SOUNDS.nouns)
    draft.data = [
        request.path_entry("train", sample.path, f"{sample.rows:,} rows, each with the path of a sound and its class"),
        Entry("path_column", quote(column.name), f"such as {paths[0]}"),
        Entry("label_column", guess.value, guess.reason),
        *table_sample.draft_groups(sample, (column.name, *guess.names), SOUNDS.nouns, any_name=True),
        split,
        *draft.data,
    ]
    draft.choices += guess.list_choices(others)
    return draft


def _start_draft(paths: Sequence[str], counts: Counter[str], reason: str) -> Draft:
    """Start a draft for sounds: facts on some of them, a window, a network and first settings."""
    sounds, unreadable = _open_some(paths)
    seconds = np.array([sound.seconds for sound in sounds])
    rates = Counter(f"{sound.rate:,} Hz" for sound in sounds)
    window = min(10.0, max(0.1, round(float(np.median(seconds)), 2)))
    draft = Draft(TASK, reason)
    draft.found = [
        f"{len(paths):,} sounds, {settings.format_counts(counts)}",
        f"from a sample of {len(sounds):,}: {seconds.min():.3g} to {seconds.max():.3g} s, {list_counts(rates)}",
    ]
    if unreadable:
        draft.found.append(f"{len(unreadable):,} of those opened cannot be decoded: {unreadable[0]}")
    draft.data = [
        Entry("seconds", f"{window:g}", "the median length; silence follows shorter files, longer ones are cut"),
        Entry("sample_rate", str(Counter(sound.rate for sound in sounds).most_common(1)[0][0]), "the most frequent"),
        Entry("augment", "{band_masks: {count: 2}, time_masks: {count: 2}}", "SpecAugment hides bands and frames"),
    ]
    draft.model = Entry(
        "model", "{name: small-cnn, width: 16}", "a small network for a first result; then try resnet18"
    )
    draft.train = settings.training(len(paths), 36_000, (10, 30), 32, SOUNDS.nouns, "3e-3")
    return draft


def _open_some(paths: Sequence[str]) -> tuple[list[Sound], list[str]]:
    """Decode files that are evenly spaced in a list; returns them, and a line for each that cannot be decoded.

    Raises:
        DataError: if none of them can be decoded.
    """
    sounds, unreadable = [], []
    for row in np.unique(np.linspace(0, len(paths) - 1, MAX_OPENED_SOUNDS).astype(int)).tolist():
        try:
            sounds.append(sound_file.check(paths[row]))
        except UnreadableSound as reason:
            unreadable.append(f"{paths[row]}: {reason}")
    if not sounds:
        raise DataError(
            f"{KEY}: none of {len(unreadable):,} sounds could be decoded; {unreadable[0]}",
            f"sounds of the kinds {', '.join(SOUNDS.extensions)}",
            "check how they were written",
        )
    return sounds, unreadable
