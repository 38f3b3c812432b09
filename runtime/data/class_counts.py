"""Counts the classes of the training samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.data.dataset import Dataset, JointTargets
from runtime.data.labels import listed
from runtime.job import Job
from runtime.job.formatting import printable
from runtime.system import spelling

SHOWN = 20
"""Largest number of classes that a note names."""
UNEVEN = 4
"""From so many times the samples of the smallest class in the largest on, accuracy does not choose the best checkpoint."""


def of(dataset: Dataset) -> dict[str, npt.NDArray[np.int64]]:
    """The number of training samples of each class, by head with one class a sample; none for targets that are read late."""
    if isinstance(dataset.train, JointTargets):
        return {}
    return {
        name: np.bincount(dataset.train.targets[name].numpy(), minlength=len(head.classes))
        for name, head in dataset.heads.items()
        if head.classes and not head.several
    }


def note(counts: npt.NDArray[np.int64], classes: tuple[str, ...]) -> str:
    """Such as `classes for training: ok 157, broken 3`, the most frequent first."""
    order = np.argsort(-counts, kind="stable").tolist()
    shown = listed([f"{printable(classes[index])} {counts[index]:,}" for index in order], SHOWN)
    spellings = listed(spelling.alike(classes))
    return f"classes for training: {shown}" + (f"; probably the same: {spellings}" if spellings else "")


def best_metric(job: Job, dataset: Dataset) -> str:
    """The metric of the best checkpoint: that of the job; macro F1 in place of accuracy for uneven classes.

    A network that always names the largest of uneven classes has a high accuracy, and is of no use.
    """
    metric = job.best()
    if job.checkpoint.best or not metric.endswith("/accuracy") or "f1" not in job.scores() or not uneven(dataset):
        return metric
    return metric.removesuffix("accuracy") + "f1"


def uneven(dataset: Dataset) -> float:
    """How many times the samples of the smallest class the largest has, in the most uneven head; 0 if that is not many."""
    times = [counts.max() / max(1, counts.min()) for counts in of(dataset).values()]
    most = float(max(times, default=0.0))
    return most if most >= UNEVEN else 0.0
