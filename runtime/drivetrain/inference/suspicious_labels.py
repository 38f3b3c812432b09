"""Finds labels that are probably wrong: a model that has not seen the sample is surer of another class than usual.

Confident learning (Northcutt et al. 2021): a sample belongs to a class if its probability is at least the mean over the
samples with this label. Each sample is judged by the run of a fold that was not trained on it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from drivetrain.job.formatting import printable
from drivetrain.system.files import write_text

if TYPE_CHECKING:
    from drivetrain.models.saved_model import SavedModel

FILE = "labels.csv"
MAX_SHOWN = 8
"""Labels that are printed; the file has all."""
MAX_PAIRS, MIN_CONFUSED_SHARE = 3, 0.1
"""Pairs of classes that are printed, and the share of their samples that runs must take for the other one."""
MAX_TITLE = 100
"""Characters of a sample's name that are printed."""
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SuspiciousLabel:
    """A label that is probably wrong."""

    sample: str
    """Where it is: file, row, first words."""
    head: str
    label: str
    suggestion: str
    label_probability: float
    suggestion_probability: float


@dataclass(frozen=True)
class LabelReview:
    """Judgments of all folds on the labels that they were not trained on."""

    suspicious: Sequence[SuspiciousLabel]
    """The most suspicious first."""
    labels: int
    """Number of judged labels."""
    agreeing: int
    """Number of labels that are the most probable class."""
    confused: Sequence[str] = ()
    """The pairs of classes that the runs can hardly tell apart, with their mistakes."""

    def describe(self) -> list[str]:
        """Return the result in lines."""
        if not self.labels:
            return ["labels: no output has exclusive classes, so no label can be judged"]
        judges = f"to runs that were not trained on them and agree with {self.agreeing / self.labels:.1%} of all"
        confused = [f"labels: hard to tell apart: {pair}" for pair in self.confused]
        if not self.suspicious:
            return [f"labels: none of {self.labels:,} looks wrong {judges}", *confused]
        count = len(self.suspicious)
        lines = [f"labels: {count:,} of {self.labels:,} ({count / self.labels:.1%}) look wrong {judges}"]
        for doubt in self.suspicious[:MAX_SHOWN]:
            of_head = f"{doubt.head}: " if doubt.head else ""
            lines.append(
                f"labels: {printable(doubt.sample, MAX_TITLE)}: {of_head}{doubt.label} ({doubt.label_probability:.0%}), rather "
                f"{doubt.suggestion} ({doubt.suggestion_probability:.0%})"
            )
        return [*lines, *confused, "labels: look at them before changing any: what is hard looks wrong, too"]


@dataclass
class HeadPredictions:
    """Predictions of all folds for the samples that they were not trained on."""

    classes: tuple[str, ...]
    samples: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    probabilities: list[Numbers] = field(default_factory=list)
    """One (samples of the fold, classes) for each fold."""


def find_suspicious(probabilities: Numbers, labels: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Find the samples whose labels are probably wrong, with the suggested class; the most suspicious first.

    Args:
        probabilities: (N, classes), each row by a model that was not trained on that sample.
        labels: (N,) class indices.
    """
    count = probabilities.shape[1]
    # How sure the models are of a class where it is the label; a class without samples is never suggested.
    thresholds = np.array(
        [probabilities[labels == c, c].mean() if (labels == c).any() else np.inf for c in range(count)]
    )
    likely = np.where(probabilities >= thresholds, probabilities, -1.0)
    suggested = likely.argmax(axis=1)
    rows = np.flatnonzero((likely.max(axis=1) >= 0) & (suggested != labels))
    margins = probabilities[rows, labels[rows]] - probabilities[rows, suggested[rows]]
    return [(int(row), int(suggested[row])) for row in rows[np.argsort(margins, kind="stable")]]


def find_confused_pairs(
    predicted: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], classes: Sequence[str]
) -> list[str]:
    """Find the pairs of classes that runs confuse most often, the worst first."""
    counts = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(counts, (labels, predicted), 1)
    mistakes, samples = np.triu(counts + counts.T, 1), counts.sum(1)
    worst = np.argsort(-mistakes, axis=None, kind="stable")[:MAX_PAIRS]
    pairs = [(int(row), int(column)) for row, column in zip(*np.unravel_index(worst, counts.shape), strict=True)]
    return [
        f"{classes[row]} and {classes[column]}: {mistakes[row, column]:,} of their {samples[row] + samples[column]:,} samples"
        for row, column in pairs
        if mistakes[row, column] > MIN_CONFUSED_SHARE * (samples[row] + samples[column])
    ]


def inspect_folds(runs: Iterable[Path]) -> LabelReview:
    """Judge the labels of the data of these runs, one for each fold.

    Raises:
        CheckpointError: if a run has no trained model.
        DataError: if the data has changed since.
    """
    heads: dict[str, HeadPredictions] = {}
    for run in runs:
        _predict_fold(run, heads)
    suspicious: list[SuspiciousLabel] = []
    confused: list[str] = []
    looked_at = agreeing = 0
    for name, head in heads.items():
        probabilities, labels = np.concatenate(head.probabilities), np.array(head.labels)
        looked_at += len(labels)
        confused += find_confused_pairs(probabilities.argmax(axis=1), labels, list(map(printable, head.classes)))
        agreeing += int((probabilities.argmax(axis=1) == labels).sum())
        for row, suggestion in find_suspicious(probabilities, labels):
            label = int(labels[row])
            classes = (head.classes[label], head.classes[suggestion])
            shares = (float(probabilities[row, label]), float(probabilities[row, suggestion]))
            suspicious.append(SuspiciousLabel(head.samples[row], name, *classes, *shares))
    suspicious.sort(key=lambda doubt: doubt.label_probability - doubt.suggestion_probability)
    return LabelReview(suspicious, looked_at, agreeing, confused)


def _predict_fold(run: Path, heads: dict[str, HeadPredictions]) -> None:
    """Add the predictions of a run for its validation samples, for each head with exclusive classes."""
    import torch

    from drivetrain.data.dataset import NO_LABEL
    from drivetrain.inference import evaluate
    from drivetrain.models import forward, saved_model

    # The user has just trained with this code.
    trained: SavedModel = saved_model.load(run, consent=True)
    _, data = evaluate.load_validation_data(run, trained, consent=True)
    split = data.validation
    exclusive = [head for head in trained.heads.values() if head.classes and not head.several]
    for ids, outputs in forward.compute_outputs(trained.network, data.heads, split, data.prepare, torch.device("cpu")):
        for head in exclusive:
            targets = split.targets[head.name][torch.from_numpy(ids)]
            labelled = targets != NO_LABEL
            predictions = heads.setdefault(head.name, HeadPredictions(head.classes))
            probabilities = (outputs[head.name].double() / head.temperature).softmax(dim=1)
            predictions.probabilities.append(probabilities[labelled].numpy())
            predictions.labels += targets[labelled].tolist()
            predictions.samples += [split.title(int(number)) for number in ids[labelled.numpy()]]


def write(folder: Path, suspicious: Sequence[SuspiciousLabel]) -> Path:
    """Write a table of all suspicious labels, the most suspicious first.

    Raises:
        StorageError: if it cannot be written.
    """
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["sample", "output", "label", "suggestion", "label_probability", "suggestion_probability"])
    for doubt in suspicious:
        probabilities = (f"{doubt.label_probability:.4f}", f"{doubt.suggestion_probability:.4f}")
        table.writerow([doubt.sample, doubt.head, doubt.label, doubt.suggestion, *probabilities])
    write_text(folder / FILE, text.getvalue())
    return folder / FILE
