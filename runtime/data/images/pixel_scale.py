"""The scale of pixels where a job starts from an earlier run, whose images may have been stored in another way."""

from __future__ import annotations

from dataclasses import replace

import torch

from runtime.data.images.preprocess import ImagePreprocessing
from runtime.errors import SpecError
from runtime.job.images import ImageJob

_USUAL = ((0, 1), (0, 255))
"""Ranges of the same colors."""
_APART = 10
"""From this ratio of two ranges on, they are different scales."""


def known(job: ImageJob, earlier: ImagePreprocessing, own: ImagePreprocessing, kind: torch.dtype) -> ImagePreprocessing:
    """The preprocessing of an earlier run, for the pixels of this job.

    Args:
        job: the job.
        earlier: of the earlier run.
        own: as computed from the training images of this job.
        kind: of their pixels.

    Raises:
        SpecError: if the pixels are on another scale: the network would see nearly black or far too bright images.
    """
    if (earlier.low, earlier.high) in _USUAL and (own.low, own.high) in _USUAL:
        return replace(earlier, low=own.low, high=own.high)
    ratio = (own.high - own.low) / (earlier.high - earlier.low)
    if kind != torch.uint8 and not 1 / _APART < ratio < _APART:
        given = f"was trained on pixels from {earlier.low:g} to {earlier.high:g}; data.train has {own.low:g} to {own.high:g}"
        problem = job.problem(job.model_key("name"), given, "pixels on the same scale", "scale them in the file")
        raise SpecError([problem])
    return earlier
