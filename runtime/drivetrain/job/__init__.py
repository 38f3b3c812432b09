"""The job spec as classes: values, the parts of a spec, and one class per task."""

from drivetrain.job.custom import CustomJob
from drivetrain.job.document import Document
from drivetrain.job.formatting import dot_key
from drivetrain.job.images import ImageClassificationJob, ImageRegressionJob
from drivetrain.job.job import Checkpoint, Job, lower_is_better
from drivetrain.job.limits import Limits
from drivetrain.job.series import SeriesClassificationJob, SeriesRegressionJob
from drivetrain.job.tables import TableClassificationJob, TableRegressionJob
from drivetrain.job.text import TextJob

__all__ = ["JOBS", "Checkpoint", "Document", "Job", "Limits", "dot_key", "lower_is_better"]

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
