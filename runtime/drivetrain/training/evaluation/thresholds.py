"""Chooses the probability from which a label, or the second of two classes, is predicted: 0.5 is not best for F1.

It is used only where the metric gains more than chance explains: each half of the samples is predicted with what is best for
the other half, and the standard error of the gain is that of samples that are drawn again (paired bootstrap).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.dataset import Head

RESAMPLES = 200
MIN_STANDARD_ERRORS = 2
"""So many times its standard error a gain must be."""
MAX_LOG_ODDS = 30.0
"""Beyond it a probability in float64 no longer tells outputs apart, and ends as 0 or 1."""

Score = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A metric of numbers of true positives, false positives, false negatives and true negatives."""


def _compute_f1(hits: Tensor, false_alarms: Tensor, misses: Tensor, _: Tensor) -> Tensor:
    return 2 * hits / (2 * hits + false_alarms + misses).clamp_min(1)


def _compute_macro_f1(hits: Tensor, false_alarms: Tensor, misses: Tensor, rejections: Tensor) -> Tensor:
    of_first = _compute_f1(rejections, misses, false_alarms, hits)
    return (_compute_f1(hits, false_alarms, misses, rejections) + of_first) / 2


def _compute_balanced_accuracy(hits: Tensor, false_alarms: Tensor, misses: Tensor, rejections: Tensor) -> Tensor:
    of_second = hits / (hits + misses).clamp_min(1)
    return (of_second + rejections / (rejections + false_alarms).clamp_min(1)) / 2


LABEL_METRICS: Mapping[str, Score] = {"f1": _compute_f1}
CLASS_METRICS: Mapping[str, Score] = {"f1": _compute_macro_f1, "balanced_accuracy": _compute_balanced_accuracy}


def measure_gains(rows: Tensor, metrics: Mapping[str, Score], decisive_metric: str) -> dict[str, list[list[float]]]:
    """By the name of the metric that decides, for each label: the best output to predict it from, the metric from 0, that with the best output of the
    other half of the samples, and the standard error of the difference.

    Args:
        rows: outputs, and 1 where the label is true, (2, N, labels).
        metrics: those that thresholds change.
        decisive_metric: the one to measure; if it is none of them, nothing is.
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
    first = torch.arange(len(outputs)) % 2 == 0
    starts = torch.where(
        first, _find_best(outputs[~first], truth[~first], score), _find_best(outputs[first], truth[first], score)
    )
    # Truth, prediction from 0, and prediction from the output of the other half are one of eight cells.
    cells = torch.bincount(truth * 4 + (outputs > 0) * 2 + (outputs > starts), minlength=8).double()
    drawn = np.random.default_rng(0).multinomial(len(outputs), cells.numpy() / len(outputs), size=RESAMPLES)
    counts = torch.cat([cells[None], torch.from_numpy(drawn).double()]).view(-1, 2, 2, 2)
    before, after = (
        score(by_truth[:, 1, 1], by_truth[:, 0, 1], by_truth[:, 1, 0], by_truth[:, 0, 0])
        for by_truth in (counts.sum(3), counts.sum(2))
    )
    error = (after - before)[1:].std()
    return [_find_best(outputs, truth, score), float(before[0]), float(after[0]), float(error)]


def _find_best(outputs: Tensor, truth: Tensor, score: Score) -> float:
    """The output from which predicting the label gives the best score, between two of these outputs; 0 without two."""
    ranked, order = outputs.sort(descending=True, stable=True)
    last_of_ties = (ranked[1:] != ranked[:-1]).nonzero()[:, 0]
    if not len(last_of_ties):
        return 0.0
    all_hits, predicted = truth[order].double().cumsum(0), last_of_ties + 1.0
    hits, positive = all_hits[last_of_ties], all_hits[-1]
    values = score(hits, predicted - hits, positive - hits, len(outputs) - positive - predicted + hits)
    end = int(last_of_ties[values.argmax()])
    return float(ranked[end] + ranked[end + 1]) / 2


def choose_for_head(confusion: Mapping[str, Any], head: Head, metric: str) -> tuple[float, ...]:
    """The thresholds of a head with its temperature, from the record of an evaluation; none where 0.5 is as good.

    Args:
        confusion: the record.
        head: the head.
        metric: that of the job, such as `validation/f1`, for which they are chosen; none are chosen for others.
    """
    rows = _read_gains(confusion, head.name, metric)
    log_odds = [
        start / head.temperature if after - before > MIN_STANDARD_ERRORS * error else 0.0
        for start, before, after, error in rows
    ]
    log_odds = [value if abs(value) < MAX_LOG_ODDS else 0.0 for value in log_odds]
    return tuple(1 / (1 + exp(-value)) for value in log_odds) if any(log_odds) else ()


def describe(confusion: Mapping[str, Any], head: Head, metric: str) -> str:
    """What thresholds a head has and what they change, or why it has none; empty for a metric that has none."""
    rows = _read_gains(confusion, head.name, metric)
    if not rows:
        return ""
    name = metric.rpartition("/")[2]
    if not head.thresholds:
        return f"predictions from a probability of 0.5: no other has a {name} that is better than chance explains"
    classes = head.classes if head.several else head.classes[1:]
    changes = [
        f'"{label}" from {threshold:.3g} ({name} {before:.4f} -> {after:.4f} +- {error:.4f})'
        for label, threshold, (_, before, after, error) in zip(classes, head.thresholds, rows, strict=True)
        if threshold != 0.5
    ]
    others = "; the others from 0.5" if len(changes) < len(rows) else ""
    return (
        f"predicted from other probabilities than 0.5: {', '.join(changes[:8])}{' ...' if changes[8:] else ''}{others}"
    )


def _read_gains(confusion: Mapping[str, Any], head: str, metric: str) -> list[list[float]]:
    start = f"validation/{head}/" if head else "validation/"
    rows: list[list[float]] = ((confusion.get(head) or {}).get("thresholds") or {}).get(metric.removeprefix(start), [])
    return rows
