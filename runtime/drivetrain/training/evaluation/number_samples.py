"""Collects what shows how good predicted numbers are: the largest errors of an evaluation, and a fixed sample of its rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drivetrain.data.dataset import Head
from drivetrain.data.stateless_random import Ids

MAX_ERRORS = 12
"""Samples with the largest errors that are kept of each head."""
MAX_SPREAD = 300
"""Samples of which truth and prediction are kept, for a plot."""
SCATTER_FACTOR, SCATTER_MODULUS = 1_103_515_245, 2**31
"""Multiplied by it, modulo a power of two, sample numbers are in an order that has nothing to do with the file's."""


class NumberSamples:
    """True and predicted numbers of some samples of one head."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.width = 2 + 2 * len(head.columns)
        self.errors = torch.zeros(0, self.width, dtype=torch.float64)
        """Rows: largest error of the sample in deviations, its id, the true numbers, the predicted ones; largest first."""
        self.spread = torch.zeros(0, self.width, dtype=torch.float64)
        """Rows: place in the scattered order, then the same; smallest first."""

    def update(self, ids: Ids, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs and targets (N, columns), scaled, of the samples `ids` (N,)."""
        truth, predicted = targets.cpu().double(), outputs.cpu().double()
        sample_ids = torch.as_tensor(ids)
        largest = (predicted - truth).abs().amax(1).nan_to_num(torch.inf)
        order = (sample_ids * SCATTER_FACTOR % SCATTER_MODULUS).double()
        rest = [sample_ids.double()[:, None], truth, predicted]
        self.errors = _take_first(torch.cat([self.errors, torch.cat([largest[:, None], *rest], 1)]), -1, MAX_ERRORS)
        self.spread = _take_first(torch.cat([self.spread, torch.cat([order[:, None], *rest], 1)]), 1, MAX_SPREAD)

    def to_table(self, rank: int, process_count: int) -> Tensor:
        """The rows as one of `process_count` slices, zero elsewhere; the sum over all processes has all rows."""
        slices = torch.zeros(process_count, MAX_ERRORS + MAX_SPREAD, 1 + self.width, dtype=torch.float64)
        for start, rows in ((0, self.errors), (MAX_ERRORS, self.spread)):
            slices[rank, start : start + len(rows), 0] = 1
            slices[rank, start : start + len(rows), 1:] = rows
        return slices

    def read_table(self, table: Tensor) -> None:
        """Take the rows from the sum of the tables of all processes."""
        errors, spread = table[:, :MAX_ERRORS].flatten(0, 1), table[:, MAX_ERRORS:].flatten(0, 1)
        self.errors = _take_first(errors[errors[:, 0] > 0][:, 1:], -1, MAX_ERRORS)
        self.spread = _take_first(spread[spread[:, 0] > 0][:, 1:], 1, MAX_SPREAD)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data, in the units of the data; numbers that are none are left out."""
        errors = [
            {"sample": int(row[1]), "column": self._find_worst(row), "truth": truth, "answer": answer}
            for row, truth, answer in zip(self.errors.tolist(), *self._numbers(self.errors), strict=True)
            if _are_finite(answer)
        ]
        pairs = [pair for pair in zip(*self._numbers(self.spread), strict=True) if _are_finite(pair[1])]
        return {"columns": list(self.head.columns), "mistakes": errors, "pairs": pairs}

    def _find_worst(self, row: list[float]) -> int:
        """The column with the largest error in a row, in deviations."""
        count = len(self.head.columns)
        return max(range(count), key=lambda column: abs(row[2 + count + column] - row[2 + column]))

    def _numbers(self, rows: Tensor) -> tuple[list[list[float]], list[list[float]]]:
        """The true and the predicted numbers of rows, unscaled."""
        mean, std = (torch.tensor(values, dtype=torch.float64) for values in (self.head.mean, self.head.std))
        truth, answer = rows[:, 2:].chunk(2, dim=1)
        return (truth * std + mean).tolist(), (answer * std + mean).tolist()


def _take_first(rows: Tensor, sign: int, count: int) -> Tensor:
    """The rows with the smallest, or for a sign of -1 the largest, first number; ties are broken by sample id."""
    rows = rows[rows[:, 1].argsort(stable=True)]
    return rows[(sign * rows[:, 0]).argsort(stable=True)[:count]]


def _are_finite(numbers: list[float]) -> bool:
    return all(abs(number) < float("inf") for number in numbers)
