"""Checks the tables of a job before training, with the reader that training uses, so that both refuse the same data."""

from __future__ import annotations

from importlib.util import find_spec

from drivetrain.data.formats import shards, table_paths
from drivetrain.errors import DataError
from drivetrain.job import Job, dot_key
from drivetrain.storage.remote_address import is_remote

MAX_CHECKED_BYTES = 8 << 20
"""Largest total size of the tables whose rows are read; for larger tables only headers are checked, to answer at once."""


def check(job: Job) -> list[str]:
    """Read the tables of a job; returns one line for each check that was made or postponed.

    Raises:
        DataError: if training would refuse the data; its key has file, line and column of the spec.
    """
    if not job.data_paths():
        return []
    later, size = "checked when training starts", 0
    unread, tables = list[str](), list[str]()
    for key, text in job.data_paths():
        path, label = job.resolve(text), dot_key(key)
        if (key, text) in job.list_unfetched():
            lack = "has no copy here" if is_remote(text) else "is not in the cache of the Hugging Face hub"
            fetch = f"`drivetrain fetch {job.document.name}` and `train` download it"
            unread.append(f"{label}: {text} {lack}; {fetch}; its contents are checked then")
        elif path.suffix.lower() not in table_paths.SUFFIXES or not path.is_file():
            unread.append(f"{label}: {text} exists; its contents are {later}")
        else:
            tables.append(f"{label}: checked the header of {text}; its ")
            size += sum(file.stat().st_size for file in shards.files(path, label))
    if unread or size > MAX_CHECKED_BYTES or not find_spec("pyarrow"):
        reason = "rows are" if unread or size <= MAX_CHECKED_BYTES else f"{size / 1e6:,.0f} MB are"
        return [*unread, *(f"{table}{reason} {later}" for table in tables)]
    # Imported here, because only tables need the reader and its libraries.
    from drivetrain.data import load_data

    try:
        count, notes = load_data.check(job)
    except DataError as error:
        label = job.locate_key(tuple((error.key or "data.train").split(".")))
        raise DataError(error.description, error.possible, error.action, key=label) from None
    notes[:0] = [f"data.train: checked {count:,} training samples"]
    if job.train.batch > count:
        notes.append(
            f"train.batch_size: {job.train.batch:,} is more than the {count:,} training samples: one step per epoch"
        )
    return notes
