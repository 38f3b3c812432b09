"""Loads the data of a job: for training and validation, for the final test, and new samples for its model."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drivetrain.data import class_balance, copies, reading, time_order
from drivetrain.data.copies import ComparableSplit
from drivetrain.data.dataset import Dataset, Head, InputRecord, NewSamples, head_from_json
from drivetrain.data.formats import csv_dialect, table_paths
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.source import Source
from drivetrain.errors import DataError
from drivetrain.job import Job
from drivetrain.job.train import Focal
from drivetrain.job.user_files import suggest_nearest_path
from drivetrain.pretrained import earlier_run
from drivetrain.pretrained.earlier_run import EarlierModel
from drivetrain.system.fault_points import fault_point
from drivetrain.system.files import TAKE_FILE, describe_special_file
from drivetrain.tasks import find_stored_modality, modality_of


def load(job: Job, recorded: InputRecord | None = None) -> Dataset:
    """Read and check the data of a job.

    Args:
        job: the job.
        recorded: for a resumed run, preprocessing and heads stored when it first read the data: tokens, categories,
            scales and classes are then reused instead of computed.

    Raises:
        DataError: if the data cannot be used.
        SpecError: if the job's loss does not fit its classes.
    """
    fault_point("load data")
    earlier = earlier_run.find(job) if recorded is None else None
    record, files = _find_record(job, earlier, recorded)
    modality = modality_of(job)
    if modality.load:
        dataset: Dataset = modality.load(job, record, files)
    else:
        dataset = reading.load(modality.reader(job, record), files)
    time = time_order.find_random_split(job, files)
    if time:
        dataset.preprocessing["time_order"] = time
    dataset.notes[1:1] = [*([time_order.describe(time)] if time else []), *job.notes, *files.notes]
    if files.stored:
        dataset.preprocessing["csv"] = files.stored
    if files.missing:
        dataset.preprocessing["missing"] = list(files.missing)
    if earlier:
        dataset.notes.append(f"{modality.taken_from_earlier} are those of {earlier.folder}")
    check_loss(job, dataset)
    if not modality.notes_classes:
        counts = class_balance.count_classes(dataset).items()
        dataset.notes += [
            class_balance.describe_counts(class_counts, dataset.heads[name].classes) for name, class_counts in counts
        ]
    dataset.notes += class_balance.note_unvalidated(dataset)
    metric = class_balance.choose_best_metric(job, dataset)
    if metric != job.best() and recorded is None:  # a resumed run keeps the metric that it started with
        ratio = class_balance.measure_imbalance(dataset)
        dataset.notes.append(
            f"the largest class has {ratio:.3g} times the samples of the smallest: the best checkpoint is chosen by {metric}, "
            f"not by {job.best()} (checkpoint.best); train.class_weights: balanced gives all classes the same weight"
        )
    if "pyarrow" in sys.modules:
        # pyarrow's allocator keeps the memory used in parsing, several times the size of the data.
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    return dataset


def _find_record(
    job: Job, earlier: EarlierModel | None, recorded: InputRecord | None = None
) -> tuple[InputRecord | None, CsvFiles]:
    """Return what the data is read with: the record of this run or of an earlier one, and the format of CSV files."""
    record = recorded
    if earlier:
        # Temperature and thresholds fit the weights of the earlier run, not the final weights of this run.
        heads = {row["name"]: replace(head_from_json(row), temperature=1.0, thresholds=()) for row in earlier.heads}
        record = InputRecord(earlier.preprocessing, heads, same_data=False)
    missing_cells = getattr(job.data, "missing", None)
    return record, csv_dialect.of_job(job.csv_settings(), record.preprocessing if record else {}, missing_cells)


def check(job: Job) -> tuple[int, list[str]]:
    """Read the tables of a job as `load` does, but for contents of images, tokens and tensors, and so without torch.

    Returns:
        The number of samples for training, and notes.

    Raises:
        DataError: as from `load`.
    """
    record, files = _find_record(job, earlier_run.find(job))
    count, notes = reading.check(modality_of(job).reader(job, record), files)
    return count, [*files.notes, *notes]


def check_loss(job: Job, dataset: Dataset) -> None:
    """Check that the job's loss, metrics and class weights fit the classes in the data; add a note on the weights.

    Raises:
        SpecError: if loss, metrics or weights do not fit.
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


def add_test(job: Job, dataset: Dataset) -> None:
    """Read `data.test`, if the job has it, into `dataset.test`, preprocessed as new samples for the trained model.

    Raises:
        DataError: if it cannot be used, or has a label that is not in the training data.
    """
    if (test_path := job.data_path("test")) is None:
        return
    path = job.resolve(test_path)
    # Through JSON, as in a stored model, so that `drivetrain evaluate` gives the same scores.
    preprocessing = json.loads(json.dumps(dataset.preprocessing))
    csv, bad_samples = job.csv_settings(), job.data.bad_samples
    try:
        dataset.test = load_new([path], preprocessing, dataset.heads, labelled=True, csv=csv, bad_samples=bad_samples)
    except DataError as error:
        raise DataError(error.description, error.possible, error.action, key="data.test") from None
    if dataset.test.files:
        dataset.files["data.test"] = dataset.test.files
    dataset.notes.append(f"{len(dataset.test.split):,} samples for the final test: {path}")
    dataset.notes += [f"test: {note}" for note in dataset.test.notes]
    # Test samples that are also in another split make the scores too good, so a note lists them.
    test, description = dataset.test.split, "samples for the final test"
    for split, name in ((dataset.train, "training"), (dataset.validation, "validation")):
        if isinstance(split, ComparableSplit) and isinstance(test, ComparableSplit):
            dataset.notes += copies.note_shared(split.contents(), test.contents(), test.title, description, name)


def load_new(
    paths: Sequence[Path],
    preprocessing: dict[str, Any],
    heads: dict[str, Head],
    *,
    labelled: bool,
    csv: Mapping[str, str] | CsvFiles | None = None,
    bad_samples: float = 1.0,
) -> NewSamples:
    """Read new samples, preprocessed exactly as validation samples.

    Args:
        paths: files or folders, of the kinds that the task trains on.
        preprocessing: preprocessing stored with the model.
        heads: the outputs of the model, by name.
        labelled: whether to read targets.
        csv: format of CSV files, as in the spec; missing settings are detected from the files. A `CsvFiles` carries
            detected settings from one call to the next.
        bad_samples: largest accepted share of unusable samples.

    Raises:
        DataError: if no sample can be used, or a label is not among the classes.
        CheckpointError: if this version does not know this kind of model.
    """
    files = csv if isinstance(csv, CsvFiles) else csv_dialect.of_model(preprocessing, csv or {})
    _check_paths_exist(paths)
    modality = find_stored_modality(preprocessing)
    if modality.reads_one_table:
        paths = [table_paths.find_table(path, "data") if path.is_dir() else path for path in paths]
    sources = [Source(path, "data", files, bad_samples, labelled) for path in paths]
    if modality.read:
        samples: NewSamples = modality.read(sources, preprocessing, heads)
    else:
        samples = reading.read_new(modality.restore(preprocessing), sources, heads)
    samples.notes[:0] = files.notes
    return samples


def _check_paths_exist(paths: Sequence[Path]) -> None:
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        suggestions = [hint for path in missing if (hint := suggest_nearest_path([Path()], path))]
        raise DataError(
            f"{', '.join(missing[:5])}: not there",
            "files or folders that this process can access",
            " ".join(suggestions) or "check the spelling; a container can access only the project and mounted folders",
        )
    special = [f"{path} {kind}" for path in paths if (kind := describe_special_file(path))]
    if special:
        raise DataError(f"{', '.join(special[:5])}", "files or folders", TAKE_FILE, key="data")
