"""Converts network outputs to classes with probabilities, or to numbers in the units of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drivetrain.data.dataset import Head, Split, predict_classes
from drivetrain.data.stateless_random import Ids

Answer = dict[str, Any]
"""`prediction`, for classes `probability`, and on request `compute_probabilities` by class. A class name, a number, or for
several numbers a mapping by column; for multi-label heads, lists of equal length.
"""


TitledAnswer = tuple[str, dict[str, Answer]]
"""The title of a sample, and its prediction by head."""
Batches = Iterable[tuple[Ids, Mapping[str, Tensor]]]
"""Ids, and outputs by head."""


def compute_answers(
    batches: Batches, heads: Mapping[str, Head], split: Split, *, with_probabilities: bool = False
) -> Iterator[TitledAnswer]:
    """Yield the title and the prediction of every sample, on request with the probability of every class."""
    for ids, outputs in batches:
        columns = [_list_answers(head, outputs[name], with_probabilities) for name, head in heads.items()]
        for index, row in zip(ids.tolist(), zip(*columns, strict=True), strict=True):
            yield split.title(index), dict(zip(heads, row, strict=True))


def compute_probabilities(head: Head, outputs: Tensor) -> Tensor:
    """Compute the probabilities of outputs (N, classes): softmax, or sigmoid for multi-label heads, at the head's temperature."""
    scaled = outputs / head.temperature
    return scaled.sigmoid() if head.several else scaled.softmax(dim=1)


def unscale(head: Head, outputs: Tensor) -> Tensor:
    """Convert scaled outputs (N, columns) to the units of the data, float64; outputs of unknown meaning are unchanged."""
    if not head.columns:
        return outputs.double()
    std, mean = (torch.tensor(values, dtype=torch.float64) for values in (head.std, head.mean))
    return outputs.double() * std + mean


def _list_answers(head: Head, outputs: Tensor, every: bool) -> Iterator[Answer]:
    if not head.classes:
        return _list_numbers(head, unscale(head, outputs))
    share, predicted = compute_probabilities(head, outputs), predict_classes(head, outputs)
    return (_list_labels if head.several else _list_classes)(head, share, predicted, every)


def _list_classes(head: Head, share: Tensor, winners: Tensor, every: bool) -> Iterator[Answer]:
    best = share.gather(1, winners[:, None])[:, 0]
    for row, (value, index) in enumerate(zip(best.tolist(), winners.tolist(), strict=True)):
        answer: Answer = {"prediction": head.classes[index], "probability": _shorten(value)}
        yield answer | (_list_probabilities(head, share[row]) if every else {})


def _list_labels(head: Head, share: Tensor, predicted: Tensor, every: bool) -> Iterator[Answer]:
    for row, is_predicted in zip(share, predicted, strict=True):
        likely = is_predicted.nonzero().flatten().tolist()
        answer: Answer = {
            "prediction": [head.classes[i] for i in likely],
            "probability": [_shorten(float(row[i])) for i in likely],
        }
        yield answer | (_list_probabilities(head, row) if every else {})


def _list_probabilities(head: Head, share: Tensor) -> Answer:
    return {"probabilities": dict(zip(head.classes, map(_shorten, share.tolist()), strict=True))}


def _list_numbers(head: Head, values: Tensor) -> Iterator[Answer]:
    for row in values.flatten(1).tolist():
        several = dict(zip(head.columns, row, strict=True)) if head.columns else row
        yield {"prediction": row[0] if len(row) == 1 else several}


def _shorten(probability: float) -> float:
    """Return the number with the fewest digits that float32 reads as this one."""
    return float(str(np.float32(probability)))
