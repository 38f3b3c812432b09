"""Reads the sounds of a job, and new sounds for its network, in the order of `drivetrain.data.reading`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from drivetrain.data import stateless_random
from drivetrain.data.dataset import Dataset, Preprocessing, Targets, keep_unchanged
from drivetrain.data.reading import Heads, Preprocessor
from drivetrain.data.source import Source
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.tasks.audio import SOUNDS, spectrogram
from drivetrain.tasks.audio.job import AudioClassificationJob
from drivetrain.tasks.audio.sounds import RandomWindows, SoundFiles, SoundSplit, SoundTable, choose_rate_and_window
from drivetrain.tasks.audio.spectrogram import SoundPreprocessing
from drivetrain.tasks.image import image_table
from drivetrain.tasks.image.file_reader import FileReader
from drivetrain.tasks.image.image_targets import LabelForm
from drivetrain.tasks.image.preprocess import MAX_MEASURED_IMAGES


class SoundReader(FileReader[SoundTable]):
    """Steps for reading the sounds of a job."""

    table_class = SoundTable
    job: AudioClassificationJob

    def fit(self, table: SoundTable, training: Ids, heads: Heads) -> tuple[FittedSounds, list[str]]:
        """Choose rate and window, and measure each band in the training files; or take the recorded values."""
        data = self.job.data
        form = replace(self.form, separator=table.separator or self.form.separator, groups="")
        if self.tables_only:
            return FittedSounds(None, form, data.path_column, {}), []
        rate = 0 if data.sample_rate == "auto" else data.sample_rate
        seconds = 0.0 if data.seconds == "auto" else data.seconds
        if self.recorded:
            prepare, notes = spectrogram.from_preprocessing(dict(self.recorded.preprocessing)), list[str]()
            if self.earlier and seconds:
                prepare = replace(prepare, window=round(seconds * prepare.rate))
        else:
            rate, window, notes = choose_rate_and_window(table.images, training, rate, seconds)
            prepare = self._measure(table.images.fit_to(rate, window), training)
        prepare = replace(prepare, augment=data.augment, seed=self.job.train.seed)
        files = table.images.fit_to(prepare.rate, prepare.window)
        notes += files.describe(table.usable, draws_windows=data.augment.random_window)
        stored = {"path_column": data.path_column, **self.form.to_json(table.separator)}
        return FittedSounds(prepare, form, data.path_column, stored), notes

    def _measure(self, files: SoundFiles, training: Ids) -> SoundPreprocessing:
        """Measure the bands in some of the training windows."""
        generator = stateless_random.make_generator(self.job.train.seed, "statistics")
        rows = np.sort(generator.permutation(training)[:MAX_MEASURED_IMAGES])

        def read_groups() -> Iterator[Tensor]:
            for start in range(0, len(rows), spectrogram.MEASURED_AT_ONCE):
                yield files.gather(rows[start : start + spectrogram.MEASURED_AT_ONCE])

        prepare = SoundPreprocessing(files.rate, files.window, self.job.data.bands)
        mean, std = spectrogram.measure_bands(prepare, read_groups())
        return replace(prepare, mean=tuple(mean), std=tuple(std))

    def describe_samples(self, table: SoundTable, heads: Heads) -> str:
        """Name the number of classes."""
        return f", {heads[''].outputs_text}"

    def complete(self, dataset: Dataset, table: SoundTable, training: Ids) -> Dataset:
        """Read random windows of long training files; sounds are decoded each time that they are used."""
        train = dataset.train
        assert isinstance(train, SoundSplit)
        if self.job.data.augment.random_window and train.files.is_longer(train.rows):
            train = RandomWindows(replace(train.files, seed=self.job.train.seed), train.rows, train.targets)
        return replace(dataset, train=train, decoded=False)


@dataclass(frozen=True)
class FittedSounds(Preprocessor[SoundTable]):
    """Spectrograms as of the training sounds; reads other sounds."""

    sound: SoundPreprocessing | None
    """Rate, window and statistics; None if only tables are read."""
    form: LabelForm
    path_column: str
    columns: Mapping[str, object]
    """Names of columns, and the form of the labels."""

    @property
    def prepare(self) -> Preprocessing:
        """Spectrograms, augmentation and normalization on the device."""
        return self.sound or keep_unchanged

    def read(self, source: Source) -> SoundTable:
        """Read labelled sounds as the training sounds."""
        return image_table.read(SoundTable, source, self.path_column, self.form, decodes=self.sound is not None)

    def read_all(self, sources: Sequence[Source]) -> list[SoundTable]:
        """Read new sounds: folders, manifests and single files together; with labels, one folder or manifest."""
        first = sources[0]
        if first.labelled:
            image_table.check_has_labels(sources, SOUNDS)
            return [self.read(first)]
        return [
            image_table.open_listing(SoundTable, first, image_table.list_unlabelled(sources, self.path_column, SOUNDS))
        ]

    def build_split(
        self, tables: Sequence[SoundTable], rows: Sequence[Ids], targets: Targets
    ) -> tuple[SoundSplit, list[str]]:
        """Read the sounds of the only table as windows of the length of training; raises DataError if there are none."""
        ((table,), (taken,)), key = (tables, rows), tables[0].source.key
        assert self.sound is not None
        if not len(taken):
            raise DataError(
                "\n    ".join(table.notes) or f"no sounds in {table.source.path}",
                f"at least one sound of the kinds {' '.join(SOUNDS.extensions)}",
                "name other files",
                key="" if table.notes else key,
            )
        files = table.images.fit_to(self.sound.rate, self.sound.window)
        notes = [] if key == "data.train" else files.describe(taken)
        return SoundSplit(files, taken, targets), [f"validation: {note}" if "valid" in key else note for note in notes]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that are stored with the model."""
        assert self.sound is not None
        return self.sound.to_json() | dict(self.columns)


def restore(preprocessing: dict[str, Any]) -> FittedSounds:
    """Restore the preprocessing of a trained model."""
    prepare, form = spectrogram.from_preprocessing(preprocessing), LabelForm.of_model(preprocessing)
    return FittedSounds(prepare, form, preprocessing["path_column"], {})
