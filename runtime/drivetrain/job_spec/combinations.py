"""Checks combinations of values that are valid by themselves, but not together."""

from __future__ import annotations

from collections.abc import Iterator

from drivetrain.errors import Problem, nearest
from drivetrain.job import Document, Job, dot_key, remote_data
from drivetrain.job.data import Data, TableFileData
from drivetrain.job.formatting import format_value
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.series import SeriesData
from drivetrain.job.train import Sgd, Train

TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow")


def combination_problems(job: Job, document: Document) -> Iterator[Problem]:
    """All such problems of a job: metrics, parts, loss, range of the fp16 scale, Nesterov momentum."""
    yield from _metric_problems(job, document)
    yield from _csv_problems(job, document)
    yield from _fold_problems(job, document)
    yield from _group_problems(job, document)
    yield from _unfreeze_problems(job, document)
    yield from _idle_problems(job, document)
    yield from _stream_problems(job, document)
    yield from _missing_problems(job, document)
    yield from _parts_problems(job, document)
    yield from _within_problems(job, document)
    yield from _track_problems(job, document)
    yield from remote_data.find_problems(job)
    loss, optimizer = job.train.loss, job.train.optimizer
    if loss is not None and (allowed := job.losses()) and loss.name not in allowed:
        path = document.nearest(("train", "loss", "name"))
        yield Problem(
            document.place(path),
            dot_key(path),
            f"is {format_value(loss.name)}",
            f"for {job.task}: {', '.join(allowed)}",
            "choose one of these",
        )
    fp16 = job.train.fp16
    if not fp16.min_scale <= fp16.initial_scale <= fp16.max_scale:
        path = document.nearest(("train", "fp16", "initial_scale"))
        yield Problem(
            document.place(path),
            dot_key(path),
            f"starts at {fp16.initial_scale:g}",
            f"from min_scale ({fp16.min_scale:g}) to max_scale ({fp16.max_scale:g})",
            "change one of the three",
        )
    if isinstance(optimizer, Sgd) and optimizer.nesterov and (optimizer.momentum == 0 or optimizer.dampening > 0):
        path = ("train", "optimizer", "nesterov")
        yield Problem(
            document.place(path),
            dot_key(path),
            "is true",
            "with momentum above 0 and dampening 0 only",
            "change those two, or leave it out",
        )


def _track_problems(job: Job, document: Document) -> Iterator[Problem]:
    """Keys that name no server, or two."""
    if job.track and (wrong := job.track.find_contradiction()):
        key, description, possible = wrong
        location = document.place(document.nearest(("track", key)))
        yield Problem(location, f"track.{key}", description, possible, "name one server")


def _within_problems(job: Job, document: Document) -> Iterator[Problem]:
    """A length beside the time that chooses it."""
    written = {
        key: value for key, value in (("epochs", job.train.epochs), ("steps", job.train.steps)) if value is not None
    }
    for key, value in written.items() if job.train.within else ():
        # The spec that a run stores has every key with its default.
        if value != Train.model_fields[key].default and key not in document.measured:
            yield Problem(
                document.place(("train", key)),
                f"train.{key}",
                f"is {value}, and train.within is {job.train.within}, which chooses it",
                "one of both",
                f"remove train.within or train.{key}; one that only --set has takes the place of the other",
            )
    if job.train.within and job.sweep:
        yield Problem(
            document.place(("train", "within")),
            "train.within",
            f"is {job.train.within}, and there is a sweep, whose trials need the same length",
            "train.epochs for a sweep",
            "remove train.within, or the sweep",
        )


def _parts_problems(job: Job, document: Document) -> Iterator[Problem]:
    """More parts than a batch has samples."""
    parts, size = job.train.parts, job.train.batch_size
    if parts and isinstance(size, int) and parts > size:
        yield Problem(
            document.place(("train", "parts")),
            "train.parts",
            f"is {parts}, and train.batch_size is {size}",
            f"at most {size}: a part has one sample or more",
            "take fewer parts, or a larger batch",
        )


def _unfreeze_problems(job: Job, document: Document) -> Iterator[Problem]:
    """Layers that would be unfrozen after the end of the run."""
    for number, entry in enumerate(getattr(getattr(job, "model", None), "unfreeze", ())):
        # The number of epochs is not known before `train.within` has chosen it.
        is_known = not job.train.within or "epochs" in document.measured
        if is_known and entry.epoch > job.train.epochs:
            path = ("model", "unfreeze", number, "epoch")
            yield Problem(
                document.place(path),
                dot_key(path),
                f"is {entry.epoch}, and the run has {job.train.epochs} epochs (train.epochs)",
                f"an epoch of the run: 2 to {job.train.epochs}"
                if job.train.epochs > 1
                else "a run of 2 epochs or more",
                "unfreeze earlier, or train longer",
            )


def _idle_problems(job: Job, document: Document) -> Iterator[Problem]:
    """Settings of something that the job does not have, in every task."""
    freeze = getattr(getattr(job, "model", None), "freeze", None)
    if freeze and freeze.train_mode and not freeze.any:
        path: tuple[str, ...] = ("model", "freeze", "train_mode")
        yield Problem(
            document.place(path), dot_key(path), "is true, and nothing is frozen", "with frozen layers", "remove it"
        )
    optimizer = job.train.optimizer
    if isinstance(optimizer, Sgd) and optimizer.dampening and not optimizer.momentum:
        path = ("train", "optimizer", "dampening")
        description = f"is {optimizer.dampening:g}, and momentum is 0"
        yield Problem(document.place(path), dot_key(path), description, "with momentum above 0", "remove it")


def _fold_problems(job: Job, document: Document) -> Iterator[Problem]:
    """A fold of data that is not split, or that is split by time."""
    fold = job.data.fold if isinstance(job.data, Data) else None
    if fold is None:
        return
    if isinstance(job.data.validation, str):
        description = f"is {fold}, and data.validation is the path {job.data.validation!r}"
        possible = "one of the two"
    elif isinstance(job.data, SeriesData) and not job.data.arrays:
        description = f"is {fold}, and data.train is a series, whose last part is the validation data"
        possible = "folds of samples that do not follow each other in time: windows in an .npz"
    else:
        return
    yield Problem(document.place(("data", "fold")), "data.fold", description, possible, "remove one of the two")


def _group_problems(job: Job, document: Document) -> Iterator[Problem]:
    """Groups of data that is not split."""
    column = getattr(job.data, "groups", None)
    if column and isinstance(job.data, Data) and isinstance(job.data.validation, str):
        description = f"is {format_value(column)}, and data.validation is the path {job.data.validation!r}"
        yield Problem(
            document.place(("data", "groups")), "data.groups", description, "one of the two", "remove one of the two"
        )


def _stream_problems(job: Job, document: Document) -> Iterator[Problem]:
    """What streamed data cannot be combined with, since only whole shards are split off for validation."""
    if not getattr(job.data, "stream", None):
        return
    for key in ("fold", "groups"):
        if value := getattr(job.data, key, None):
            path = ("data", key)
            yield Problem(
                document.place(path),
                dot_key(path),
                f"is {format_value(value)}, and data.stream is set",
                "a fraction, for which whole shards are held out, or a path for data.validation",
                "remove one of the two",
            )


def _csv_problems(job: Job, document: Document) -> Iterator[Problem]:
    """Options of CSV files in a job that has none."""
    declared = job.data.csv.list_settings() if isinstance(job.data, TableFileData) else {}
    paths = [text for _, text in job.data_paths()]
    if declared and not any(text.lower().endswith((".csv", ".tsv")) or is_on_hub(text) for text in paths):
        path = document.nearest(("data", "csv"))
        yield Problem(
            document.place(path),
            dot_key(path),
            f"has {', '.join(declared)}, and {paths[0]!r} is no CSV file",
            "for .csv and .tsv files only",
            "remove it",
        )


def _missing_problems(job: Job, document: Document) -> Iterator[Problem]:
    """Cells without a value in a job whose data has no cells."""
    cells = job.data.missing if isinstance(job.data, TableFileData) else None
    paths = [text for _, text in job.data_paths()]
    if not cells:
        return
    streamed = bool(getattr(job.data, "stream", None))
    if streamed or not any(text.lower().endswith(TABLES) or is_on_hub(text) for text in paths):
        path = ("data", "missing")
        reason = "data.stream is set" if streamed else f"{paths[0]!r} is no table"
        yield Problem(
            document.place(path),
            dot_key(path),
            f"is {', '.join(cells)}, and {reason}",
            "for tables that are read as a whole",
            "remove it",
        )


def _metric_problems(job: Job, document: Document) -> Iterator[Problem]:
    metrics = job.metrics()
    for path, metric in job.watched_metrics().items():
        if metric is not None and metric not in metrics:
            yield Problem(
                document.place(path),
                dot_key(path),
                f"is {format_value(metric)}",
                f"a metric of this task: {', '.join(metrics)}",
                nearest(metric, metrics) or "pick one",
            )
