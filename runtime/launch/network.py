"""Decides whether the container of a job gets a network; it gets none unless something needs it."""

from __future__ import annotations

import os

from runtime.job import Job
from runtime.job import custom as custom_job


def of_hub(job: Job) -> str | None:
    """The name of the job's model on the Hugging Face hub; None if it is not from there."""
    model = getattr(job, "model", None)
    given = str(getattr(model, "name", ""))
    hub = getattr(model, "source", None) == "transformers" and not os.path.exists(job.resolve(given))
    return given if hub else None


def need(job: Job) -> str | None:
    """What in the job needs a network; None if nothing does."""
    if (given := of_hub(job)) is not None:
        return f"model.name: {given} is not a local folder, so it is looked up on the Hugging Face hub"
    if job.checkpoint.notice:
        return f"checkpoint.notice: {job.checkpoint.notice} is polled"
    return None


def told(job: Job, *, asked: bool = False) -> tuple[bool, str]:
    """Whether there is a network, and a line with the reason.

    Args:
        job: the checked spec.
        asked: whether the user requested one.
    """
    if found := need(job):
        return True, f"network: on, for {found}"
    if asked:
        return True, "network: on (--network)"
    more = "; --network turns it on for your own code" if any(custom_job.parts(job)) else ""
    return False, f"network: off, the job needs no download{more}"
