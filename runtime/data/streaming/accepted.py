"""Which kinds of shards the task of a job reads."""

from __future__ import annotations

from runtime.data.streaming.shard import IMAGES, TEXTS, Accepted
from runtime.job import Job
from runtime.job.text import TextJob


def of_task(job: Job) -> Accepted:
    """The kinds for a job."""
    return TEXTS if isinstance(job, TextJob) else IMAGES
