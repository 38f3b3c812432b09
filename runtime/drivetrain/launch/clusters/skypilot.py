"""SkyPilot: a managed job whose every node runs one command in the image, and which the exit codes bring back."""

from __future__ import annotations

import hashlib
import math
import shlex
from pathlib import Path
from typing import Any

from drivetrain.errors import SpecError
from drivetrain.launch.clusters import mounted_files, store_access
from drivetrain.launch.clusters.cluster_job import ClusterJob
from drivetrain.launch.clusters.plain_yaml import dump
from drivetrain.launch.clusters.site import SkyPilotSite
from drivetrain.system.units import parse_bytes

AGAIN = [8, 75]
"""Exit codes after which the job is started again, on new nodes if it must be: a node is lost, or training was stopped."""
SPEC = "/tmp/drivetrain-job"
"""Where a node writes the job file. Nothing is uploaded, so no bucket is needed for it."""


def check(work: ClusterJob, settings: SkyPilotSite, named: str) -> list[str]:
    """Refuse what would fail on the cluster; returns lines for the user.

    Raises:
        SpecError: if the job cannot train there.
    """
    mounted_files.check(work, settings.runs, [*settings.volumes, *settings.file_mounts], f"{named}: skypilot.volumes")
    if not any(Path(settings.runs).is_relative_to(volume) for volume in settings.volumes):
        raise SpecError(
            f"{named}: skypilot.runs: {settings.runs} is below no volume",
            f"below {', '.join(settings.volumes)}"
            if settings.volumes
            else "below a volume; skypilot.volumes lists none",
            "add a volume: a bucket under file_mounts cannot rename folders, which every checkpoint needs",
        )
    _check_gpus(work, settings, named)
    store_access.refuse_files(work, "SkyPilot")
    secrets = _secrets(work)
    lines = [f"submit it from where {', '.join(secrets)} is set"] if secrets else []
    return lines + store_access.missing(work, secrets)


def _secrets(work: ClusterJob) -> list[str]:
    """The names that the job lists, and those of its stores that are set here."""
    return list(dict.fromkeys((*work.job.environment, *store_access.names(work))))


def _check_gpus(work: ClusterJob, settings: SkyPilotSite, named: str) -> None:
    """Refuse GPUs without a name, or another number of them than processes."""
    accelerators = settings.resources.get("accelerators")
    if work.gpus and not isinstance(accelerators, str):
        description = (
            f"{named}: skypilot.resources.accelerators is missing"
            if accelerators is None
            else f"{named}: {accelerators!r}"
        )
        raise SpecError(description, "the name of a GPU, such as A100", "run `sky gpus list` to see what there is")
    if not work.gpus and accelerators:
        raise SpecError(
            f"{named}: skypilot.resources.accelerators is {accelerators!r}, and --device is cpu",
            "the same in both",
            "add --device gpu, or remove it",
        )
    name, _, count = accelerators.partition(":") if isinstance(accelerators, str) else ("", "", "")
    if work.gpus and count and count != str(work.per_node):
        raise SpecError(
            f"{named}: skypilot.resources.accelerators is {accelerators}, and there are {work.per_node} processes on each node",
            "one process for each GPU",
            f"write accelerators: {name}, or set --per-node {count}",
        )


def task(work: ClusterJob, settings: SkyPilotSite) -> str:
    """The task as YAML."""
    head = (
        f"# Trains {work.job.name} on {work.nodes} node{'s' * (work.nodes > 1)}; written by `drivetrain launch --on skypilot`.\n"
        "# Exit codes of training decide: 0 done; 75 stopped early and 8 a process was lost, started again; lost nodes, too;\n"
        "# 2 to 7 and 9 would end in the same way.\n"
    )
    return head + dump([document(work, settings)])


def document(work: ClusterJob, settings: SkyPilotSite) -> dict[str, Any]:
    """The keys of the task."""
    keys: dict[str, Any] = {
        "name": work.job.name,
        "num_nodes": work.nodes,
        "resources": _resources(work, settings),
    }
    if settings.volumes:
        keys["volumes"] = settings.volumes
    if settings.file_mounts:
        keys["file_mounts"] = settings.file_mounts
    if secrets := _secrets(work):
        # Without a value here: SkyPilot takes it from --secret, and shows it nowhere.
        keys["secrets"] = dict.fromkeys(secrets)
    return keys | {"run": block(work, settings)}


def _resources(work: ClusterJob, settings: SkyPilotSite) -> dict[str, Any]:
    limits = work.job.limits
    resources: dict[str, Any] = {
        "image_id": f"docker:{settings.image}",
        "cpus": f"{math.ceil(limits.cpus or 2)}+",
        "memory": f"{math.ceil(parse_bytes(limits.memory or '4g') / 2**30)}+",
    }
    resources |= settings.resources
    if work.gpus:
        resources["accelerators"] = f"{str(settings.resources['accelerators']).partition(':')[0]}:{work.per_node}"
    return resources | {"job_recovery": {"max_restarts_on_errors": 0, "recover_on_exit_codes": AGAIN}}


def block(work: ClusterJob, settings: SkyPilotSite) -> str:
    """What every node runs; SKYPILOT_NODE_RANK and its like say which one it is."""
    end = f"JOB_{hashlib.sha256(work.content.encode()).hexdigest()[:12]}"
    spec = f"{SPEC}/{work.spec.name}"
    lines = [
        "set -e",
        f"mkdir -p {SPEC}",
        f"cat > {shlex.quote(spec)} << '{end}'",
        *work.content.splitlines(),
        end,
        f"exec {shlex.join([*work.command(settings.command, spec), '--runs', settings.runs])}",
    ]
    return "\n".join(lines) + "\n"


def submit(work: ClusterJob, path: Path) -> list[str]:
    """The command that submits the task; it takes the values of secrets from where it is called."""
    named = [word for name in _secrets(work) for word in ("--secret", name)]
    return ["sky", "jobs", "launch", *named, str(path)]


def follow(work: ClusterJob) -> str:
    """What shows the progress of the job."""
    return f"sky jobs logs --name {work.job.name}"
