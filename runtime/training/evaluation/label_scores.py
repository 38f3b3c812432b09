"""Scores of labels that can be true together (multi-label), with a threshold of 0.5, and their average precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from runtime.data.dataset import Head


class LabelScores:
    """All labels right (accuracy), mean F1 over the labels (f1), F1 over all decisions (micro_f1), and the mean of the
    average precision over the labels that occur (map), for which all outputs are kept: it needs their order.
    """

    def __init__(self, head: Head) -> None:
        self.labels = len(head.classes)
        self.marks = torch.zeros(3, self.labels, dtype=torch.float64)
        self.exact, self.total = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        self.rows: list[Tensor] = [torch.zeros(2, 0, self.labels)]
        """Outputs, and 1 where the sample has the label, each (2, N, labels) of a batch."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs (N, labels), targets (N, labels) of 0 and 1."""
        outputs, truth = outputs.cpu(), targets.cpu() > 0.5
        guess = outputs > 0
        self.marks += torch.stack([(guess & truth).sum(0), guess.sum(0), truth.sum(0)]).double()
        self.exact += int((guess == truth).all(dim=1).sum())
        self.total += len(guess)
        self.rows.append(torch.stack([outputs.float(), truth.float()]))

    def counts(self) -> list[Tensor]:
        """The counts; those of different samples can be added."""
        return [self.marks, self.exact, self.total]

    def gather(self, total: Callable[[Sequence[Tensor]], list[Tensor]], place: tuple[int, int]) -> None:
        """Take the rows of all processes, by sums over them; `place` is (i, n) for the i-th of n."""
        if place[1] == 1:
            return
        own = torch.cat(self.rows, dim=1)
        sizes = torch.zeros(place[1], dtype=torch.int64)
        sizes[place[0]] = own.shape[1]
        sizes = total([sizes])[0].long()
        start = int(sizes[: place[0]].sum())
        rows = torch.zeros(2, int(sizes.sum()), self.labels)
        rows[:, start : start + own.shape[1]] = own
        self.rows = total([rows])

    def compute(self) -> dict[str, float]:
        """The scores by metric name."""
        both, guessed, true = self.marks
        occurs = guessed + true > 0
        f1 = 2 * both / (guessed + true).clamp_min(1)
        precision = self.average_precision()
        return {
            "accuracy": float(self.exact / self.total.clamp_min(1)),
            "f1": float(f1[occurs].mean()) if occurs.any() else 0.0,
            "micro_f1": float(2 * both.sum() / (guessed + true).sum().clamp_min(1)),
            "map": float(precision[true > 0].mean()) if (true > 0).any() else 0.0,
        }

    def average_precision(self) -> Tensor:
        """The area below the curve of precision over recall, as a sum of steps, of each label, shape (labels,); 0 for a
        label without samples. Equal outputs are one step.
        """
        self.rows = [torch.cat(self.rows, dim=1)]
        outputs, truth = self.rows[0]
        return torch.stack([_area(outputs[:, label], truth[:, label]) for label in range(self.labels)])

    def to_json(self) -> dict[str, object]:
        """Samples, and by label those that have it, that were predicted to, both, and the average precision."""
        both, guessed, true = self.marks.long().tolist()
        rows = zip(true, guessed, both, self.average_precision().tolist(), strict=True)
        return {"samples": int(self.total), "labels": [list(row) for row in rows]}


def _area(outputs: Tensor, truth: Tensor) -> Tensor:
    """The average precision of one label, of outputs (N,) and truth (N,), shape (); NaN ranks last."""
    ranked, order = outputs.nan_to_num(-torch.inf, torch.inf, -torch.inf).sort(descending=True, stable=True)
    hits = truth[order].double().cumsum(0)
    ends = torch.cat([ranked[1:] != ranked[:-1], torch.ones(min(1, len(ranked)), dtype=torch.bool)]).nonzero()[:, 0]
    reached = hits[ends]
    gained = torch.diff(reached, prepend=torch.zeros(1, dtype=torch.float64))
    return (gained * reached / (ends + 1)).sum() / truth.double().sum().clamp_min(1)
