"""A job's data, by task."""

from __future__ import annotations

from runtime.data.dataset import Dataset
from runtime.job import Job
from runtime.job.job import ImageJob
from runtime.job.texts import TextJob


def load(job: Job) -> Dataset:
    """Read and check the data of a job.

    Raises:
        DataError: if it cannot be used.
    """
    if isinstance(job, ImageJob):
        from runtime.data import images

        return images.load(job)
    if isinstance(job, TextJob):
        from runtime.data import texts

        return texts.load(job)
    raise AssertionError(f"no data for {job.task}")
