"""SkyPilot: a managed job whose every node runs one command in the image, and which the exit codes bring back."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.launch.clusters import mounted_files, store_access
from drivetrain.launch.clusters.cluster_job import ClusterJob
from drivetrain.launch.clusters.site import SkyPilotSite
from drivetrain.system.units import parse_bytes

FOLDER = "/tmp/drivetrain-job"
"""Where a node writes the job file; the template makes it."""


def check(work: ClusterJob, settings: SkyPilotSite, site: str) -> list[str]:
    """Refuse what would fail on the cluster; returns lines for the user.

    Raises:
        SpecError: if the job cannot train there.
    """
    mounted_files.check(work, settings.runs, [*settings.volumes, *settings.file_mounts], f"{site}: skypilot.volumes")
    if not any(Path(settings.runs).is_relative_to(volume) for volume in settings.volumes):
        raise SpecError(
            f"{site}: skypilot.runs: {settings.runs} is below no volume",
            f"below {', '.join(settings.volumes)}"
            if settings.volumes
            else "below a volume; skypilot.volumes lists none",
            "add a volume: a bucket under file_mounts cannot rename folders, which every checkpoint needs",
        )
    _check_gpus(work, settings, site)
    store_access.refuse_files(work, "SkyPilot")
    secrets = list_secrets(work)
    lines = [f"submit it from where {', '.join(secrets)} is set"] if secrets else []
    return lines + store_access.missing(work, secrets)


def list_secrets(work: ClusterJob) -> list[str]:
    """The names that the job lists, and those of its stores that are set here."""
    return list(dict.fromkeys((*work.job.environment, *store_access.names(work))))


def _check_gpus(work: ClusterJob, settings: SkyPilotSite, site: str) -> None:
    """Refuse GPUs without a name, or another number of them than processes."""
    accelerators = settings.resources.get("accelerators")
    if work.gpus and not isinstance(accelerators, str):
        description = (
            f"{site}: skypilot.resources.accelerators is missing"
            if accelerators is None
            else f"{site}: {accelerators!r}"
        )
        raise SpecError(description, "the name of a GPU, such as A100", "run `sky gpus list` to see what there is")
    if not work.gpus and accelerators:
        raise SpecError(
            f"{site}: skypilot.resources.accelerators is {accelerators!r}, and --device is cpu",
            "the same in both",
            "add --device gpu, or remove it",
        )
    name, _, count = accelerators.partition(":") if isinstance(accelerators, str) else ("", "", "")
    if work.gpus and count and count != str(work.per_node):
        raise SpecError(
            f"{site}: skypilot.resources.accelerators is {accelerators}, and there are {work.per_node} processes on each node",
            "one process for each GPU",
            f"write accelerators: {name}, or set --per-node {count}",
        )


def list_values(work: ClusterJob, settings: SkyPilotSite) -> dict[str, object]:
    """The values of the template."""
    limits, resources = work.job.limits, dict(settings.resources)
    if work.gpus:
        resources["accelerators"] = f"{str(resources['accelerators']).partition(':')[0]}:{work.per_node}"
    path = f"{FOLDER}/{work.spec.name}"
    return {
        "job_name": work.job.name,
        "node_count": work.describe_nodes(),
        "nodes": work.nodes,
        "image": f"docker:{settings.image}",
        "cpus": None if "cpus" in resources else f"{math.ceil(limits.cpus or 2)}+",
        "memory": None if "memory" in resources else f"{math.ceil(parse_bytes(limits.memory or '4g') / 2**30)}+",
        "resources": resources,
        "volumes": settings.volumes or None,
        "file_mounts": settings.file_mounts or None,
        "secrets": dict.fromkeys(list_secrets(work)) or None,
        "job_path": path,
        "end": f"JOB_{hashlib.sha256(work.content.encode()).hexdigest()[:12]}",
        "job_file": work.content,
        "command": [*work.command(settings.command, path), "--runs", settings.runs],
    }


def submit(work: ClusterJob) -> list[str]:
    """The command that submits the task; it takes the values of secrets from where it is called."""
    return ["sky", "jobs", "launch", *(word for name in list_secrets(work) for word in ("--secret", name))]
