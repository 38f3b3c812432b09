"""Scores of labels that can be true together (multi-label), with a threshold of 0.5, and their average precision."""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.data.dataset import Head

RANGE, STEPS = 16, 128
"""Outputs are ranked for the average precision after rounding to 1/128, from -16 to 16: counts of samples with the same
rounded output can be added over processes, and need the same memory for any number of samples.
"""
BINS = 2 * RANGE * STEPS + 1


class LabelScores:
    """All labels right (accuracy), mean F1 over the labels (f1), F1 over all decisions (micro_f1), and the mean of the
    average precision over the labels that occur (map).
    """

    def __init__(self, head: Head) -> None:
        self.labels = len(head.classes)
        self.marks = torch.zeros(3, self.labels, dtype=torch.float64)
        self.exact, self.total = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        self.ranked = torch.zeros(2, self.labels, BINS, dtype=torch.int64)
        """Samples without and with each label, by rounded output."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs (N, labels), targets (N, labels) of 0 and 1."""
        outputs, truth = outputs.cpu(), targets.cpu() > 0.5
        guess = outputs > 0
        self.marks += torch.stack([(guess & truth).sum(0), guess.sum(0), truth.sum(0)]).double()
        self.exact += int((guess == truth).all(dim=1).sum())
        self.total += len(guess)
        place = (outputs.nan_to_num(-RANGE).clamp(-RANGE, RANGE) * STEPS).round().long() + RANGE * STEPS
        flat = (truth.long() * self.labels + torch.arange(self.labels)) * BINS + place
        self.ranked.view(-1).index_add_(0, flat.flatten(), torch.ones(flat.numel(), dtype=torch.int64))

    def counts(self) -> list[Tensor]:
        """The counts; those of different samples can be added."""
        return [self.marks, self.exact, self.total, self.ranked]

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
        label without samples.
        """
        without, with_label = self.ranked.flip(2).double()
        found = with_label.cumsum(1)
        precision = found / (found + without.cumsum(1)).clamp_min(1)
        area: Tensor = (precision * with_label).sum(1) / with_label.sum(1).clamp_min(1)
        return area

    def to_json(self) -> dict[str, object]:
        """Samples, and by label those that have it, that were predicted to, both, and the average precision."""
        both, guessed, true = self.marks.long().tolist()
        rows = zip(true, guessed, both, self.average_precision().tolist(), strict=True)
        return {"samples": int(self.total), "labels": [list(row) for row in rows]}
