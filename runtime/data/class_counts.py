"""Counts the classes of the training samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.data.dataset import Dataset, JointTargets
from runtime.data.labels import listed
from runtime.job.formatting import printable
from runtime.system import spelling

SHOWN = 20
"""Largest number of classes that a note names."""


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
