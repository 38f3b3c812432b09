"""Sound files of one path: each decoded once as a check, then read by windows of the length that the network hears."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from drivetrain.data import stateless_random
from drivetrain.data.copies import Contents
from drivetrain.data.dataset import Inputs, Targets
from drivetrain.data.notes import list_counts, list_names
from drivetrain.data.source import BadSample
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.job.formatting import readable
from drivetrain.tasks.audio import SOUNDS, sound_file
from drivetrain.tasks.audio.sound_file import Sound, UnreadableSound
from drivetrain.tasks.audio.spectrogram import SoundPreprocessing
from drivetrain.tasks.image.decode import map_on_threads
from drivetrain.tasks.image.image_files import Listing
from drivetrain.tasks.image.image_table import FileTable

MOST_SECONDS = 10.0
"""Longest window that is chosen for a job."""
_COMPARED = SoundPreprocessing(rate=8000, window=8000, bands=16)
"""Second of two files that is compared."""
_UNREADABLE = Sound(rate=1, frames=0, channels=0, is_silent=False, content=0)
"""Stands for a file that cannot be used."""


@dataclass(frozen=True)
class SoundFiles:
    """Sound files under one folder, read as windows of one channel."""

    root: str
    names: Sequence[str]
    """Paths, relative to `root` or absolute."""
    sounds: Sequence[Sound]
    rate: int = 0
    """Sampling rate of the windows; 0 until `fit_to` sets it."""
    window: int = 0
    """Samples of a window."""
    seed: int = 0
    epoch: int | None = None
    """Epoch whose random windows are read; None for the middle of each file."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def contents(self) -> Contents:
        """Digest of each file."""
        return np.array([sound.content for sound in self.sounds], np.int64)

    def title(self, row: int) -> str:
        """Return the path of a file, without bytes that are not UTF-8."""
        return readable(os.path.join(self.root, self.names[row]))

    def list_file_names(self) -> Sequence[str]:
        """List the paths of the files as named in their table or folder."""
        return self.names

    def fit_to(self, rate: int, window: int) -> SoundFiles:
        """Return the same files, read as windows of so many samples at this rate."""
        return replace(self, rate=rate, window=window)

    def gather(self, rows: Ids) -> Tensor:
        """Return a window of each of these files, shape (len(rows), window), float32.

        Raises:
            DataError: if a file has changed or disappeared since it was checked.
        """
        shares = np.full(len(rows), 0.5)
        if self.epoch is not None:
            shares = stateless_random.draw_uniform(self.seed, "window", self.epoch, rows)[:, 0]

        def read_one(item: tuple[int, float]) -> npt.NDArray[np.float32]:
            row, share = item
            start = share * max(0.0, self.sounds[row].seconds - self.window / self.rate)
            try:
                return sound_file.read_window(os.path.join(self.root, self.names[row]), start, self.window, self.rate)
            except UnreadableSound as reason:
                raise DataError(
                    f"{self.title(row)}: {reason}",
                    "it could be decoded when the run began",
                    "restore the file; a new run would skip it",
                ) from None

        return torch.from_numpy(np.stack(map_on_threads(read_one, list(zip(rows.tolist(), shares, strict=True)))))

    def compare(self, first: Ids, second: Ids) -> npt.NDArray[np.float64]:
        """Measure how different the spectra of the middle second of the files of each pair of rows are."""
        small = replace(self.fit_to(_COMPARED.rate, _COMPARED.window), epoch=None)
        one, other = (_COMPARED.compute(small.gather(rows)).mean(dim=2) for rows in (first, second))
        return (one - other).abs().mean(dim=1).double().numpy()

    def is_longer(self, rows: Ids) -> bool:
        """Return whether any of these files is longer than a window."""
        return any(self._measure(row) > self.window for row in rows.tolist())

    def describe(self, rows: Ids, *, draws_windows: bool = False) -> list[str]:
        """Return notes on these files; with `draws_windows` the training hears random windows of long ones."""
        sounds = [self.sounds[row] for row in rows.tolist()]
        seconds = self.window / self.rate
        rates = Counter(f"{sound.rate:,} Hz" for sound in sounds if sound.rate != self.rate)
        lower = sum(sound.rate < self.rate for sound in sounds)
        mixed = sum(sound.channels > 1 for sound in sounds)
        short = sum(self._measure(row) < self.window for row in rows.tolist())
        long = sum(self._measure(row) > self.window for row in rows.tolist())
        silent = [self.title(row) for row in rows.tolist() if self.sounds[row].is_silent]
        notes = []
        if rates:
            above = f"; {lower:,} have a lower rate, and nothing above half of it" if lower else ""
            notes.append(
                f"{rates.total():,} of {len(rows):,} sounds are converted to {self.rate:,} Hz: {list_counts(rates)}{above}"
            )
        if mixed:
            notes.append(f"{mixed:,} of {len(rows):,} sounds have several channels, which are averaged")
        if short:
            notes.append(f"{short:,} of {len(rows):,} sounds are shorter than {seconds:g} s: silence follows them")
        if long:
            where = "random windows in training, else the middle" if draws_windows else "their middle is heard"
            notes.append(f"{long:,} of {len(rows):,} sounds are longer than {seconds:g} s: {where} (data.seconds)")
        if silent:
            notes.append(f"{len(silent):,} of {len(rows):,} sounds are silent: {list_names(silent, 3)}")
        return notes

    def _measure(self, row: int) -> int:
        """Measure a file in samples at the rate of the windows."""
        return round(self.sounds[row].seconds * self.rate)


def check_sounds(root: str, names: Sequence[str]) -> tuple[SoundFiles, dict[int, BadSample]]:
    """Check each file by decoding it; returns all, and the unusable ones by row."""

    def check_one(name: str) -> Sound | str:
        if not name.lower().endswith(SOUNDS.extensions):
            return f"files of this kind are not read, only {' '.join(SOUNDS.extensions)}; ffmpeg -i FILE FILE.flac converts it"
        try:
            return sound_file.check(os.path.join(root, name))
        except UnreadableSound as reason:
            return str(reason)

    sounds, bad = [], {}
    for row, checked in enumerate(map_on_threads(check_one, names)):
        sounds.append(_UNREADABLE if isinstance(checked, str) else checked)
        if isinstance(checked, str):
            bad[row] = BadSample(readable(os.path.join(root, names[row])), checked)
    return SoundFiles(root, names, sounds), bad


def choose_rate_and_window(files: SoundFiles, rows: Ids, rate: int, seconds: float) -> tuple[int, int, list[str]]:
    """Choose the sampling rate and the samples of a window; 0 for both means to choose. Also returns the reasons."""
    sounds = [files.sounds[row] for row in rows.tolist()]
    notes = []
    if not rate:
        rate = Counter(sound.rate for sound in sounds).most_common(1)[0][0]
        notes.append(f"sample_rate {rate}: the most frequent of the training files")
    if not seconds:
        middle = float(np.median([sound.seconds for sound in sounds]))
        seconds = min(MOST_SECONDS, max(0.1, round(middle, 2)))
        notes.append(f"seconds {seconds:g}: the median length of the training files is {middle:.3g} s")
    return rate, round(seconds * rate), notes


@dataclass(kw_only=True)
class SoundTable(FileTable):
    """All sound files of one path, with their targets."""

    kind, noun, single_noun = SOUNDS, SOUNDS.nouns, SOUNDS.noun
    images: SoundFiles

    @classmethod
    def open(cls, listing: Listing) -> SoundFiles:
        """Decode each file once as a check, and add the unusable ones to `listing.broken`."""
        files, listing.broken = check_sounds(listing.root, listing.names)
        return files


class SoundSplit:
    """Some rows of sound files, with their targets; sounds to predict have none."""

    def __init__(self, files: SoundFiles, rows: Ids, targets: Targets) -> None:
        self.files, self.rows, self.targets = files, rows, targets

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, ids: Ids) -> Inputs:
        """Return a window of these samples: one tensor (N, samples), float32."""
        return (self.files.gather(self.rows[ids]),)

    def contents(self) -> Contents:
        """Return a digest of each file."""
        return self.files.contents[self.rows]

    def title(self, index: int) -> str:
        """Return the path of a file."""
        return self.files.title(int(self.rows[index]))


class RandomWindows(SoundSplit):
    """Training files of which each epoch hears other windows."""

    def at_epoch(self, epoch: int) -> SoundSplit:
        """Return the windows of an epoch."""
        return SoundSplit(replace(self.files, epoch=epoch), self.rows, self.targets)
