"""The job spec as classes: value types, the sections of a spec, and one class per task."""

from drivetrain.job.document import Document
from drivetrain.job.formatting import dot_key
from drivetrain.job.job import Checkpoint, Job, lower_is_better
from drivetrain.job.limits import Limits

__all__ = [
    "FORECASTING",
    "Checkpoint",
    "Document",
    "Job",
    "Limits",
    "dot_key",
    "lower_is_better",
]

FORECASTING = (
    "a column is not forecast from its own past: add columns of its earlier values (in pandas: df['y_1'] = df['y'].shift(1)), "
    "predict it from them by tabular-regression, and put the latest rows into a file for data.validation"
)
"""Advice for forecasting, which is not a task here."""
