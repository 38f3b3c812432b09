"""The audio task: a class, or several labels, of a sound file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from drivetrain.errors import Problem
from drivetrain.job.data import FileLabels, Mixup
from drivetrain.job.model import ConvolutionalNetwork, CustomModel, EarlierRun, choose_model_kind
from drivetrain.job.values import Count, Share, Spec, accept_name
from drivetrain.tasks.image.job import FileClassificationJob, find_idle_stem


class Masks(Spec):
    """Masks of SpecAugment (Park et al. 2019)."""

    count: Count = Field(2, description="masks of each spectrogram")
    share: Share = Field(0.15, description="largest share of the bands or frames that one mask hides")


class AudioAugment(Spec):
    """Random changes to training sounds; random numbers depend only on (seed, epoch, sample)."""

    random_window: bool = Field(
        True,
        description="of a file that is longer than data.seconds, a random window in every epoch; false: its middle",
    )
    band_masks: Masks | None = Field(None, description="SpecAugment: hides neighboring mel bands")
    time_masks: Masks | None = Field(None, description="SpecAugment: hides neighboring frames")
    mixup: Mixup | None = Field(
        None, description="mixup of spectrograms, for the whole batch, with random numbers from (seed, step)"
    )


class AudioData(FileLabels):
    """Sound files and labels: a folder with one folder per class, or a CSV, JSONL or Parquet manifest with paths."""

    seconds: Annotated[float, Field(gt=0.05, le=600)] | Literal["auto"] = Field(
        "auto",
        description="length of the window that the network hears: silence follows shorter files, and of longer ones the middle "
        "counts; auto: the median length of the training files, at most 10 s",
    )
    sample_rate: Annotated[int, Field(ge=1000, le=384_000)] | Literal["auto"] = Field(
        "auto",
        description="sampling rate in Hz to which all files are converted; auto: the most frequent of the training files",
    )
    bands: Annotated[int, Field(ge=8, le=512)] = Field(64, description="mel bands of the spectrogram, from 0 Hz up")
    augment: AudioAugment = Field(AudioAugment(), description="random changes to training sounds")


AudioModel = Annotated[
    Annotated[ConvolutionalNetwork, Tag("built-in")]
    | Annotated[EarlierRun, Tag("run")]
    | Annotated[CustomModel, Tag("own")],
    Discriminator(choose_model_kind),
    accept_name(),
]


class AudioClassificationJob(FileClassificationJob):
    """Classification of sound files: one of several classes, or several independent labels (multi-label)."""

    task: Literal["audio-classification"]
    data: AudioData = Field(description="the training and validation data")
    model: AudioModel = Field(ConvolutionalNetwork(name="small-cnn"), description="the network")

    def problems(self) -> Iterator[Problem]:
        """Yield also a stem of a network without one."""
        yield from super().problems()
        yield from find_idle_stem(self, self.model)
