"""Computes the scores of an evaluation from sums over its batches; only ranking scores keep all outputs.

torchmetrics is not used because importing it takes 1.5 s at every start; the tests compare the scores with it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from drivetrain.data.dataset import Head, is_zero, predict_classes
from drivetrain.data.labels import have_order
from drivetrain.distributed.ranks import Ranks
from drivetrain.job.job import KAPPA, MAPE, SCALED_RMSE
from drivetrain.training.evaluation import calibration
from drivetrain.training.evaluation.calibration import TEMPERATURES
from drivetrain.training.evaluation.worst_mistakes import NumberSamples, WorstMistakes

THRESHOLD_METRICS = ("accuracy", "f1", "micro_f1", "balanced_accuracy", KAPPA)
"""Metrics that depend on a threshold."""


class Scores:
    """Scores of one head. This base class has no scores, for targets that only the user's loss can interpret."""

    examples: WorstMistakes | NumberSamples | None = None
    """Samples that the report shows."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs (N, outputs), and the targets of the same samples."""

    def counts(self) -> list[Tensor]:
        """Return the counts; counts of different samples can be added."""
        return []

    def gather(self, ranks: Ranks) -> None:
        """Collect the rows of all processes, which call it together."""

    def compute(self) -> dict[str, float]:
        """Compute the scores by metric name."""
        return {}

    def to_json(self, decisive_metric: str) -> dict[str, object] | None:
        """Return details for the report, with the gain of thresholds in the decisive metric; None if there are none."""
        return None


class LabelScores(Scores):
    """Scores of labels that can be true together (multi-label), predicted from the head's thresholds.

    The scores are the share of samples with all labels right (accuracy), mean F1 over the labels (f1), F1 over all
    decisions (micro_f1), and the mean average precision of the labels that occur (map), which needs all outputs.
    """

    def __init__(self, head: Head) -> None:
        self.head, self.labels = head, len(head.classes)
        self.at_half = LabelScores(replace(head, thresholds=())) if head.thresholds else None
        self.label_counts = torch.zeros(3, self.labels, dtype=torch.float64)
        self.exact_matches, self.samples = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        self.kept_rows: list[Tensor] = [torch.zeros(2, 0, self.labels)]
        """Outputs, and 1 where the sample has the label, each (2, N, labels) of a batch."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs (N, labels), targets (N, labels) of 0 and 1."""
        if self.at_half:
            self.at_half.update(outputs, targets)
        outputs, truth = outputs.cpu(), targets.cpu() > 0.5
        predicted = predict_classes(self.head, outputs)
        self.label_counts += torch.stack([(predicted & truth).sum(0), predicted.sum(0), truth.sum(0)]).double()
        self.exact_matches += int((predicted == truth).all(dim=1).sum())
        self.samples += len(predicted)
        self.kept_rows.append(torch.stack([outputs.float(), truth.float()]))

    def counts(self) -> list[Tensor]:
        return [self.label_counts, self.exact_matches, self.samples]

    def gather(self, ranks: Ranks) -> None:
        self.kept_rows = _gather_rows(self.kept_rows, ranks)

    def compute(self) -> dict[str, float]:
        correct, predicted, positive = self.label_counts
        occurs = predicted + positive > 0
        f1 = 2 * correct / (predicted + positive).clamp_min(1)
        precisions = self.average_precision()
        scores = {
            "accuracy": float(self.exact_matches / self.samples.clamp_min(1)),
            "f1": float(f1[occurs].mean()) if occurs.any() else 0.0,
            "micro_f1": float(2 * correct.sum() / (predicted + positive).sum().clamp_min(1)),
            "map": float(precisions[positive > 0].mean()) if (positive > 0).any() else 0.0,
        }
        return scores | _list_at_half(self.at_half)

    def average_precision(self) -> Tensor:
        """Compute the area below the curve of precision over recall for each label, shape (labels,), as a sum of steps.

        It is 0 for a label without samples. Equal outputs form one step.
        """
        self.kept_rows = [torch.cat(self.kept_rows, dim=1)]
        outputs, truth = self.kept_rows[0]
        return torch.stack([_average_precision(outputs[:, label], truth[:, label]) for label in range(self.labels)])

    def to_json(self, decisive_metric: str) -> dict[str, object]:
        """Return classes, number of samples, rows of labels, and the gain of other thresholds in the decisive metric.

        A row contains the numbers of true, predicted and correctly predicted samples, and the average precision.
        """
        correct, predicted, positive = self.label_counts.long().tolist()
        rows = zip(positive, predicted, correct, self.average_precision().tolist(), strict=True)
        gains = calibration.measure_gains(self.kept_rows[0], calibration.LABEL_METRICS, decisive_metric)
        labels = [list(row) for row in rows]
        return {"classes": list(self.head.classes), "samples": int(self.samples), "labels": labels, "thresholds": gains}


def _list_at_half(scores: LabelScores | ClassScores | None) -> dict[str, float]:
    """List the scores with a threshold of 0.5 that thresholds change; empty for a head without other thresholds."""
    values = scores.compute() if scores else {}
    return {f"{name}_at_half": value for name, value in values.items() if name in THRESHOLD_METRICS}


def _gather_rows(rows: list[Tensor], ranks: Ranks) -> list[Tensor]:
    """Gather the rows (2, N, labels) of all processes in the order of their ranks."""
    if ranks.world_size == 1:
        return rows
    local_rows = torch.cat(rows, dim=1)
    sizes = torch.zeros(ranks.world_size, dtype=torch.int64)
    sizes[ranks.rank] = local_rows.shape[1]
    sizes = ranks.all_reduce_sum([sizes])[0].long()
    start = int(sizes[: ranks.rank].sum())
    all_rows = torch.zeros(2, int(sizes.sum()), local_rows.shape[2])
    all_rows[:, start : start + local_rows.shape[1]] = local_rows
    return ranks.all_reduce_sum([all_rows])


def _average_precision(outputs: Tensor, truth: Tensor) -> Tensor:
    """Compute the average precision, shape (), of one label from outputs (N,) and truth (N,); NaN ranks last."""
    sorted_outputs, order = outputs.nan_to_num(-torch.inf, torch.inf, -torch.inf).sort(descending=True, stable=True)
    hits = truth[order].double().cumsum(0)
    ends_a_tie = torch.ones(len(sorted_outputs), dtype=torch.bool)
    ends_a_tie[:-1] = sorted_outputs[1:] != sorted_outputs[:-1]
    last_of_ties = ends_a_tie.nonzero()[:, 0]
    hits_at_ends = hits[last_of_ties]
    new_hits = torch.diff(hits_at_ends, prepend=torch.zeros(1, dtype=torch.float64))
    return (new_hits * hits_at_ends / (last_of_ties + 1)).sum() / truth.double().sum().clamp_min(1)


class ClassScores(Scores):
    """Scores of exclusive classes; `matrix` is (classes, classes), truth by row.

    Scores of the predicted class: accuracy, macro F1 and balanced accuracy (mean recall) over the classes that occur.
    Scores of the probabilities: log loss, Brier score (squared distance from the truth, for two classes of one class
    only), and expected calibration error (Guo et al. 2017), the gap between confidence and accuracy in equal bins. For
    two classes also the area below the ROC curve and the mean of both average precisions, which need all outputs and
    samples of both classes. For two classes, or whole numbers as classes, Cohen's kappa with quadratic weights.
    """

    BINS = 15
    """Number of bins of the confidence, as in the paper."""

    def __init__(self, head: Head) -> None:
        self.classes, self.temperature = len(head.classes), head.temperature
        self.head = head
        self.examples: WorstMistakes = WorstMistakes()
        self.at_half = ClassScores(replace(head, thresholds=())) if head.thresholds else None
        self.have_order = have_order(head.classes)
        self.matrix = torch.zeros(self.classes, self.classes, dtype=torch.int64)
        self.scaled_losses = torch.zeros(len(TEMPERATURES), dtype=torch.float64)
        """Sums of the log loss at each temperature."""
        self.losses = torch.zeros(2, dtype=torch.float64)
        """Sums of log loss and squared distance."""
        self.bins = torch.zeros(self.BINS, 3, dtype=torch.float64)
        """Sums of confidence, of correct predictions and of samples, by bin."""
        self.kept_rows: list[Tensor] = [torch.zeros(2, 0, 1)]
        """Rows of two classes: difference of the outputs, and 1 for the second class, each (2, N, 1) of a batch."""

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs (N, classes), targets (N,) or probabilities (N, classes)."""
        if self.at_half:
            self.at_half.update(outputs, targets)
        truth = targets.argmax(dim=1) if targets.ndim == 2 else targets
        cells = truth.cpu() * self.classes + predict_classes(self.head, outputs).cpu()
        self.matrix += torch.bincount(cells, minlength=self.classes**2).view(self.classes, self.classes)
        self._add_probabilities(outputs.float(), truth)
        if self.classes == 2:
            self.kept_rows.append(
                torch.stack([outputs[:, 1:] - outputs[:, :1], truth[:, None].to(outputs.dtype)]).float().cpu()
            )

    def _add_probabilities(self, outputs: Tensor, truth: Tensor) -> None:
        self.scaled_losses += calibration.sum_log_losses(outputs, truth)
        logarithms = (outputs / self.temperature).log_softmax(dim=1)
        probabilities = logarithms.exp()
        truth_column = truth[:, None]
        # |p - truth|^2 = |p|^2 - 2 p[truth] + 1
        distances = probabilities.square().sum(1) - 2 * probabilities.gather(1, truth_column)[:, 0] + 1
        confidence, predicted = probabilities.max(dim=1)
        by_sample = (-logarithms.gather(1, truth_column)[:, 0], distances, confidence, (predicted == truth).float())
        log_loss, distance, confidence, is_right = torch.stack(by_sample).cpu().double()  # in one copy from a GPU
        self.losses += torch.stack([log_loss.sum(), distance.sum()])
        # A NaN confidence has a bin too; 1 belongs to the last bin.
        bin_indices = (confidence.nan_to_num(0) * self.BINS).long().clamp(0, self.BINS - 1)
        sums = [bin_indices.bincount(values, minlength=self.BINS) for values in (confidence, is_right)]
        sums.append(bin_indices.bincount(minlength=self.BINS).double())
        self.bins += torch.stack(sums, dim=1)

    def counts(self) -> list[Tensor]:
        return [self.matrix, self.losses, self.bins, self.scaled_losses]

    def gather(self, ranks: Ranks) -> None:
        if self.classes == 2:
            self.kept_rows = _gather_rows(self.kept_rows, ranks)

    def compute(self) -> dict[str, float]:
        hits, total = self.matrix.diagonal().double(), self.matrix.sum().clamp_min(1)
        class_counts = self.matrix.sum(1).double()
        counts_and_predictions = self.matrix.sum(0) + class_counts
        f1 = 2 * hits / counts_and_predictions.clamp_min(1)
        recall = hits / class_counts.clamp_min(1)
        scores = {
            "accuracy": float(hits.sum() / total),
            "f1": float(f1[counts_and_predictions > 0].mean()) if counts_and_predictions.any() else 0.0,
            "balanced_accuracy": float(recall[class_counts > 0].mean()) if class_counts.any() else 0.0,
            "log_loss": float(self.losses[0] / total),
            "brier": float(self.losses[1] / total / (2 if self.classes == 2 else 1)),
            "ece": float((self.bins[:, 0] - self.bins[:, 1]).abs().sum() / total),
        }
        scores |= _list_at_half(self.at_half) | (self._compute_kappa() if self.have_order else {})
        return scores | (self._compute_rankings() if self.classes == 2 else {})

    def _compute_kappa(self) -> dict[str, float]:
        """Compute Cohen's kappa: 1 - squared distance of predictions from the truth / expected distance by chance."""
        counts, positions = self.matrix.double(), torch.arange(self.classes)
        distances = (positions[:, None] - positions).square().double()
        expected = counts.sum(1)[:, None] * counts.sum(0) / counts.sum().clamp_min(1)
        chance = float((distances * expected).sum())
        return {KAPPA: 1 - float((distances * counts).sum()) / chance} if chance else {}

    def to_json(self, decisive_metric: str) -> dict[str, object]:
        """Return the classes, the confusion matrix (truth by row), the worst mistakes, and the data for calibration."""
        return {
            "classes": list(self.head.classes),
            "matrix": self.matrix.tolist(),
            "mistakes": self.examples.to_json(),
            "calibration": self.calibration(),
            "thresholds": self.measure_gains(decisive_metric),
        }

    def calibration(self) -> dict[str, object]:
        """Return calibration data: the number of samples, and the log loss by temperature."""
        total = max(1, int(self.matrix.sum()))
        losses = (self.scaled_losses / total).tolist()
        return {"samples": int(self.matrix.sum()), "log_loss": losses}

    def measure_gains(self, decisive_metric: str) -> dict[str, list[list[float]]]:
        """Compute the gain of other thresholds in the decisive metric; empty unless there are two classes."""
        if self.classes != 2:
            return {}
        return calibration.measure_gains(torch.cat(self.kept_rows, dim=1), calibration.CLASS_METRICS, decisive_metric)

    def _compute_rankings(self) -> dict[str, float]:
        self.kept_rows = [torch.cat(self.kept_rows, dim=1)]
        outputs, truth = self.kept_rows[0][0, :, 0], self.kept_rows[0][1, :, 0]
        if bool((truth == truth[:1]).all()):
            return {}
        first_precision = _average_precision(-outputs, (truth == 0).float())
        second_precision = _average_precision(outputs, (truth == 1).float())
        precision = float(second_precision + first_precision) / 2
        return {"auc": _area_below_roc(outputs, truth), "average_precision": precision}


def _area_below_roc(outputs: Tensor, truth: Tensor) -> float:
    """Compute the share of pairs of both classes whose outputs (N,) are in order; equal outputs count half."""
    positive = int(truth.sum())
    pairs = positive * (len(truth) - positive)
    _, rank_indices, counts = outputs.nan_to_num(-torch.inf, torch.inf, -torch.inf).unique(  # type: ignore[no-untyped-call]
        return_inverse=True, return_counts=True
    )
    # The mean rank of equal outputs, from 1.
    ranks = counts.double().cumsum(0) - (counts.double() - 1) / 2
    return float((ranks[rank_indices][truth > 0.5].sum() - positive * (positive + 1) / 2) / pairs)


class NumberScores(Scores):
    """MAE, RMSE, R2 and MAPE in the units of the data; no MAPE if a true number is 0.

    Each of several columns has its own scores, such as `COLUMN/rmse`. Scores without a column are over all columns: the
    mean MAE, the mean R2, and the root of the mean squared error. Columns with large units dominate them, except in
    `scaled_rmse`, where each column is divided by its standard deviation in the training data.
    """

    def __init__(self, head: Head) -> None:
        self.columns = head.columns
        self.examples: NumberSamples = NumberSamples(head)
        self.std, self.mean = (torch.tensor(values, dtype=torch.float64) for values in (head.std, head.mean))
        self.sums = torch.zeros(6, len(head.columns), dtype=torch.float64)
        self.samples = torch.zeros(1, dtype=torch.int64)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs and targets, both (N, columns) and scaled.

        Sums use scaled values: squares of numbers far from 0 would lose the digits that differ.
        """
        truth = targets.cpu().double()
        error = outputs.cpu().double() - truth
        numbers = truth * self.std + self.mean
        zeros = is_zero(numbers, self.mean, self.std)
        shares = torch.where(zeros, 0.0, error * self.std / numbers)
        sums = (error.abs(), error**2, truth, truth**2, shares.abs(), zeros.double())
        self.sums += torch.stack([values.sum(0) for values in sums])
        self.samples += len(truth)

    def counts(self) -> list[Tensor]:
        return [self.sums, self.samples]

    def compute(self) -> dict[str, float]:
        count = self.samples.clamp_min(1)
        absolute_error, squared_error, mean, mean_square, mape, zeros = self.sums / count
        variance = (mean_square - mean**2).clamp_min(1e-12)
        mae, mse, r2 = absolute_error * self.std, squared_error * self.std**2, 1 - squared_error / variance
        scores = {"mae": float(mae.mean()), "rmse": float(mse.mean() ** 0.5), "r2": float(r2.mean())}
        if not zeros.any():
            scores[MAPE] = float(mape.mean())
        if len(self.columns) > 1:
            scores[SCALED_RMSE] = float(squared_error.mean() ** 0.5)
            for index, column in enumerate(self.columns):
                scores[f"{column}/mae"] = float(mae[index])
                scores[f"{column}/rmse"] = float(mse[index] ** 0.5)
                scores[f"{column}/r2"] = float(r2[index])
                if not zeros[index]:
                    scores[f"{column}/{MAPE}"] = float(mape[index])
        return scores

    def to_json(self, decisive_metric: str) -> dict[str, object]:
        """Return true and predicted numbers, and the largest errors."""
        return self.examples.to_json()


def build_scores(head: Head) -> Scores:
    """Build the scores for a head's kind of output."""
    if not head.outputs:
        return Scores()
    if not head.classes:
        return NumberScores(head)
    return LabelScores(head) if head.several else ClassScores(head)
