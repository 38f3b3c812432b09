"""A file of samples, and how it is read: for training, for validation, or as new data of a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from drivetrain.data import bad_samples
from drivetrain.data.bad_samples import BadSample
from drivetrain.data.formats import row_lines
from drivetrain.data.formats.csv_dialect import CsvFiles
from drivetrain.job.series import SeriesJob
from drivetrain.job.tables import TableJob


@dataclass(frozen=True)
class Source:
    """A file with samples of a table or series job."""

    path: Path
    key: str
    """The spec key that names the file, for messages."""
    files: CsvFiles = field(default_factory=CsvFiles)
    """How CSV files are written; what is detected in this file is added to it."""
    budget: float = 1.0
    """Largest share of samples that may be unusable."""
    labelled: bool = True
    """Whether targets are read."""

    @classmethod
    def of_job(cls, job: TableJob | SeriesJob, part: Literal["train", "validation"], files: CsvFiles) -> Source:
        """The file that the job names for training, or for validation."""
        data = job.data
        path = data.train if part == "train" else str(data.validation)
        return cls(job.resolve(path), f"data.{part}", files, data.bad_samples)

    def name_row(self, row: int) -> str:
        """Name a row, counted from 0, and in a CSV file its line."""
        return row_lines.place(self.path, row + 1)

    def name_option(self, name: str) -> str:
        """The spec key that names a column, if the file is the training data; else the file's key."""
        return f"data.{name}" if self.key == "data.train" else self.key

    def describe_bad_row(self, row: int, reason: str) -> BadSample:
        """A row, counted from 0, that cannot be used as it is."""
        return BadSample(f"{self.path.name} {self.name_row(row)}", reason)

    def check_bad(self, unusable: Sequence[BadSample], total: int) -> list[str]:
        """Notes on samples of the file that cannot be used; raises DataError if their share exceeds the budget."""
        return bad_samples.check(unusable, total, self.budget, self.key)
