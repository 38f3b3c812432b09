"""Decides whether the container of a job gets a network; it gets none unless something needs it."""

from __future__ import annotations

from runtime.job import Job, remote_data
from runtime.job import custom as custom_job
from runtime.pretrained import hub_name


def need(job: Job) -> str | None:
    """What in the job needs a network; None if nothing does."""
    if (given := hub_name.of_hub(job)) is not None:
        return (
            f"{'.'.join(hub_name.key(job))}: {given} is not a local folder, so it is looked up on the Hugging Face hub"
        )
    if data := hub_name.data_of_hub(job):
        key, text = data[0]
        return f"{key}: {text} is on the Hugging Face hub"
    if job.checkpoint.copy_to:
        return f"checkpoint.copy_to: {job.checkpoint.copy_to} gets a copy of the run"
    if stored := remote_data.remote_paths(job):
        return f"{'.'.join(stored[0][0])}: {stored[0][1]} is in a store or on the web"
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
