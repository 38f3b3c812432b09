"""Which kinds of shards the task of a job reads."""

from __future__ import annotations

from drivetrain.data.streaming.shard import IMAGES, TEXTS, Accepted
from drivetrain.job import Job
from drivetrain.job.text import TextJob


def of_task(job: Job) -> Accepted:
    """The kinds of shards that are accepted for a job: those of texts or those of images."""
    return TEXTS if isinstance(job, TextJob) else IMAGES
