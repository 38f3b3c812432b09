"""The job spec as classes: value types, the sections of a spec, and one class per task."""

from drivetrain.errors import nearest
from drivetrain.job.custom import CustomJob
from drivetrain.job.document import Document
from drivetrain.job.formatting import dot_key
from drivetrain.job.images import ImageClassificationJob, ImageRegressionJob
from drivetrain.job.job import Checkpoint, Job, lower_is_better
from drivetrain.job.limits import Limits
from drivetrain.job.series import SeriesClassificationJob, SeriesRegressionJob
from drivetrain.job.tables import TableClassificationJob, TableRegressionJob
from drivetrain.job.text import TextJob

__all__ = [
    "FORECASTING",
    "JOBS",
    "Checkpoint",
    "Document",
    "Job",
    "Limits",
    "dot_key",
    "lower_is_better",
    "suggest_task",
]

FORECASTING = (
    "a column is not forecast from its own past: add columns of its earlier values (in pandas: df['y_1'] = df['y'].shift(1)), "
    "predict it from them by tabular-regression, and put the latest rows into a file for data.validation"
)
"""Advice for forecasting, which is not a task here."""

JOBS: dict[str, type[Job]] = {
    "image-classification": ImageClassificationJob,
    "image-regression": ImageRegressionJob,
    "text-classification": TextJob,
    "series-classification": SeriesClassificationJob,
    "series-regression": SeriesRegressionJob,
    "tabular-classification": TableClassificationJob,
    "tabular-regression": TableRegressionJob,
    "custom": CustomJob,
}


def suggest_task(name: str) -> str:
    """Return advice for the name of a task that does not exist."""
    return FORECASTING if "forecast" in name.casefold() else nearest(name, JOBS) or "pick one"
