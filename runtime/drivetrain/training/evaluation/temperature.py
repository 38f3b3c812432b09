"""Fits the temperature of a head: its outputs are divided by it, so that a probability of 0.8 is right in 80 % of cases.

Networks are usually overconfident. One number, fitted to the validation samples, corrects most of it and changes no
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
"""Standard deviation of the prior on log(temperature): a few samples without a mistake must not lead to 0."""
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
        """Whether it is the smallest or the largest of TEMPERATURES; a better one may lie beyond."""
        return not 1.001 * TEMPERATURES[0] < self.value < TEMPERATURES[-1] / 1.001


def sum_log_losses(outputs: Tensor, truth: Tensor) -> Tensor:
    """The sum of the log loss of outputs (N, classes) at each temperature, float64 on the CPU; `truth` is (N,)."""
    divisors = torch.tensor(TEMPERATURES, device=outputs.device)[:, None, None]
    sums = torch.zeros(len(TEMPERATURES), dtype=torch.float64)
    chunk_rows = max(1, MAX_VALUES_AT_ONCE // (len(TEMPERATURES) * max(1, outputs.shape[1])))
    for start in range(0, len(outputs), chunk_rows):
        log_probabilities = (outputs[start : start + chunk_rows] / divisors).log_softmax(dim=2)
        class_indices = truth[start : start + chunk_rows].expand(len(TEMPERATURES), -1).unsqueeze(2)
        sums -= log_probabilities.gather(2, class_indices).squeeze(2).sum(1).cpu().double()
    return sums


def choose_temperature(log_losses: Sequence[float], samples: int) -> Temperature | None:
    """The most probable temperature, given the mean log loss at each of TEMPERATURES; None without finite losses.

    It is the minimum of a parabola through the best of them and its neighbors, over log(temperature).
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


def choose_for_head(confusion: Mapping[str, Any], head: str) -> Temperature | None:
    """The temperature of a head from the record of an evaluation; None for a head without probabilities."""
    record = (confusion.get(head) or {}).get("calibration") or {}
    return choose_temperature(record.get("log_loss", ()), record.get("samples", 0))


def _find_vertex(values: Sequence[float]) -> float:
    """The position of the minimum of a parabola through values at -1, 0 and 1, of which the middle one is smallest."""
    left, middle, right = values
    curvature = left - 2 * middle + right
    return 0.0 if curvature <= 0 else (left - right) / (2 * curvature)


def _interpolate(values: Sequence[float], positions: Sequence[float], position: float) -> float:
    """The value at a place, on the parabola through the three nearest ones."""
    middle = min(range(1, len(positions) - 1), key=lambda index: abs(positions[index] - position))
    left, center, right = values[middle - 1 : middle + 2]
    offset = (position - positions[middle]) / (positions[1] - positions[0])
    return center + offset * (right - left) / 2 + offset**2 * (left - 2 * center + right) / 2
