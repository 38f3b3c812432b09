"""Collects true and predicted numbers of an evaluation: the samples with the largest errors, and a fixed random sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drivetrain.data.dataset import Head
from drivetrain.data.stateless_random import Ids

MAX_ERRORS = 12
"""Number of samples with the largest errors, per head."""
MAX_PLOTTED = 300
"""Number of samples in the plot of predicted against true numbers, per head."""
SCATTER_FACTOR, SCATTER_MODULUS = 1_103_515_245, 2**31
"""`id * SCATTER_FACTOR % SCATTER_MODULUS` puts samples into an order that is unrelated to that of the file."""


class NumberSamples:
    """True and predicted numbers of some samples of one head."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.width = 2 + 2 * len(head.columns)
        self.errors = torch.zeros(0, self.width, dtype=torch.float64)
        """Rows: largest error of the sample in standard deviations, its id, true numbers, predicted numbers; largest first."""
        self.plotted = torch.zeros(0, self.width, dtype=torch.float64)
        """Rows: position in the scattered order, id, true numbers, predicted numbers; smallest first."""

    def update(self, ids: Ids, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: the standardized outputs and targets (N, columns) of the samples `ids` (N,)."""
        truth, predicted = targets.cpu().double(), outputs.cpu().double()
        sample_ids = torch.as_tensor(ids)
        largest_errors = (predicted - truth).abs().amax(1).nan_to_num(-torch.inf, -torch.inf)
        positions = (sample_ids * SCATTER_FACTOR % SCATTER_MODULUS).double()
        samples = torch.cat([sample_ids.double()[:, None], truth, predicted], 1)
        by_error, by_position = (torch.cat([key[:, None], samples], 1) for key in (largest_errors, positions))
        self.errors = _take_first(torch.cat([self.errors, by_error]), -1, MAX_ERRORS)
        self.plotted = _take_first(torch.cat([self.plotted, by_position]), 1, MAX_PLOTTED)

    def to_table(self, rank: int, process_count: int) -> Tensor:
        """The rows, each after a 1, in slice `rank`; all else is 0, so the sum over the processes has the rows of all."""
        slices = torch.zeros(process_count, MAX_ERRORS + MAX_PLOTTED, 1 + self.width, dtype=torch.float64)
        for start, rows in ((0, self.errors), (MAX_ERRORS, self.plotted)):
            slices[rank, start : start + len(rows), 0] = 1
            slices[rank, start : start + len(rows), 1:] = rows
        return slices

    def read_table(self, table: Tensor) -> None:
        """Set the rows from the sum of the tables of all processes."""
        errors, plotted = table[:, :MAX_ERRORS].flatten(0, 1), table[:, MAX_ERRORS:].flatten(0, 1)
        self.errors = _take_first(errors[errors[:, 0] > 0][:, 1:], -1, MAX_ERRORS)
        self.plotted = _take_first(plotted[plotted[:, 0] > 0][:, 1:], 1, MAX_PLOTTED)

    def to_json(self) -> dict[str, Any]:
        """JSON values in the units of the data; samples with a prediction that is not finite are left out."""
        errors = [
            {"sample": int(row[1]), "column": self._find_worst_column(row), "truth": truth, "answer": prediction}
            for row, truth, prediction in zip(self.errors.tolist(), *self._unscale(self.errors), strict=True)
            if _are_finite(prediction)
        ]
        pairs = [pair for pair in zip(*self._unscale(self.plotted), strict=True) if _are_finite(pair[1])]
        return {"columns": list(self.head.columns), "mistakes": errors, "pairs": pairs}

    def _find_worst_column(self, row: list[float]) -> int:
        """The index of the column with the largest error in a row, in standard deviations."""
        count = len(self.head.columns)
        return max(range(count), key=lambda column: abs(row[2 + count + column] - row[2 + column]))

    def _unscale(self, rows: Tensor) -> tuple[list[list[float]], list[list[float]]]:
        """The true and the predicted numbers of rows, in the units of the data."""
        mean, std = (torch.tensor(values, dtype=torch.float64) for values in (self.head.mean, self.head.std))
        truth, predicted = rows[:, 2:].chunk(2, dim=1)
        return (truth * std + mean).tolist(), (predicted * std + mean).tolist()


def _take_first(rows: Tensor, sign: int, count: int) -> Tensor:
    """The `count` rows with the smallest column 0 (`sign` 1) or the largest (`sign` -1); ties are broken by sample id."""
    rows = rows[rows[:, 1].argsort(stable=True)]
    return rows[(sign * rows[:, 0]).argsort(stable=True)[:count]]


def _are_finite(numbers: list[float]) -> bool:
    return all(abs(number) < float("inf") for number in numbers)
