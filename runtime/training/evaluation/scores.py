"""Scores of an evaluation, from a confusion matrix or from sums; only labels that can be true together keep all outputs.

Not taken from torchmetrics because importing it takes 1.5 s at every start; the tests compare with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.data.dataset import Head
from runtime.job.job import SCALED_RMSE
from runtime.training.evaluation.label_scores import LabelScores


class ClassScores:
    """Accuracy and macro F1 over the classes that occur; `matrix` is (classes, classes), truth by row."""

    def __init__(self, head: Head) -> None:
        self.classes = len(head.classes)
        self.matrix = torch.zeros(self.classes, self.classes, dtype=torch.int64)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs (N, classes), targets (N,) or probabilities (N, classes)."""
        truth = targets.argmax(dim=1) if targets.ndim == 2 else targets
        flat = truth.cpu() * self.classes + outputs.argmax(dim=1).cpu()
        self.matrix += torch.bincount(flat, minlength=self.classes**2).view(self.classes, self.classes)

    def counts(self) -> list[Tensor]:
        """The counts; those of different samples can be added."""
        return [self.matrix]

    def compute(self) -> dict[str, float]:
        """The scores by metric name."""
        hits, total = self.matrix.diagonal().double(), self.matrix.sum().clamp_min(1)
        both = (self.matrix.sum(0) + self.matrix.sum(1)).double()
        f1 = 2 * hits / both.clamp_min(1)
        return {"accuracy": float(hits.sum() / total), "f1": float(f1[both > 0].mean()) if both.any() else 0.0}


class NumberScores:
    """MAE, RMSE and R2 in the units of the data.

    Of several columns each has its own, `COLUMN/rmse`; those without a column are over all of them: the mean of the MAE and
    of R2, and the root of the mean squared error. In these the column with the largest unit decides, unlike in
    `scaled_rmse`, for which each column is divided by its deviation in the training data.
    """

    def __init__(self, head: Head) -> None:
        self.columns = head.columns
        self.std = torch.tensor(head.std, dtype=torch.float64)
        self.sums = torch.zeros(4, len(head.columns), dtype=torch.float64)
        self.total = torch.zeros(1, dtype=torch.int64)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: both (N, columns), scaled.

        Sums use scaled values: squares of numbers far from 0 would lose the digits in which they differ.
        """
        truth = targets.cpu().double()
        error = outputs.cpu().double() - truth
        self.sums += torch.stack([error.abs().sum(0), (error**2).sum(0), truth.sum(0), (truth**2).sum(0)])
        self.total += len(truth)

    def counts(self) -> list[Tensor]:
        """The counts; those of different samples can be added."""
        return [self.sums, self.total]

    def compute(self) -> dict[str, float]:
        """The scores by metric name."""
        count = self.total.clamp_min(1)
        absolute, squared, truth, truth2 = self.sums / count
        spread = (truth2 - truth**2).clamp_min(1e-12)
        mae, mse, r2 = absolute * self.std, squared * self.std**2, 1 - squared / spread
        scores = {"mae": float(mae.mean()), "rmse": float(mse.mean() ** 0.5), "r2": float(r2.mean())}
        if len(self.columns) > 1:
            scores[SCALED_RMSE] = float(squared.mean() ** 0.5)
            for index, column in enumerate(self.columns):
                scores[f"{column}/mae"] = float(mae[index])
                scores[f"{column}/rmse"] = float(mse[index] ** 0.5)
                scores[f"{column}/r2"] = float(r2[index])
        return scores


class NoScores:
    """For targets that only the user's loss can interpret."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Nothing to add."""

    def counts(self) -> list[Tensor]:
        """The counts; there are none."""
        return []

    def compute(self) -> dict[str, float]:
        """No scores."""
        return {}


Scores = ClassScores | LabelScores | NumberScores | NoScores


def scores(head: Head) -> Scores:
    """The scores for a head's kind of output."""
    if not head.outputs:
        return NoScores()
    if not head.classes:
        return NumberScores(head)
    return LabelScores(head) if head.several else ClassScores(head)
