"""Computes log-mel spectrograms of windows of sound on their device, and augments them.

Mel bands follow the scale 2595 log10(1 + f / 700) (O'Shaughnessy 1987), from 0 Hz to half the sampling rate; a frame of
25 ms begins every 10 ms. SpecAugment (Park et al. 2019) hides bands and frames; its time warp, which helped least, is left
out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Inputs, onto
from drivetrain.data.stateless_random import Ids
from drivetrain.tasks.audio.job import AudioAugment

FRAME_SECONDS, STEP_SECONDS = 0.025, 0.01
"""Length of a frame, and the time from one frame to the next."""
FLOOR = 1e-6
"""Power added before the logarithm, so that digital silence is no outlier."""
MEASURED_AT_ONCE = 64
"""Windows whose spectrograms are computed together for the statistics."""


@dataclass(frozen=True)
class SoundPreprocessing:
    """Preprocessing that computes normalized log-mel spectrograms; stored without the augmentation."""

    rate: int
    """Sampling rate in Hz."""
    window: int
    """Samples of a window."""
    bands: int
    """Number of mel bands."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Statistics of each band in the training windows; empty before they are measured."""
    augment: AudioAugment | None = None
    seed: int = 0

    @property
    def frames(self) -> int:
        """Number of frames of a spectrogram."""
        return 1 + self.window // self._step

    @property
    def _step(self) -> int:
        return round(STEP_SECONDS * self.rate)

    def __call__(self, inputs: Inputs, ids: Ids, epoch: int | None) -> Inputs:
        """Convert windows (N, samples) to spectrograms (N, 1, bands, frames) float32, on the device of the windows."""
        (windows,) = inputs
        spectrograms = self.compute(windows)
        mean, std = (onto(windows.device, values).view(-1, 1) for values in (self.mean, self.std))
        spectrograms = (spectrograms - mean).div_(std)
        if self.augment is not None and epoch is not None:
            spectrograms = hide_bands_and_frames(spectrograms, self.augment, self.seed, epoch, ids)
        return (spectrograms[:, None],)

    def compute(self, windows: Tensor) -> Tensor:
        """Compute log-mel spectrograms (N, bands, frames)."""
        length = round(FRAME_SECONDS * self.rate)
        points = 1 << (length - 1).bit_length()
        shape = torch.hann_window(length, device=windows.device)
        spectrum = torch.stft(
            windows.float(), points, self._step, length, shape, pad_mode="constant", return_complex=True
        )
        power = spectrum.real.square() + spectrum.imag.square()
        filters = onto(windows.device, make_filters(self.bands, points, self.rate))
        # One product for each window, so that its last bit does not depend on the size of the batch.
        return torch.bmm(filters.expand(len(power), -1, -1), power).add_(FLOOR).log_()

    def to_json(self) -> dict[str, Any]:
        """Return the object as plain JSON values for `from_preprocessing`."""
        sizes = {"rate": self.rate, "window": self.window, "bands": self.bands}
        return {"kind": "sounds", **sizes, "mean": list(self.mean), "std": list(self.std)}


def from_preprocessing(stored: dict[str, Any]) -> SoundPreprocessing:
    """Rebuild the object from `SoundPreprocessing.to_json`, without augmentation."""
    mean, std = tuple(stored["mean"]), tuple(stored["std"])
    return SoundPreprocessing(stored["rate"], stored["window"], stored["bands"], mean, std)


def make_filters(bands: int, points: int, rate: int) -> npt.NDArray[np.float32]:
    """Make triangular filters whose centers are evenly spaced in mel; shape (bands, points // 2 + 1).

    A triangle that is narrower than the distance of two frequencies takes the nearest one, so no band is empty.
    """
    frequencies = np.linspace(0, rate / 2, points // 2 + 1)
    highest_mel = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, highest_mel, bands + 2) / 2595) - 1)
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    filters = np.minimum(rising, falling).clip(0)
    nearest = np.abs(frequencies - edges[1:-1, None]).argmin(axis=1)
    is_empty = filters.sum(axis=1) == 0
    filters[is_empty, nearest[is_empty]] = 1
    return filters.astype(np.float32)


def measure_bands(preprocessing: SoundPreprocessing, windows: Iterator[Tensor]) -> tuple[list[float], list[float]]:
    """Measure the mean and standard deviation of each band over groups of windows; 1 for a band without changes."""
    count, total = 0, torch.zeros(preprocessing.bands, dtype=torch.float64)
    squares = torch.zeros_like(total)
    for group in windows:
        values = preprocessing.compute(group).double()
        count += values.shape[0] * values.shape[2]
        total += values.sum(dim=(0, 2))
        squares += values.square().sum(dim=(0, 2))
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    return mean.tolist(), torch.where(std > 1e-4, std, 1.0).tolist()


def hide_bands_and_frames(spectrograms: Tensor, spec: AudioAugment, seed: int, epoch: int, ids: Ids) -> Tensor:
    """Set some bands and frames of each normalized spectrogram (N, bands, frames) to the mean, 0."""
    for axis, masks in ((1, spec.band_masks), (2, spec.time_masks)):
        if masks is None:
            continue
        length = spectrograms.shape[axis]
        drawn = stateless_random.draw_uniform(seed, f"mask {axis}", epoch, ids, 2 * masks.count)
        widths = np.floor(drawn[:, ::2] * (masks.share * length + 1))
        starts = np.floor(drawn[:, 1::2] * (length - widths + 1))
        # Compared on the device: two numbers for each mask are copied, not a mask of its size.
        begin, end = onto(spectrograms.device, np.stack([starts, starts + widths]).astype(np.int64))
        positions = torch.arange(length, device=spectrograms.device)
        hidden = ((positions >= begin[:, :, None]) & (positions < end[:, :, None])).any(dim=1)
        spectrograms = spectrograms.masked_fill(hidden[:, :, None] if axis == 1 else hidden[:, None, :], 0)
    return spectrograms
