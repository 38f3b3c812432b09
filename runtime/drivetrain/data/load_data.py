"""Loads the data of a job, by task: for training and validation, and for the final test."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

from drivetrain.data import class_balance, copies, load_new
from drivetrain.data.copies import ComparableSplit
from drivetrain.data.dataset import Dataset, InputRecord, head_from_json
from drivetrain.data.formats import csv_dialect
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.errors import DataError
from drivetrain.job import Job
from drivetrain.job.custom import CustomJob
from drivetrain.job.data import Data, TableFileData
from drivetrain.job.images import ImageJob
from drivetrain.job.series import SeriesJob
from drivetrain.job.tables import TableJob
from drivetrain.job.text import TextJob
from drivetrain.job.train import Focal
from drivetrain.pretrained import earlier_run
from drivetrain.system.fault_points import fault_point

_TAKEN_FROM_EARLIER_RUN = {
    "images": "channels, mean and deviation",
    "texts": "vocabulary and tokenizer",
    "series": "features and their scale",
    "table": "features, categories and scale",
}
"""What a job takes over from the run named in `model.from`, by kind of data."""


def load(job: Job, recorded: InputRecord | None = None) -> Dataset:
    """Read and check the data of a job.

    Args:
        job: the job.
        recorded: preprocessing and heads that this run stored when it first read the data, if it is resumed: tokens,
            categories, scales and classes are then reused instead of computed.

    Raises:
        DataError: if the data cannot be used.
        SpecError: if the job's loss does not fit its classes.
    """
    fault_point("load data")
    earlier = earlier_run.find(job) if recorded is None else None
    record = recorded
    if earlier:
        # Temperature and thresholds are for the weights of the earlier run, not for those that this run will end with.
        heads = {row["name"]: replace(head_from_json(row), temperature=1.0, thresholds=()) for row in earlier.heads}
        record = InputRecord(earlier.preprocessing, heads, same_data=False)
    table_data = job.data if isinstance(job.data, TableFileData) else None
    csv_options, missing_cells = (table_data.csv.list_settings(), table_data.missing) if table_data else ({}, None)
    files = csv_dialect.of_job(csv_options, record.preprocessing if record else {}, missing_cells)
    dataset = _read_by_task(job, record, files)
    dataset.notes[1:1] = [*job.notes, *files.notes]
    if files.stored:
        dataset.preprocessing["csv"] = files.stored
    if files.missing:
        dataset.preprocessing["missing"] = list(files.missing)
    if earlier:
        dataset.notes.append(f"{_TAKEN_FROM_EARLIER_RUN[dataset.preprocessing['kind']]} are those of {earlier.folder}")
    check_loss(job, dataset)
    if not isinstance(job, TextJob):  # a text job notes the classes of each label column itself
        counts = class_balance.count_classes(dataset).items()
        dataset.notes += [
            class_balance.describe_counts(class_counts, dataset.heads[name].classes) for name, class_counts in counts
        ]
    metric = class_balance.choose_best_metric(job, dataset)
    if metric != job.best() and recorded is None:  # a resumed run keeps the metric that it began with
        ratio = class_balance.measure_imbalance(dataset)
        dataset.notes.append(
            f"the largest class has {ratio:.3g} times the samples of the smallest: the best checkpoint is chosen by {metric}, "
            f"not by {job.best()} (checkpoint.best); train.class_weights: balanced gives all classes the same weight"
        )
    if "pyarrow" in sys.modules:
        # pyarrow's allocator keeps the memory of parsing, several times the size of the data.
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    return dataset


def check_loss(job: Job, dataset: Dataset) -> None:
    """Check that the job's loss, metrics and class weights fit the classes found in the data, and add a note on the weights.

    Raises:
        SpecError: if the loss or the weights do not fit.
    """
    loss, class_count = job.train.loss, max((len(head.classes) for head in dataset.heads.values()), default=0)
    if isinstance(loss, Focal) and loss.alpha is not None and class_count > 2:
        raise job.spec_error(
            ("train", "loss", "alpha"),
            f"is {loss.alpha:g}, and the data has {class_count:,} classes",
            "a weight of class 1 of two classes",
            "remove it; train.class_weights: balanced works for any number of classes",
        )
    class_balance.check_metrics(job, dataset)
    dataset.notes += class_balance.check_weights(job, dataset)


def _read_by_task(job: Job, recorded: InputRecord | None, files: CsvFiles) -> Dataset:
    """Read the data with the module of the task; each is imported only if needed, with the libraries it imports."""
    if isinstance(job, ImageJob):
        from drivetrain.data.images import image_data as images

        return images.load(job, recorded, files)
    if isinstance(job, TextJob):
        from drivetrain.data.text import text_data as text

        return text.load(job, recorded, files)
    if isinstance(job, SeriesJob):
        from drivetrain.data.series import series_data as series

        return series.load(job, recorded, files)
    if isinstance(job, TableJob):
        from drivetrain.data.tables import table_data as tables

        return tables.load(job, recorded, files)
    if isinstance(job, CustomJob):
        from drivetrain.data.custom import custom_data as custom

        return custom.load(job)
    raise AssertionError(f"no data for {job.task}")


def add_test(job: Job, dataset: Dataset) -> None:
    """Read `data.test`, if the job has it, into `dataset.test`, preprocessed like new samples of the trained model.

    Raises:
        DataError: if it cannot be used, or has a label that the training data does not have.
    """
    if not isinstance(job.data, Data) or job.data.test is None:
        return
    path = job.resolve(job.data.test)
    # Through JSON, as a stored model has it, so that the scores are those of `drivetrain evaluate`.
    preprocessing = json.loads(json.dumps(dataset.preprocessing))
    csv = job.data.csv.list_settings() if isinstance(job.data, TableFileData) else {}
    try:
        dataset.test = load_new.read(
            [path], preprocessing, dataset.heads, labelled=True, csv=csv, bad_samples=job.data.bad_samples
        )
    except DataError as error:
        raise DataError(f"data.test: {error.given}", error.possible, error.action) from None
    from drivetrain.data.images.image_files import Files  # for images alone: it imports Pillow

    images = getattr(dataset.test.split, "images", None)
    if isinstance(images, Files) and not images.cells:
        dataset.files["data.test"] = [
            os.path.relpath(os.path.join(images.root, name), images.root) for name in images.names
        ]
    dataset.notes.append(f"{len(dataset.test.split):,} samples for the final test: {path}")
    dataset.notes += [f"test: {note}" for note in dataset.test.notes]
    # Test samples that are also in another split make the scores too good, so a note names them.
    test, description = dataset.test.split, "samples for the final test"
    for split, name in ((dataset.train, "training"), (dataset.validation, "validation")):
        if isinstance(split, ComparableSplit) and isinstance(test, ComparableSplit):
            dataset.notes += copies.note_shared(split.contents(), test.contents(), test.title, description, name)
