"""The job spec as classes: values, the parts of a spec, and one class per task."""

from runtime.job.custom import CustomJob
from runtime.job.document import Document
from runtime.job.formatting import dotted
from runtime.job.images import ImageClassificationJob, ImageRegressionJob
from runtime.job.job import Checkpoint, Job, lower_is_better
from runtime.job.limits import Limits
from runtime.job.series import SeriesClassificationJob, SeriesRegressionJob
from runtime.job.tables import TableClassificationJob, TableRegressionJob
from runtime.job.text import TextJob

__all__ = ["JOBS", "Checkpoint", "Document", "Job", "Limits", "dotted", "lower_is_better"]

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
