"""Networks for sounds: the convolutional networks for images, on spectrograms with one channel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from drivetrain.data.dataset import Dataset, Inputs
from drivetrain.job.model import ConvolutionalNetwork
from drivetrain.models.build import BuiltModel
from drivetrain.models.builders import BUILDERS
from drivetrain.tasks.audio import spectrogram
from drivetrain.tasks.audio.job import AudioClassificationJob


def build(job: AudioClassificationJob, dataset: Dataset) -> BuiltModel:
    """Build a network for spectrograms of one channel."""
    spec = job.model
    assert isinstance(spec, ConvolutionalNetwork)
    arguments = {
        "name": spec.name,
        "channels": 1,
        "classes": dataset.heads[""].outputs,
        "image_size": _measure_size(dataset.preprocessing),
        "dropout": spec.dropout,
        "width": spec.width,
        "stem": spec.stem,
    }
    return BuiltModel(BUILDERS["images"](**arguments), "images", arguments, spec.freeze)


def _measure_size(preprocessing: dict[str, Any]) -> int:
    """Measure the side of a square image with as many pixels as a spectrogram, which decides the stem."""
    sound = spectrogram.from_preprocessing(preprocessing)
    return math.isqrt(sound.bands * sound.frames)


def draw_inputs(generator: np.random.Generator, preprocessing: dict[str, Any], samples: int) -> Inputs:
    """Draw spectrograms of normal numbers."""
    sound = spectrogram.from_preprocessing(preprocessing)
    drawn = generator.standard_normal((samples, 1, sound.bands, sound.frames), dtype=np.float32)
    return (torch.from_numpy(drawn),)
