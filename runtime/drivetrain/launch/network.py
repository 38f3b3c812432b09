"""Decides whether the container of a job gets a network; it gets none unless something needs it."""

from __future__ import annotations

import os

from drivetrain.job import Job, remote_data
from drivetrain.job import custom as custom_job
from drivetrain.job.track import Track
from drivetrain.pretrained import hub_name


def need(job: Job) -> str | None:
    """Find the part of the job that needs a network; None if nothing does."""
    hub_network = hub_name.find_hub_weights(job)
    if hub_network is not None:
        return f"{'.'.join(hub_name.find_weights_key(job))}: {hub_network} is not a local folder, so it is looked up on the Hugging Face hub"
    data = hub_name.list_hub_data(job)
    if data:
        key, text = data[0]
        return f"{key}: {text} is on the Hugging Face hub"
    if job.checkpoint.copy_to:
        return f"checkpoint.copy_to: {job.checkpoint.copy_to} gets a copy of the run"
    if job.track and not is_offline(job.track):
        return f"{job.track.target[0]} gets the metrics (track)"
    stored = remote_data.list_remote_paths(job)
    if stored:
        return f"{'.'.join(stored[0][0])}: {stored[0][1]} is in a store or on the web"
    return None


def is_offline(track: Track) -> bool:
    """Return whether the tracker only writes files."""
    return bool(track.wandb) and os.environ.get("WANDB_MODE") == "offline"


def decide(job: Job, *, requested: bool = False) -> tuple[bool, str]:
    """Return whether there is a network, which the user may have requested, and a line with the reason."""
    need_text = need(job)
    if need_text:
        return True, f"network: on, for {need_text}"
    if requested:
        return True, "network: on (--network)"
    hint = "; --network turns it on for your own code" if any(custom_job.list_user_functions(job)) else ""
    return False, f"network: off, the job needs no download{hint}"
