"""Random augmentation of training windows, on whole batches.

Order: time warp, window warp, scaling, jitter, channel dropout, time mask. Time warping, scaling and jitter follow Um
et al. 2017 ("Data augmentation of wearable sensor data for Parkinson's disease monitoring using convolutional neural
networks"), window warping follows Le Guennec et al. 2016 ("Data augmentation for time series classification using
convolutional neural networks"), and the time mask follows SpecAugment (Park et al. 2019). Channels are standardized, so
0 is their mean. All random numbers depend on (seed, purpose, epoch, sample id) only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Inputs, Preprocessing, keep_unchanged, onto
from drivetrain.data.stateless_random import Ids
from drivetrain.tasks.series.job import SeriesAugment, TimeMask, TimeWarp, WindowWarp

Floats = npt.NDArray[np.float64]
MIN_WARP_SPEED = 0.1
"""Smallest speed of a time warp, so that time never runs backwards."""


@dataclass(frozen=True)
class SeriesPreprocessing:
    """Augmentation of windows, in training only; windows are scaled when they are read."""

    spec: SeriesAugment
    seed: int
    spread: tuple[float, ...]
    """Deviation of each channel in the training data, in units of the scaled values; 0 for a constant channel."""

    def __call__(self, inputs: Inputs, ids: Ids, epoch: int | None) -> Inputs:
        """Return windows (N, T, C) float32, augmented if an epoch is given; `inputs` are not modified."""
        if epoch is None:
            return inputs
        (windows,) = inputs
        spec, draw = self.spec, partial(stateless_random.draw_uniform, self.seed)
        count, length, channels = windows.shape
        if spec.time_warp and length > 2:
            numbers = draw("time_warp", epoch, ids, spec.time_warp.knots + 3)
            windows = resample(windows, draw_time_warp(numbers, length, spec.time_warp))
        if spec.window_warp and length > 2:
            windows = resample(windows, draw_window_warp(draw("window_warp", epoch, ids, 3), length, spec.window_warp))
        if spec.scaling:
            factors = (1 + spec.scaling * to_normal(draw("scaling", epoch, ids, channels))).clip(0)
            windows = windows * onto(windows.device, factors, windows.dtype)[:, None, :]
        if spec.jitter:
            noise = to_normal(draw("jitter", epoch, ids, length * channels)).reshape(count, length, channels)
            noise_scale = spec.jitter * np.array(self.spread)
            windows = windows + onto(windows.device, noise * noise_scale, windows.dtype)
        if spec.channel_dropout:
            drawn = draw("channel_dropout", epoch, ids, channels)
            # At least the channel with the largest number is kept.
            is_kept = (drawn >= spec.channel_dropout) | (drawn == drawn.max(axis=1, keepdims=True))
            windows = torch.where(onto(windows.device, is_kept)[:, None, :], windows, 0.0)
        if spec.time_mask:
            is_masked = draw_masked_rows(draw("time_mask", epoch, ids, 3), length, spec.time_mask)
            windows = torch.where(onto(windows.device, is_masked)[:, :, None], 0.0, windows)
        return (windows,)


def build_preprocessing(spec: SeriesAugment, seed: int, spread: tuple[float, ...]) -> Preprocessing:
    """Build the preprocessing of windows; it changes nothing if no single window is augmented (mixup blends two)."""
    augments_windows = any(value for name, value in spec if name != "mixup")
    return SeriesPreprocessing(spec, seed, spread) if augments_windows else keep_unchanged


def to_normal(uniform: Floats) -> Floats:
    """Convert uniform numbers in [0, 1) to standard normal numbers."""
    # Uniform numbers are shifted by half their step, away from 0, whose quantile is infinite.
    return np.asarray(torch.special.ndtri(torch.from_numpy(uniform + 2.0**-54)).numpy())


def draw_time_warp(drawn: Floats, length: int, spec: TimeWarp) -> Floats:
    """Draw the times in the original window for reading each row of the result.

    Args:
        drawn: uniform numbers (N, knots + 3): the first selects the window, the others give speeds.
        length: rows per window.
        spec: probability and strength.

    Returns:
        Times from 0 to length - 1, shape (N, length).
    """
    speeds = np.maximum(1 + spec.std * to_normal(drawn[:, 1:]), MIN_WARP_SPEED)
    # The speed of each step from row to row, interpolated between knots at the middle of the step.
    position = (np.arange(length - 1) + 0.5) / (length - 1) * (speeds.shape[1] - 1)
    lower = position.astype(np.int64)
    share = position - lower
    steps = speeds[:, lower] * (1 - share) + speeds[:, lower + 1] * share
    times = np.concatenate([np.zeros((len(drawn), 1)), steps.cumsum(axis=1)], axis=1)
    return _warp_drawn_windows(drawn[:, 0], spec.probability, times / times[:, -1:] * (length - 1))


def draw_window_warp(drawn: Floats, length: int, spec: WindowWarp) -> Floats:
    """Draw times as `draw_time_warp` does, but with one part of the window at another speed, the rest in proportion.

    `drawn` (N, 3) holds uniform numbers that select the window, its part and the speed.
    """
    selection, start_share, speed_choice = drawn.T
    source_rows = spec.share * (length - 1)
    start = (start_share * (length - 1 - source_rows))[:, None]
    speed = np.where(speed_choice < 0.5, *spec.speeds)[:, None]
    result_rows = source_rows / speed
    row_times = np.arange(length) / (length - 1) * (length - 1 - source_rows + result_rows)
    times = np.where(
        row_times < start,
        row_times,
        np.where(
            row_times < start + result_rows, start + (row_times - start) * speed, row_times - result_rows + source_rows
        ),
    )
    return _warp_drawn_windows(selection, spec.probability, times)


def resample(windows: Tensor, times: Floats) -> Tensor:
    """Resample windows (N, T, C) at the given times (N, T), linear between rows."""
    length = windows.shape[1]
    times = np.clip(times, 0, length - 1)
    lower = np.minimum(times.astype(np.int64), length - 2)
    rows = onto(windows.device, lower)[:, :, None].expand(-1, -1, windows.shape[2])
    share = onto(windows.device, times - lower, windows.dtype)[:, :, None]
    return torch.lerp(windows.gather(1, rows), windows.gather(1, rows + 1), share)


def draw_masked_rows(drawn: Floats, length: int, spec: TimeMask) -> npt.NDArray[np.bool_]:
    """Draw a mask (N, length) that hides consecutive rows: up to a share of the rows, but never all.

    `drawn` (N, 3) holds uniform numbers that select the window, the number of rows and their place.
    """
    selection, length_share, start_share = drawn.T
    max_count = min(max(1, round(spec.share * length)), length - 1)
    count = (
        np.where(selection < spec.probability, 1 + np.floor(length_share * max_count), 0)
        if max_count
        else np.zeros(len(drawn))
    )
    first = np.floor(start_share * (length - count + 1))
    rows = np.arange(length)
    return np.asarray((rows >= first[:, None]) & (rows < (first + count)[:, None]))


def _warp_drawn_windows(drawn: Floats, probability: float, times: Floats) -> Floats:
    """Return the warped times for windows whose number is below the probability; other windows stay unchanged."""
    return np.where((drawn < probability)[:, None], times, np.arange(times.shape[1], dtype=np.float64))
