"""The samples of a job, divided into training and validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from drivetrain.data.stateless_random import Ids

Source = TypeVar("Source")


@dataclass
class Parts(Generic[Source]):
    """Rows for training and for validation, with the paths or addresses that they are from."""

    train: Source
    train_rows: Ids
    validation: Source
    """`train` if validation rows are held out of the training data."""
    validation_rows: Ids

    @property
    def sources(self) -> list[Source]:
        """What is read, each once."""
        return [self.train] if self.validation is self.train else [self.train, self.validation]
