"""The job spec: YAML document, value types, one class per task."""

from runtime.job.document import Document, dump
from runtime.job.job import Checkpoint, ImageJob, Job, Limits, lower_is_better
from runtime.job.texts import TextJob
from runtime.job.written import dotted

__all__ = ["JOBS", "Checkpoint", "Document", "Job", "Limits", "dotted", "dump", "lower_is_better"]

JOBS: dict[str, type[Job]] = {"image-classification": ImageJob, "text-classification": TextJob}
