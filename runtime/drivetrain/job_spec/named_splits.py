"""Finds the splits of a job whose data is a folder with train/, val/ and test/, and checks the data of the final test."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from drivetrain.data import file_paths
from drivetrain.data.formats import table_paths
from drivetrain.job import Job
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.remote_data import list_readable_paths
from drivetrain.tasks import modality_of


def name_splits(job: Job) -> Job:
    """Replace folders in the job by the splits or tables in them; splits that the spec names stay unchanged.

    Raises:
        DataError: if folders could be splits as well as classes.
    """
    if not modality_of(job).has_sample_files:
        # A table, texts or series in a folder: its files are the splits.
        return _replace_folders(job, os.path.isdir)
    # Images can lie in tables, too (Parquet of the hub).
    job = _replace_folders(job, lambda path: os.path.isdir(path) and table_paths.has_images(path))
    if is_on_hub(job.data.train) or ("data", "train") not in dict(list_readable_paths(job)):
        return job
    # Otherwise train/, val/ and test/ may each have class folders.
    folders = file_paths.find_splits(job.resolve(job.data.train), job.locate_key(("data", "train")))
    if not folders:
        return job
    splits = {"train": folders.train, "validation": folders.validation, "test": folders.test}
    return _set_splits(job, splits, folders.unused)


def _replace_folders(job: Job, holds: Callable[[Path], bool]) -> Job:
    """Replace each folder of the job for which `holds(path)` is true by the table in it."""
    update: dict[str, str] = {}
    for key, text in list_readable_paths(job):
        path = job.resolve(text)
        if is_on_hub(text) or not holds(path):
            continue
        label = job.locate_key(key)
        tables = table_paths.find_splits(path, label)
        if key[-1] == "train" and "train" in tables:
            job = _set_splits(job, tables)
        else:
            update[key[-1]] = os.path.join(text, table_paths.find_table(path, label).relative_to(path))
    if not update:
        return job
    with_tables = job.model_copy(update={"data": job.data.model_copy(update=update)})
    with_tables._notes = (*job.notes, *(f"data.{key}: uses the table {path}" for key, path in update.items()))
    return with_tables


def _set_splits(job: Job, splits: Mapping[str, str | None], unused: Sequence[str] = ()) -> Job:
    """Set the splits of the training folder that the spec does not set.

    Args:
        job: job whose data.train is a folder with splits.
        splits: folder or file of each split, relative to the training folder; None for a split without one.
        unused: folders without class folders, for the note.
    """
    root, keys_set = job.data.train, job.data.model_fields_set
    update = {"train": os.path.join(root, splits["train"] or "")}
    notes = [f"{root} has the splits of a dataset: {splits['train']} for training"]
    for key, use in (("validation", "for validation"), ("test", "for the final test")):
        name = splits.get(key)
        deciding_key = "fold" if key == "validation" and job.data.fold else key
        if name and deciding_key not in keys_set:
            check_groups(job, key, root)
            update[key] = os.path.join(root, name)
            notes.append(f"{name} {use}")
        elif name:
            notes.append(f"{name} is not used, because data.{deciding_key} is {getattr(job.data, deciding_key)!r}")
    notes += [f"{name} is not used, because it has no class folders" for name in unused]
    with_splits = job.model_copy(update={"data": job.data.model_copy(update=update)})
    with_splits._notes = (*job.notes, ", ".join(notes))
    return with_splits


def check_groups(job: Job, split: str, source: str) -> None:
    """Check that a validation split that comes with the data does not replace a split by groups.

    Raises:
        SpecError: if the job has groups, and the split is for validation.
    """
    column = getattr(job.data, "groups", None)
    if column and split == "validation":
        description = f"is {column!r}, and {source} has a split for validation, which may divide groups"
        action = "write `fold: 1/5` or `validation: 0.2` to split the training data by groups, or remove data.groups"
        raise job.spec_error(("data", "groups"), description, "one of the two", action)


def check_test(job: Job) -> None:
    """Check that the data of the final test is not that of training or validation; raises SpecError if it is."""
    paths = {key[-1]: path for key, path in job.data_paths()}
    test = paths.pop("test", None)
    for key, path in paths.items():
        if test is not None and os.path.realpath(job.resolve(path)) == os.path.realpath(job.resolve(test)):
            description = f"is {test!r}, the same as data.{key}"
            action = "name other data, or remove it: the validation data is evaluated in any case"
            raise job.spec_error(("data", "test"), description, "data that training does not use", action)
