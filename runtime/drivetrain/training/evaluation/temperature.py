"""The temperature of a head: the number that its outputs are divided by, so that its probabilities can be taken literally.

Networks are usually too sure of themselves. One number, fitted to the validation samples, mends most of it and changes no
predicted class (Guo et al. 2017).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log
from typing import Any

import torch
from torch import Tensor

TEMPERATURES = tuple(2 ** (step / 4) for step in range(-8, 13))
"""From 0.25 to 8, a factor of 1.19 apart; between them the loss is nearly a parabola."""
PRIOR_DEVIATION = 0.5
"""Of the logarithm of the temperature: few samples without a mistake must not make a model infinitely sure."""
MAX_VALUES_AT_ONCE = 1 << 22
"""Outputs times temperatures that are computed at once."""


@dataclass(frozen=True)
class Temperature:
    """What was chosen, and the validation log loss without and with it."""

    value: float
    log_loss: float
    scaled_log_loss: float

    @property
    def is_at_end(self) -> bool:
        """Whether it is the smallest or the largest that is tried, so that a better one may lie beyond."""
        return not 1.001 * TEMPERATURES[0] < self.value < TEMPERATURES[-1] / 1.001


def sum_log_losses(outputs: Tensor, truth: Tensor) -> Tensor:
    """The sum of the log loss of outputs (N, classes) at each temperature, float64 on the CPU; `truth` is (N,)."""
    divisors = torch.tensor(TEMPERATURES, device=outputs.device)[:, None, None]
    sums = torch.zeros(len(TEMPERATURES), dtype=torch.float64)
    rows = max(1, MAX_VALUES_AT_ONCE // (len(TEMPERATURES) * max(1, outputs.shape[1])))
    for start in range(0, len(outputs), rows):
        logarithms = (outputs[start : start + rows] / divisors).log_softmax(dim=2)
        places = truth[start : start + rows].expand(len(TEMPERATURES), -1).unsqueeze(2)
        sums -= logarithms.gather(2, places).squeeze(2).sum(1).cpu().double()
    return sums


def choose_temperature(log_losses: Sequence[float], samples: int) -> Temperature | None:
    """The most probable temperature, by the mean log loss at each of `TEMPERATURES`; None without samples or numbers.

    The smallest value of a parabola through the best temperature and its neighbors, over the logarithm.
    """
    if not samples or len(log_losses) != len(TEMPERATURES) or not all(map(isfinite, log_losses)):
        return None
    logarithms = [log(value) for value in TEMPERATURES]
    penalized = [
        loss + place**2 / (2 * PRIOR_DEVIATION**2 * samples) for loss, place in zip(log_losses, logarithms, strict=True)
    ]
    best = min(range(len(penalized)), key=penalized.__getitem__)
    place = logarithms[best]
    if 0 < best < len(penalized) - 1:
        place += _find_vertex(penalized[best - 1 : best + 2]) * (logarithms[1] - logarithms[0])
    return Temperature(exp(place), log_losses[TEMPERATURES.index(1.0)], _interpolate(log_losses, logarithms, place))


def choose_for_head(confusion: Mapping[str, Any], head: str) -> Temperature | None:
    """The temperature of a head by an evaluation's record; None for records and heads without probabilities."""
    record = (confusion.get(head) or {}).get("calibration") or {}
    return choose_temperature(record.get("log_loss", ()), record.get("samples", 0))


def _find_vertex(values: Sequence[float]) -> float:
    """Where the parabola through three values at -1, 0 and 1 is smallest, if the middle one is the least."""
    left, middle, right = values
    curvature = left - 2 * middle + right
    return 0.0 if curvature <= 0 else (left - right) / (2 * curvature)


def _interpolate(values: Sequence[float], places: Sequence[float], place: float) -> float:
    """The value at a place, on the parabola through the three nearest ones."""
    middle = min(range(1, len(places) - 1), key=lambda index: abs(places[index] - place))
    left, center, right = values[middle - 1 : middle + 2]
    offset = (place - places[middle]) / (places[1] - places[0])
    return center + offset * (right - left) / 2 + offset**2 * (left - 2 * center + right) / 2
