"""SkyPilot: a managed job whose every node runs one command in the image, and which the exit codes bring back."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from drivetrain.errors import SpecError
from drivetrain.launch.clusters import preflight
from drivetrain.launch.clusters.cluster_job import ClusterFile, ClusterJob
from drivetrain.launch.clusters.site import SkyPilotSite
from drivetrain.storage import store_variables
from drivetrain.system.units import parse_bytes

FOLDER = "/tmp/drivetrain-job"
"""Where a node writes the job file; the template makes it."""


def prepare(work: ClusterJob, settings: SkyPilotSite, site: str) -> ClusterFile:
    """The task; raises SpecError if the job cannot train there."""
    volumes = [*settings.volumes, *settings.file_mounts]
    preflight.check_volumes(work, settings.runs, volumes, f"{site}: skypilot.volumes")
    if not any(Path(settings.runs).is_relative_to(volume) for volume in settings.volumes):
        listed = ", ".join(settings.volumes)
        raise SpecError(
            f"{site}: skypilot.runs: {settings.runs} is below no volume",
            f"below {listed}" if listed else "below a volume; skypilot.volumes lists none",
            "add a volume: a bucket under file_mounts cannot rename folders, which every checkpoint needs",
        )
    _check_gpus(work, settings.resources.get("accelerators"), f"{site}: skypilot.resources.accelerators")
    stored = preflight.list_store_variables(work)
    for name in stored:
        if name in store_variables.FILES:
            fault = f"{name} names a file of this machine, which the nodes of SkyPilot do not have"
            action = f"unset {name}, and export such variables or give the nodes a role"
            raise SpecError(fault, "variables that hold the credential itself, or the role of the nodes", action)
    secrets = list(dict.fromkeys((*work.job.environment, *stored)))
    notes = [f"submit it from where {', '.join(secrets)} is set"] if secrets else []
    notes += [
        f"no {prefix} variable is set here: for {store} the nodes need a role"
        for prefix, store in preflight.list_missing_credentials(work, secrets)
    ]
    values = _list_values(work, settings) | {"secrets": dict.fromkeys(secrets) or None}
    submit = ["sky", "jobs", "launch", *(word for name in secrets for word in ("--secret", name))]
    return ClusterFile("skypilot.yaml", ".sky.yaml", values, notes, submit, f"sky jobs logs --name {work.job.name}")


def _check_gpus(work: ClusterJob, accelerators: object, key: str) -> None:
    """Refuse GPUs without a name, or another number of them than processes."""
    if work.gpus and not isinstance(accelerators, str):
        fault = f"{key} is missing" if accelerators is None else f"{key} is {accelerators!r}"
        raise SpecError(fault, "the name of a GPU, such as A100", "run `sky gpus list` to see what there is")
    if not work.gpus and accelerators:
        fault = f"{key} is {accelerators!r}, and --device is cpu"
        raise SpecError(fault, "the same in both", "add --device gpu, or remove it")
    name, _, count = str(accelerators or "").partition(":")
    if count and count != str(work.per_node):
        fault = f"{key} is {accelerators}, and there are {work.per_node} processes on each node"
        action = f"write accelerators: {name}, or set --per-node {count}"
        raise SpecError(fault, "one process for each GPU", action)


def _list_values(work: ClusterJob, settings: SkyPilotSite) -> dict[str, object]:
    """The values of the template but the secrets."""
    limits, resources, path = work.job.limits, dict(settings.resources), f"{FOLDER}/{work.spec.name}"
    if work.gpus:
        resources["accelerators"] = f"{str(resources['accelerators']).partition(':')[0]}:{work.per_node}"
    return {
        **work.list_values(),
        "image": f"docker:{settings.image}",
        "cpus": None if "cpus" in resources else f"{math.ceil(limits.cpus or 2)}+",
        "memory": None if "memory" in resources else f"{math.ceil(parse_bytes(limits.memory or '4g') / 2**30)}+",
        "resources": resources,
        "volumes": settings.volumes or None,
        "file_mounts": settings.file_mounts or None,
        "job_path": path,
        "end": f"JOB_{hashlib.sha256(work.content.encode()).hexdigest()[:12]}",
        # Without the breaks of lines that YAML would change.
        "job_file": "".join(f"{line}\n" for line in work.content.splitlines()),
        "command": [*work.build_command(settings.command, path), "--runs", settings.runs],
    }
