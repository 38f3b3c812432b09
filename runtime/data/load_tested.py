"""Loads the data of the final test, preprocessed like new samples of the trained model."""

from __future__ import annotations

import json
import os

from runtime.data import copies, load_new
from runtime.data.copies import ComparableSplit
from runtime.data.dataset import Dataset
from runtime.data.images.image_files import Files
from runtime.errors import DataError
from runtime.job import Job
from runtime.job.data import Data, TableFileData


def add(job: Job, dataset: Dataset) -> None:
    """Read `data.test`, if the job has it, into `dataset.test`; nothing is computed from it.

    Raises:
        DataError: if it cannot be used, or has a label that the training data does not have.
    """
    if not isinstance(job.data, Data) or job.data.test is None:
        return
    path = job.resolve(job.data.test)
    # As a model stores it, so that the result is that of `drivetrain evaluate`.
    preprocessing = json.loads(json.dumps(dataset.preprocessing))
    csv = job.data.csv.declared() if isinstance(job.data, TableFileData) else {}
    try:
        dataset.test = load_new.read(
            [path], preprocessing, dataset.heads, labelled=True, csv=csv, bad_samples=job.data.bad_samples
        )
    except DataError as error:
        raise DataError(f"data.test: {error.given}", error.possible, error.action) from None
    images = getattr(dataset.test.split, "images", None)
    if isinstance(images, Files):
        base = path if path.is_dir() else path.parent
        dataset.files["data.test"] = [os.path.relpath(name, base) for name in images.names]
    dataset.notes.append(f"{len(dataset.test.split):,} samples for the final test: {path}")
    dataset.notes += [f"test: {note}" for note in dataset.test.notes]
    test, what = dataset.test.split, "samples for the final test"
    for split, name in ((dataset.train, "training"), (dataset.validation, "validation")):
        if isinstance(split, ComparableSplit) and isinstance(test, ComparableSplit):
            dataset.notes += copies.shared(split.contents(), test.contents(), test.title, what, name)
