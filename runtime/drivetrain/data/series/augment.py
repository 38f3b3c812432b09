"""Random augmentation of training windows, on whole batches.

Order: time warp, window warp, scaling, jitter, channel dropout, time mask. Time warping, scaling and jitter are those of
Um et al. 2017 ("Data augmentation of wearable sensor data for Parkinson's disease monitoring using convolutional neural
networks"), window warping that of Le Guennec et al. 2016 ("Data augmentation for time series classification using
convolutional neural networks"), the time mask that of SpecAugment (Park et al. 2019). Channels are standardized, so 0 is
their mean. All random numbers depend on (seed, purpose, epoch, sample id) only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Inputs, Preprocessing, keep_unchanged
from drivetrain.data.stateless_random import Ids
from drivetrain.data.to_device import onto
from drivetrain.job.series_augment import SeriesAugment, TimeMask, TimeWarp, WindowWarp

Floats = npt.NDArray[np.float64]
MIN_WARP_SPEED = 0.1
"""Smallest speed of a time warp, so that time never runs backwards."""


@dataclass(frozen=True)
class SeriesPreprocessing:
    """Augments in training only; windows were scaled when they were read."""

    spec: SeriesAugment
    seed: int
    spread: tuple[float, ...]
    """Deviation of each channel in the training data, in units of the scaled values; 0 for a constant channel."""

    def __call__(self, inputs: Inputs, ids: Ids, epoch: int | None) -> Inputs:
        """Windows (N, T, C) float32, augmented if an epoch is given; the given ones are not modified."""
        if epoch is None:
            return inputs
        (windows,) = inputs
        spec, draw = self.spec, partial(stateless_random.draw_uniform, self.seed)
        count, length, channels = windows.shape
        if spec.time_warp and length > 2:
            numbers = draw("time_warp", epoch, ids, spec.time_warp.knots + 3)
            windows = resample(windows, time_warp(numbers, length, spec.time_warp))
        if spec.window_warp and length > 2:
            windows = resample(windows, window_warp(draw("window_warp", epoch, ids, 3), length, spec.window_warp))
        if spec.scaling:
            factor = (1 + spec.scaling * normal(draw("scaling", epoch, ids, channels))).clip(0)
            windows = windows * onto(windows.device, factor, windows.dtype)[:, None, :]
        if spec.jitter:
            noise = normal(draw("jitter", epoch, ids, length * channels)).reshape(count, length, channels)
            size = spec.jitter * np.array(self.spread)
            windows = windows + onto(windows.device, noise * size, windows.dtype)
        if spec.channel_dropout:
            channel_mask = draw_kept_channels(draw("channel_dropout", epoch, ids, channels), spec.channel_dropout)
            windows = torch.where(onto(windows.device, channel_mask)[:, None, :], windows, 0.0)
        if spec.time_mask:
            hidden = draw_masked_rows(draw("time_mask", epoch, ids, 3), length, spec.time_mask)
            windows = torch.where(onto(windows.device, hidden)[:, :, None], 0.0, windows)
        return (windows,)


def preparation(spec: SeriesAugment, seed: int, spread: tuple[float, ...]) -> Preprocessing:
    """What prepares windows: nothing without an augmentation of single windows."""
    single = any(value for name, value in spec if name != "mixup")
    return SeriesPreprocessing(spec, seed, spread) if single else keep_unchanged


def normal(uniform: Floats) -> Floats:
    """Standard normal numbers from uniform ones in [0, 1)."""
    # Half of a step away from 0, whose quantile is infinite.
    return np.asarray(torch.special.ndtri(torch.from_numpy(uniform + 2.0**-54)).numpy())


def time_warp(drawn: Floats, length: int, spec: TimeWarp) -> Floats:
    """The time at which each row of the result is read, shape (N, length), from 0 to length - 1; `drawn` has shape
    (N, knots + 3).
    """
    speeds = np.maximum(1 + spec.std * normal(drawn[:, 1:]), MIN_WARP_SPEED)
    # Middles of the steps from row to row, in units of knots.
    position = (np.arange(length - 1) + 0.5) / (length - 1) * (speeds.shape[1] - 1)
    lower = position.astype(np.int64)
    share = position - lower
    steps = speeds[:, lower] * (1 - share) + speeds[:, lower + 1] * share
    times = np.concatenate([np.zeros((len(drawn), 1)), steps.cumsum(axis=1)], axis=1)
    return _some(drawn[:, 0], spec.probability, times / times[:, -1:] * (length - 1))


def window_warp(drawn: Floats, length: int, spec: WindowWarp) -> Floats:
    """The time at which each row of the result is read, shape (N, length); `drawn` (whether, place, speed) has shape
    (N, 3).
    """
    whether, start_share, which = drawn.T
    part = spec.share * (length - 1)
    start = (start_share * (length - 1 - part))[:, None]
    speed = np.where(which < 0.5, *spec.speeds)[:, None]
    warped = part / speed
    at = np.arange(length) / (length - 1) * (length - 1 - part + warped)
    times = np.where(at < start, at, np.where(at < start + warped, start + (at - start) * speed, at - warped + part))
    return _some(whether, spec.probability, times)


def resample(windows: Tensor, times: Floats) -> Tensor:
    """Windows (N, T, C) read at these times (N, T), linear between rows."""
    length = windows.shape[1]
    times = np.clip(times, 0, length - 1)
    lower = np.minimum(times.astype(np.int64), length - 2)
    rows = onto(windows.device, lower)[:, :, None].expand(-1, -1, windows.shape[2])
    share = onto(windows.device, times - lower, windows.dtype)[:, :, None]
    return torch.lerp(windows.gather(1, rows), windows.gather(1, rows + 1), share)


def draw_kept_channels(drawn: Floats, probability: float) -> npt.NDArray[np.bool_]:
    """The channels that stay, shape (N, C): one of each window at least, the one with the largest number."""
    return np.asarray((drawn >= probability) | (drawn == drawn.max(axis=1, keepdims=True)))


def draw_masked_rows(drawn: Floats, length: int, spec: TimeMask) -> npt.NDArray[np.bool_]:
    """The rows that are hidden, shape (N, length): up to a share of them, but never all; `drawn` (whether, length, place)
    has shape (N, 3).
    """
    whether, size, start_share = drawn.T
    most = min(max(1, round(spec.share * length)), length - 1)
    count = np.where(whether < spec.probability, 1 + np.floor(size * most), 0) if most else np.zeros(len(drawn))
    first = np.floor(start_share * (length - count + 1))
    rows = np.arange(length)
    return np.asarray((rows >= first[:, None]) & (rows < (first + count)[:, None]))


def _some(drawn: Floats, probability: float, times: Floats) -> Floats:
    """Times of some windows; the others are read as they are."""
    return np.where((drawn < probability)[:, None], times, np.arange(times.shape[1], dtype=np.float64))
