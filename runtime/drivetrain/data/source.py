"""A file of samples and its use (training, validation, or new data for a trained model), and its bad samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from drivetrain.data.formats import csv_dialect
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.data.stateless_random import Ids
from drivetrain.errors import DataError
from drivetrain.job import Job

MAX_LISTED_SAMPLES = 20
"""Largest number of bad samples that are listed by name."""


@dataclass(frozen=True)
class BadSample:
    """Sample that cannot be used, and the reason."""

    title: str
    """Path or row of the sample."""
    reason: str

    def __str__(self) -> str:
        return f"{self.title}: {self.reason}"


MAX_SKIPPED_SHARE = 0.5
"""Largest share of bad samples for which an error suggests skipping them."""


@dataclass(frozen=True)
class Source:
    """File with samples of a job or for a model."""

    path: Path
    key: str
    """Spec key that names the file, for messages."""
    files: CsvFiles = field(default_factory=CsvFiles)
    """Format of CSV files; the format detected in this file is added to it."""
    budget: float = 1.0
    """Largest share of samples that may be unusable."""
    labelled: bool = True
    """Whether targets are read."""

    @classmethod
    def of_job(cls, job: Job, part: str, files: CsvFiles) -> Source:
        """Return the file that the job names for a part."""
        return cls(job.resolve(str(getattr(job.data, part))), f"data.{part}", files, job.data.bad_samples)

    def name_row(self, row: int) -> str:
        """Return the title of a row, counted from 0, with its line in a CSV file."""
        return csv_dialect.name_row(self.path, row + 1)

    def name_option(self, name: str) -> str:
        """Return the spec key that names a column, if the file is the training data; else the file's key."""
        return f"data.{name}" if self.key == "data.train" else self.key

    def describe_bad_row(self, row: int, reason: str) -> BadSample:
        """Describe a row, counted from 0, that cannot be used unchanged."""
        return BadSample(f"{self.path.name} {self.name_row(row)}", reason)

    def find_usable(
        self, reasons: Mapping[int, str], total: int, noun: str, describe: Callable[[int, str], BadSample]
    ) -> tuple[Ids, list[str]]:
        """Find the samples that can be used, by the reasons why others cannot; also returns notes on these.

        Raises:
            DataError: if the share of bad samples exceeds the budget, or no sample, named by `noun`, is left.
        """
        unusable = [describe(sample, reasons[sample]) for sample in sorted(reasons)]
        notes = self.check_bad(unusable, total)
        if len(unusable) == total:
            raise DataError(
                f"no {noun} of {self.path} is usable; {unusable[0]}",
                f"one {noun} or more",
                "fix the file",
                key=self.key,
            )
        return np.setdiff1d(np.arange(total, dtype=np.int64), np.array(list(reasons), np.int64)), notes

    def check_bad(self, bad: Sequence[BadSample], total: int) -> list[str]:
        """List the bad samples of `total` samples, bad ones included.

        Raises:
            DataError: if their share exceeds the budget, `data.bad_samples` of the job.
        """
        if not bad:
            return []
        lines = [str(sample) for sample in bad[:MAX_LISTED_SAMPLES]]
        if len(bad) > MAX_LISTED_SAMPLES:
            lines.append(f"and {len(bad) - MAX_LISTED_SAMPLES:,} more")
        head = f"{len(bad):,} of {total:,} samples cannot be used"
        if len(bad) > self.budget * total:
            raise DataError(
                "\n    ".join([head, *lines]),
                f"at most a share of {self.budget:g} (data.bad_samples)",
                # Skipping most of the samples is no solution.
                "repair or remove them, or raise data.bad_samples to skip them"
                if len(bad) <= MAX_SKIPPED_SHARE * total
                else "repair them: without them, most samples would be gone",
                key=self.key,
            )
        verb = "is" if len(bad) == 1 else "are"
        return [f"{self.key}: {head} and {verb} skipped", *(f"left out: {line}" for line in lines)]
