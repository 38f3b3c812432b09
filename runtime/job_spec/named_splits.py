"""Names the splits of a job whose data is a folder with train/, val/ and test/, and checks the data of the final test."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runtime.data.formats import table_splits
from runtime.data.images import split_folders
from runtime.errors import DataError, SpecError
from runtime.job import Job, dotted
from runtime.job.data import Data
from runtime.job.hub_address import is_on_hub
from runtime.job.images import ImageJob
from runtime.job.remote_data import readable_paths
from runtime.job.series import SeriesJob
from runtime.job.tables import TableJob
from runtime.job.text import TextJob

TABLES = (TableJob, TextJob, SeriesJob)


def named(job: Job) -> Job:
    """The job with the paths of the splits that its training folder has; what the spec names stays.

    Raises:
        DataError: if it is not clear whether folders are splits or classes.
    """
    if getattr(job.data, "stream", None):
        # Of other folders, all files are shards of one split.
        job = _tables(job, _has_train)
    elif isinstance(job, TABLES):
        return _tables(job, os.path.isdir)
    if not isinstance(job, ImageJob):
        return job
    if not job.data.stream:
        job = _tables(job, lambda path: os.path.isdir(path) and table_splits.has_images(path))
    if is_on_hub(job.data.train) or ("data", "train") not in dict(readable_paths(job)):
        return job
    place = job.document.place(("data", "train"))
    found = split_folders.find(job.resolve(job.data.train), f"{place}: data.train")
    if not found:
        return job
    splits = {"train": found.train, "validation": found.validation, "test": found.test}
    return _with(job, splits, found.unused)


def _has_train(path: Path) -> bool:
    """Whether a folder has files whose names say which are for training."""
    try:
        return os.path.isdir(path) and "train" in table_splits.find(path, "")
    except DataError:
        return False


def _tables(job: Job, holds: Callable[[Path], bool]) -> Job:
    """The job with the tables of the folders that it names, of those that `holds` says have some."""
    update: dict[str, str] = {}
    for key, text in readable_paths(job):
        path = job.resolve(text)
        if is_on_hub(text) or not holds(path):
            continue
        label = f"{job.document.place(key)}: {dotted(key)}"
        found = table_splits.find(path, label)
        if key[-1] == "train" and "train" in found:
            job = _with(job, found)
        else:
            update[key[-1]] = os.path.join(text, table_splits.table(path, label).relative_to(path))
    if not update:
        return job
    made = job.model_copy(update={"data": job.data.model_copy(update=update)})
    made._notes = (*job.notes, *(f"data.{key}: the table is {path}" for key, path in update.items()))
    return made


def _with(job: Job, splits: Mapping[str, str | None], unused: Sequence[str] = ()) -> Job:
    """The job with the splits in its training folder; what the spec names stays. `unused`: folders without classes."""
    root, given = job.data.train, job.data.model_fields_set
    update = {"train": os.path.join(root, splits["train"] or "")}
    told = [f"{root} has the splits of a data set: {splits['train']} for training"]
    for key, use in (("validation", "for validation"), ("test", "for the final test")):
        name = splits.get(key)
        decided = "fold" if key == "validation" and job.data.fold else key
        if name and decided not in given:
            check_groups(job, key, root)
            update[key] = os.path.join(root, name)
            told.append(f"{name} {use}")
        elif name:
            told.append(f"{name} is not used, since data.{decided} is {getattr(job.data, decided)!r}")
    told += [f"{name} is not used, since it has no class folders" for name in unused]
    made = job.model_copy(update={"data": job.data.model_copy(update=update)})
    made._notes = (*job.notes, ", ".join(told))
    return made


def check_groups(job: Job, split: str, source: str) -> None:
    """Check that a split that comes with the data does not replace one that keeps groups together.

    Raises:
        SpecError: if the job has groups, and the split is for validation.
    """
    column = getattr(job.data, "groups", None)
    if column and split == "validation":
        given = f"is {column!r}, and {source} has a split for validation, which knows no groups"
        action = "write `fold: 1/5` or `validation: 0.2` to split the training data by groups, or remove data.groups"
        raise SpecError([job.problem(("data", "groups"), given, "one of the two", action)])


def check_test(job: Job) -> None:
    """Check that the data of the final test is not that of training or validation.

    Raises:
        SpecError: if it is.
    """
    if not isinstance(job.data, Data) or job.data.test is None:
        return
    test = os.path.realpath(job.resolve(job.data.test))
    for key in ("train", "validation"):
        path = getattr(job.data, key)
        if isinstance(path, str) and os.path.realpath(job.resolve(path)) == test:
            given = f"is {job.data.test!r}, the same as data.{key}"
            action = "name other data, or leave it out: the validation data is evaluated in any case"
            raise SpecError([job.problem(("data", "test"), given, "data that the training does not see", action)])
