"""Calibrates a head: fits the temperature that divides its outputs, and the probability thresholds of its classes.

Networks are usually overconfident. One number, fitted to the validation samples so that a probability of 0.8 is right
in 80 % of cases, corrects most of it and changes no predicted class (Guo et al. 2017).

The best threshold for a label, or for the second of two classes, need not be 0.5, for example for F1. Another threshold
is used only if the metric gains more than chance explains. To find out, each half of the samples is predicted with the
best threshold of the other half, and a paired bootstrap gives the standard error of the gain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.dataset import Head
from drivetrain.system.console import Detail

TEMPERATURES = tuple(2 ** (step / 4) for step in range(-8, 13))
"""Temperatures from 0.25 to 8 in steps of a factor of 1.19; between two of them the loss is nearly a parabola."""
PRIOR_DEVIATION = 0.5
"""Standard deviation of the prior on log(temperature): a few samples without a mistake must not give temperature 0."""
MAX_VALUES_AT_ONCE = 1 << 22
"""Largest number of outputs times temperatures that are computed at once."""


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature, and the validation log loss without and with it."""

    value: float
    log_loss: float
    scaled_log_loss: float

    @property
    def is_at_end(self) -> bool:
        """Whether it is the smallest or the largest of TEMPERATURES; a better value may lie outside."""
        return not 1.001 * TEMPERATURES[0] < self.value < TEMPERATURES[-1] / 1.001


def sum_log_losses(outputs: Tensor, truth: Tensor) -> Tensor:
    """Sum the log loss of outputs (N, classes) at each temperature, float64 on the CPU; `truth` is (N,)."""
    divisors = torch.tensor(TEMPERATURES, device=outputs.device)[:, None, None]
    sums = torch.zeros(len(TEMPERATURES), dtype=torch.float64)
    chunk_rows = max(1, MAX_VALUES_AT_ONCE // (len(TEMPERATURES) * max(1, outputs.shape[1])))
    for start in range(0, len(outputs), chunk_rows):
        log_probabilities = (outputs[start : start + chunk_rows] / divisors).log_softmax(dim=2)
        class_indices = truth[start : start + chunk_rows].expand(len(TEMPERATURES), -1).unsqueeze(2)
        sums -= log_probabilities.gather(2, class_indices).squeeze(2).sum(1).cpu().double()
    return sums


def choose_temperature(log_losses: Sequence[float], samples: int) -> Temperature | None:
    """Choose the most probable temperature from the mean log loss at each of TEMPERATURES; None without finite losses.

    It is the minimum of a parabola over log(temperature) through the best of TEMPERATURES and its neighbors.
    """
    if not samples or len(log_losses) != len(TEMPERATURES) or not all(map(isfinite, log_losses)):
        return None
    log_temperatures = [log(value) for value in TEMPERATURES]
    penalized_losses = [
        loss + log_temperature**2 / (2 * PRIOR_DEVIATION**2 * samples)
        for loss, log_temperature in zip(log_losses, log_temperatures, strict=True)
    ]
    best = min(range(len(penalized_losses)), key=penalized_losses.__getitem__)
    log_temperature = log_temperatures[best]
    if 0 < best < len(penalized_losses) - 1:
        grid_step = log_temperatures[1] - log_temperatures[0]
        log_temperature += _find_vertex(penalized_losses[best - 1 : best + 2]) * grid_step
    scaled_log_loss = _interpolate(log_losses, log_temperatures, log_temperature)
    return Temperature(exp(log_temperature), log_losses[TEMPERATURES.index(1.0)], scaled_log_loss)


def read_temperature(confusion: Mapping[str, Any], head: str) -> Temperature | None:
    """Read the temperature of a head from the record of an evaluation; None for a head without probabilities."""
    record = (confusion.get(head) or {}).get("calibration") or {}
    return choose_temperature(record.get("log_loss", ()), record.get("samples", 0))


def _find_vertex(values: Sequence[float]) -> float:
    """Find the minimum of a parabola through values at -1, 0 and 1; the middle value must be the smallest."""
    left, middle, right = values
    curvature = left - 2 * middle + right
    return 0.0 if curvature <= 0 else (left - right) / (2 * curvature)


def _interpolate(values: Sequence[float], positions: Sequence[float], position: float) -> float:
    """Interpolate the value at a position with a parabola through the three nearest values."""
    middle = min(range(1, len(positions) - 1), key=lambda index: abs(positions[index] - position))
    left, center, right = values[middle - 1 : middle + 2]
    offset = (position - positions[middle]) / (positions[1] - positions[0])
    return center + offset * (right - left) / 2 + offset**2 * (left - 2 * center + right) / 2


FEW_SAMPLES = 1000
"""Number of samples below which a fit is reported to rest on few: of 1,000, a share of 0.9 is known to 0.02."""


def describe_samples(confusion: Mapping[str, Any], head: str) -> str:
    """Describe the samples to which temperature and thresholds of a head are fitted, and whether they are few."""
    record = confusion.get(head) or {}
    count = (record.get("calibration") or record).get("samples", 0)
    note = ", which are few" if count < FEW_SAMPLES else ""
    return f"by the {count:,} validation samples that chose the epoch{note}"


RESAMPLES = 200
MIN_STANDARD_ERRORS = 2
"""Gain that is required, as a multiple of its standard error."""
MAX_LOG_ODDS = 30.0
"""Largest log odds of a threshold; beyond it a probability in float64 is rounded to 0 or 1."""

Score = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Metric as a function of the numbers of true positives, false positives, false negatives and true negatives."""


def _compute_f1(hits: Tensor, false_alarms: Tensor, misses: Tensor, _: Tensor) -> Tensor:
    return 2 * hits / (2 * hits + false_alarms + misses).clamp_min(1)


def _compute_macro_f1(hits: Tensor, false_alarms: Tensor, misses: Tensor, rejections: Tensor) -> Tensor:
    f1_without_label = _compute_f1(rejections, misses, false_alarms, hits)
    return (_compute_f1(hits, false_alarms, misses, rejections) + f1_without_label) / 2


def _compute_balanced_accuracy(hits: Tensor, false_alarms: Tensor, misses: Tensor, rejections: Tensor) -> Tensor:
    recall = hits / (hits + misses).clamp_min(1)
    return (recall + rejections / (rejections + false_alarms).clamp_min(1)) / 2


LABEL_METRICS: Mapping[str, Score] = {"f1": _compute_f1}
CLASS_METRICS: Mapping[str, Score] = {"f1": _compute_macro_f1, "balanced_accuracy": _compute_balanced_accuracy}


def measure_gains(rows: Tensor, metrics: Mapping[str, Score], decisive_metric: str) -> dict[str, list[list[float]]]:
    """Measure how much other thresholds improve the decisive metric, for each label.

    Args:
        rows: outputs, and 1 where the label is true, (2, N, labels).
        metrics: metrics that thresholds change.
        decisive_metric: name of the metric to measure; nothing is measured if it is not in `metrics`.

    Returns:
        Under the name of the metric, four numbers for each label: the best output threshold, the metric at threshold 0,
        the metric at the best threshold of the other half of the samples, and the standard error of the difference.
    """
    if decisive_metric not in metrics:
        return {}
    score = metrics[decisive_metric]
    outputs, truth = rows[0].nan_to_num().double(), rows[1] > 0.5
    labels = range(outputs.shape[1])
    return {decisive_metric: [_measure_gain(outputs[:, label], truth[:, label], score) for label in labels]}


def _measure_gain(outputs: Tensor, truth: Tensor, score: Score) -> list[float]:
    if truth.all() or not truth.any():  # samples of one class say nothing about the other
        return [0.0, 0.0, 0.0, 0.0]
    is_even = torch.arange(len(outputs)) % 2 == 0
    even_best = _find_best(outputs[is_even], truth[is_even], score)
    odd_best = _find_best(outputs[~is_even], truth[~is_even], score)
    starts = torch.where(is_even, odd_best, even_best)
    # Truth, prediction at threshold 0, and prediction at the other half's threshold give one of eight cells.
    cells = torch.bincount(truth * 4 + (outputs > 0) * 2 + (outputs > starts), minlength=8).double()
    drawn = np.random.default_rng(0).multinomial(len(outputs), cells.numpy() / len(outputs), size=RESAMPLES)
    # Row 0 is the sample itself, the other rows are resampled.
    counts = torch.cat([cells[None], torch.from_numpy(drawn).double()]).view(-1, 2, 2, 2)
    usual_values = _score_counts(counts.sum(3), score)
    values = _score_counts(counts.sum(2), score)
    error = (values - usual_values)[1:].std()
    return [_find_best(outputs, truth, score), float(usual_values[0]), float(values[0]), float(error)]


def _score_counts(counts: Tensor, score: Score) -> Tensor:
    """Compute the score of counts by truth and prediction, (rows, 2, 2); the result has the shape (rows,)."""
    return score(counts[:, 1, 1], counts[:, 0, 1], counts[:, 1, 0], counts[:, 0, 0])


def _find_best(outputs: Tensor, truth: Tensor, score: Score) -> float:
    """Find the output threshold with the best score, midway between two outputs; 0 if all outputs are equal."""
    ranked, order = outputs.sort(descending=True, stable=True)
    last_of_ties = (ranked[1:] != ranked[:-1]).nonzero()[:, 0]
    if not len(last_of_ties):
        return 0.0
    all_hits, predicted = truth[order].double().cumsum(0), last_of_ties + 1.0
    hits, positive = all_hits[last_of_ties], all_hits[-1]
    values = score(hits, predicted - hits, positive - hits, len(outputs) - positive - predicted + hits)
    end = int(last_of_ties[values.argmax()])
    return float(ranked[end] + ranked[end + 1]) / 2


def choose_thresholds(confusion: Mapping[str, Any], head: Head, metric: str) -> tuple[float, ...]:
    """Choose the thresholds of a head with its temperature from the record of an evaluation; empty if 0.5 is as good.

    Args:
        confusion: record of the evaluation.
        head: head with its temperature.
        metric: metric of the job that decides, such as `validation/f1`; thresholds are chosen for this metric alone.
    """
    log_odds = []
    for start, usual_value, value, error in _read_gains(confusion, head.name, metric):
        threshold = start / head.temperature
        is_better = value - usual_value > MIN_STANDARD_ERRORS * error
        log_odds.append(threshold if is_better and abs(threshold) < MAX_LOG_ODDS else 0.0)
    return tuple(1 / (1 + exp(-threshold)) for threshold in log_odds) if any(log_odds) else ()


def describe_thresholds(confusion: Mapping[str, Any], head: Head, metric: str) -> str:
    """Describe the thresholds of a head and their effect, or that it has none; empty for a metric without thresholds."""
    rows = _read_gains(confusion, head.name, metric)
    if not rows:
        return ""
    name = metric.rpartition("/")[2]
    samples = describe_samples(confusion, head.name)
    if not head.thresholds:
        return Detail(f"0.5 for each class: no other threshold improves {name} by more than chance explains, {samples}")
    classes = head.classes if head.several else head.classes[1:]
    changes = []
    for label, threshold, (_, usual_value, value, error) in zip(classes, head.thresholds, rows, strict=True):
        if threshold != 0.5:
            changes.append(f'"{label}" from {threshold:.3g} ({name} {usual_value:.4f} -> {value:.4f} +- {error:.4f})')
    listed = ", ".join(changes[:8]) + (" ..." if changes[8:] else "")
    unchanged = "; the others from 0.5" if len(changes) < len(rows) else ""
    return f"predicted from other probabilities than 0.5: {listed}{unchanged}; chosen {samples}"


def _read_gains(confusion: Mapping[str, Any], head: str, metric: str) -> list[list[float]]:
    start = f"validation/{head}/" if head else "validation/"
    rows: list[list[float]] = ((confusion.get(head) or {}).get("thresholds") or {}).get(metric.removeprefix(start), [])
    return rows
