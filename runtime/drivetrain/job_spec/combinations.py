"""Checks combinations of values that are valid alone, but not together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from drivetrain.errors import Problem, nearest
from drivetrain.job import Job, remote_data
from drivetrain.job.formatting import format_value
from drivetrain.job.hub_address import is_on_hub
from drivetrain.job.train import Train
from drivetrain.tasks import modality_of

TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow")
FEATURE_KINDS = ("numeric", "categorical", "dates")
"""Keys that say how features are read."""


def combination_problems(job: Job) -> Iterator[Problem]:
    """Yield every problem of values that do not fit together, such as a fold of data that is not split."""
    for find in (
        _metric_problems,
        _csv_problems,
        _split_problems,
        _column_problems,
        _unfreeze_problems,
        _skip_problems,
        _idle_problems,
        _missing_problems,
        _within_problems,
        _track_problems,
        remote_data.find_problems,
        _train_problems,
    ):
        yield from find(job)


def _train_problems(job: Job) -> Iterator[Problem]:
    """Yield a loss of another task, and settings of fp16 or the optimizer that exclude each other."""
    loss, fp16, optimizer = job.train.loss, job.train.fp16, job.train.optimizer
    if loss is not None and (allowed := job.losses()) and loss.name not in allowed:
        path = job.document.nearest(("train", "loss", "name"))
        possible = f"for {job.task}: {', '.join(allowed)}"
        yield job.problem(path, f"is {format_value(loss.name)}", possible, "choose one of these")
    if job.PREDICTS_NUMBERS and job.train.class_weights != "none":
        description = f"is {format_value(job.train.class_weights)}"
        yield job.problem(("train", "class_weights"), description, "a classification", "remove it")
    if not fp16.min_scale <= fp16.initial_scale <= fp16.max_scale:
        path = job.document.nearest(("train", "fp16", "initial_scale"))
        possible = f"from min_scale ({fp16.min_scale:g}) to max_scale ({fp16.max_scale:g})"
        yield job.problem(path, f"starts at {fp16.initial_scale:g}", possible, "change one of the three")
    for key, description, possible, action in optimizer.find_contradictions():
        yield job.problem(("train", "optimizer", key), description, possible, action)


def _track_problems(job: Job) -> Iterator[Problem]:
    """Yield a tracking block that names no server, or two."""
    contradiction = job.track.find_contradiction() if job.track else None
    if contradiction:
        key, description, possible = contradiction
        yield job.problem(("track", key), description, possible, "name one server")


def _within_problems(job: Job) -> Iterator[Problem]:
    """Yield a length, or a schedule with its own length, next to `train.within`, which chooses the length."""
    within = job.train.within
    if not within:
        return
    for key, value in (("epochs", job.train.epochs), ("steps", job.train.steps)):
        # The stored spec of a run contains every key, so a key with its default counts as not written.
        if value not in (None, Train.model_fields[key].default):
            yield job.problem(
                ("train", key),
                f"is {value}, and train.within is {within}, which chooses it",
                "one of the two",
                f"remove train.within or train.{key}; a value from --set replaces the other key in the file",
            )
    if job.train.schedule.name in ("step", "own"):
        yield job.problem(
            ("train", "schedule"),
            f"is {job.train.schedule.name}, which counts epochs or steps, and train.within is {within}",
            "one-cycle, cosine, linear, plateau, constant",
            "choose one of these, or remove train.within",
        )
    if job.sweep:
        yield job.problem(
            ("train", "within"),
            f"is {within}, and the trials of the sweep need the same length",
            "train.epochs for a sweep",
            "remove train.within, or the sweep",
        )


def _unfreeze_problems(job: Job) -> Iterator[Problem]:
    """Yield layers that would be unfrozen after the end of the run."""
    epochs = job.train.epochs
    for number, entry in enumerate(getattr(getattr(job, "model", None), "unfreeze", ())):
        if not job.train.within and entry.epoch > epochs:
            yield job.problem(
                ("model", "unfreeze", number, "epoch"),
                f"is {entry.epoch}, and the run has {epochs} epoch{'s' * (epochs > 1)} (train.epochs)",
                f"an epoch of the run: 2 to {epochs}" if epochs > 1 else "a run of 2 epochs or more",
                "unfreeze earlier, or train longer",
            )


def _skip_problems(job: Job) -> Iterator[Problem]:
    """Yield settings with which the linear model of `model.skip` cannot be solved in place of the first epoch."""
    model = getattr(job, "model", None)
    if model is None or not getattr(model, "skip", False):
        return
    for key in ("weights", "freeze", "unfreeze"):
        if key in model.model_fields_set:
            yield _skip_problem(job, f"model.{key}")
    if job.train.ema is not None:
        yield _skip_problem(job, "train.ema")


def _skip_problem(job: Job, key: str) -> Problem:
    return job.problem(
        ("model", "skip"),
        f"is true together with {key}",
        "one of them: the linear model is solved while the other layers add nothing to it",
        f"remove model.skip, or {key}",
    )


def _idle_problems(job: Job) -> Iterator[Problem]:
    """Yield a setting of frozen layers in a job that freezes none."""
    freeze = getattr(getattr(job, "model", None), "freeze", None)
    if freeze and freeze.train_mode and not freeze.any:
        path = ("model", "freeze", "train_mode")
        yield job.problem(path, "is true, and nothing is frozen", "with frozen layers", "remove it")


def _split_problems(job: Job) -> Iterator[Problem]:
    """Yield a fold or groups of data that is not split."""
    path = job.data_path("validation")
    for key in ("fold", "groups"):
        value = getattr(job.data, key, None)
        if value and path is not None:
            description = f"is {format_value(value)}, and data.validation is the path {path!r}"
            yield job.problem(("data", key), description, "one of the two", "remove one of the two")


def _column_problems(job: Job) -> Iterator[Problem]:
    """Yield columns with two roles."""
    # Windows may be grouped by a column with another role, such as the machine.
    keys = [*getattr(job.data, "COLUMN_KEYS", ()), "ignore", *(() if modality_of(job).is_ordered else ("groups",))]
    for first, second in combinations(keys, 2):
        both = [name for name in job.list_columns(first) if name in job.list_columns(second)]
        if both and not (first == "features" and second in FEATURE_KINDS):
            description = f"has {both[0]!r}, which data.{first} has too"
            yield job.problem(("data", second), description, "each column in one of the two", "remove it from one")


def _csv_problems(job: Job) -> Iterator[Problem]:
    """Yield options for CSV files in a job without CSV files."""
    declared = job.csv_settings()
    paths = [text for _, text in job.data_paths()]
    if declared and not any(text.lower().endswith((".csv", ".tsv")) or is_on_hub(text) for text in paths):
        description = f"has {', '.join(declared)}, and {paths[0]!r} is not a CSV file"
        yield job.problem(("data", "csv"), description, "for .csv and .tsv files only", "remove it")


def _missing_problems(job: Job) -> Iterator[Problem]:
    """Yield `data.missing` in a job whose data is not a table."""
    cells = getattr(job.data, "missing", None)
    paths = [text for _, text in job.data_paths()]
    if not cells:
        return
    suffixes = (*TABLES, *modality_of(job).array_suffixes)
    if not any(text.lower().endswith(suffixes) or is_on_hub(text) for text in paths):
        description = f"is {', '.join(cells)}, and {paths[0]!r} is not a table"
        yield job.problem(("data", "missing"), description, "for tables", "remove it")


def _metric_problems(job: Job) -> Iterator[Problem]:
    """Yield keys that watch a metric which this task does not compute."""
    metrics = job.metrics()
    for path, metric in job.watched_metrics().items():
        if metric is not None and metric not in metrics:
            possible = f"a metric of this task: {', '.join(metrics)}"
            yield job.problem(path, f"is {format_value(metric)}", possible, nearest(metric, metrics) or "pick one")
