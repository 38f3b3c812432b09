"""Loads the data of a job, by task."""

from __future__ import annotations

import sys

from runtime.data import class_counts, class_weights
from runtime.data.dataset import Dataset, InputRecord, head
from runtime.data.formats import csv_dialect
from runtime.data.formats.csv_dialect import CsvFiles
from runtime.errors import SpecError
from runtime.job import Job
from runtime.job.custom import CustomJob
from runtime.job.data import TableFileData
from runtime.job.images import ImageJob
from runtime.job.series import SeriesJob
from runtime.job.tables import TableJob
from runtime.job.text import TextJob
from runtime.job.train import Focal
from runtime.pretrained import earlier_run
from runtime.pretrained.earlier_run import EarlierModel

_TAKEN = {
    "images": "channels, mean and deviation",
    "texts": "vocabulary and tokenizer",
    "series": "features and their scale",
    "table": "features, categories and scale",
}
"""What a job takes from the run that it starts from, by kind of data."""


def load(job: Job, settled: InputRecord | None = None) -> Dataset:
    """Read and check the data of a job.

    Args:
        job: the job.
        settled: preprocessing and heads of the run, if it read this data before: tokens, categories, scales and classes
            are then reused instead of computed.

    Raises:
        DataError: if the data cannot be used.
        SpecError: if the job's loss does not fit its classes.
    """
    earlier = earlier_run.find(job) if settled is None else None
    record = _record(earlier) if earlier else settled
    tables = job.data if isinstance(job.data, TableFileData) else None
    options, cells = (tables.csv.declared(), tables.missing) if tables else ({}, None)
    files = csv_dialect.of_job(options, record.preprocessing if record else {}, cells)
    dataset = _read(job, record, files)
    dataset.notes[1:1] = [*job.notes, *files.notes]
    if files.stored:
        dataset.preprocessing["csv"] = files.stored
    if files.missing:
        dataset.preprocessing["missing"] = list(files.missing)
    if earlier:
        dataset.notes.append(f"{_TAKEN[dataset.preprocessing['kind']]} are those of {earlier.folder}")
    check_loss(job, dataset)
    if not isinstance(job, TextJob):  # which says it of each column
        counts = class_counts.of(dataset).items()
        dataset.notes += [class_counts.note(numbers, dataset.heads[name].classes) for name, numbers in counts]
    metric = class_counts.best_metric(job, dataset)
    if metric != job.best() and settled is None:  # a resumed run goes on with the metric that it began with
        times = class_counts.uneven(dataset)
        dataset.notes.append(
            f"the largest class has {times:.3g} times the samples of the smallest: the best checkpoint is chosen by {metric}, "
            f"not by {job.best()} (checkpoint.best); train.class_weights: balanced gives all classes the same weight"
        )
    if "pyarrow" in sys.modules:
        # pyarrow's allocator keeps the memory of parsing, several times the size of the data.
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    return dataset


def _record(earlier: EarlierModel) -> InputRecord:
    """Preprocessing and heads of the run that the job starts from."""
    heads = {row["name"]: head(row) for row in earlier.heads}
    return InputRecord(earlier.preprocessing, heads, same_data=False)


def check_loss(job: Job, dataset: Dataset) -> None:
    """Check that the job's loss and class weights fit the classes found in the data; the weights become a note.

    Raises:
        SpecError: if it does not.
    """
    loss, most = job.train.loss, max((len(head.classes) for head in dataset.heads.values()), default=0)
    if isinstance(loss, Focal) and loss.alpha is not None and most > 2:
        raise SpecError(
            [
                job.problem(
                    ("train", "loss", "alpha"),
                    f"is {loss.alpha:g}, and the data has {most:,} classes",
                    "a weight of class 1 of two classes",
                    "remove it; train.class_weights: balanced works for any number of classes",
                )
            ]
        )
    dataset.notes += class_weights.check(job, dataset)


def _read(job: Job, settled: InputRecord | None, files: CsvFiles) -> Dataset:
    if isinstance(job, ImageJob):
        if job.data.stream:
            from runtime.data.images import load_streamed

            return load_streamed.load(job, settled)
        from runtime.data.images import load as images

        return images.load(job, settled, files)
    if isinstance(job, TextJob):
        if job.data.stream:
            from runtime.data.text import load_streamed as streamed_texts

            return streamed_texts.load(job, settled)
        from runtime.data.text import load as text

        return text.load(job, settled, files)
    if isinstance(job, SeriesJob):
        from runtime.data.series import load as series

        return series.load(job, settled, files)
    if isinstance(job, TableJob):
        from runtime.data.tables import load as tables

        return tables.load(job, settled, files)
    if isinstance(job, CustomJob):
        from runtime.data.custom import load as custom

        return custom.load(job)
    raise AssertionError(f"no data for {job.task}")
