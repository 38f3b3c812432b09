"""Kubernetes: an Indexed Job with a headless service, a network policy, and the job file in a ConfigMap."""

from __future__ import annotations

import math
import re

from drivetrain.distributed.placement import DEFAULT_PORT
from drivetrain.errors import SpecError
from drivetrain.job.values import parse_duration
from drivetrain.launch.clusters import grace_period, mounted_files, store_access
from drivetrain.launch.clusters.cluster_job import ClusterJob
from drivetrain.launch.clusters.site import KubernetesSite
from drivetrain.storage import store_variables
from drivetrain.system.units import parse_bytes

MAX_LOST_PODS = 6
"""How many lost pods of each node end the Job."""
CREDENTIALS = "/credentials"
"""Where keys of secrets are mounted whose variables name files."""


def check(work: ClusterJob, settings: KubernetesSite, site: str) -> list[str]:
    """Refuse what would fail on the cluster; returns lines for the user.

    Raises:
        SpecError: if the job cannot train there.
    """
    mounted_files.check(work, settings.runs, [claim.at for claim in settings.claims], f"{site}: k8s.claims")
    if missing := [name for name in work.job.environment if name not in settings.secrets]:
        problem = work.job.problem(
            ("environment",),
            f"{missing[0]} is in no secret of {site}",
            "one secret for each of them",
            f"add `{missing[0]}: {{name: SECRET, key: KEY}}` under k8s.secrets",
        )
        raise SpecError([problem])
    lines = [
        f"k8s.secrets names no {store_variables.PREFIXES[scheme]}... variable: for {scheme}:// the pods need a role, by "
        "k8s.pod.serviceAccountName or of their node"
        for scheme in store_access.lacking(work, settings.secrets)
    ]
    lines.append(grace_period.check(work.job, work.folder / "runs", settings.grace, f"{site}: k8s"))
    if (name := format_name(work)) != work.job.name:
        lines.append(f"Kubernetes takes no name like {work.job.name}: its objects are called {name}")
    return lines


def format_name(work: ClusterJob) -> str:
    """The job's name as Kubernetes takes it: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", work.job.name.lower()).strip("-")[:52] or "job"


def list_values(work: ClusterJob, settings: KubernetesSite) -> dict[str, object]:
    """The values of the template."""
    name = format_name(work)
    limits = {"cpu": f"{work.job.limits.cpus or 2:g}", "memory": _format_bytes(work.job.limits.memory or "4g")}
    return {
        "job_name": work.job.name,
        "node_count": work.describe_nodes(),
        "name": name,
        "namespace": settings.namespace,
        "job_file": {work.spec.name: work.content},
        "labels": settings.labels,
        "nodes": work.nodes,
        "lost_pods": MAX_LOST_PODS * work.nodes,
        "pod": settings.pod,
        "grace_seconds": math.ceil(parse_duration(settings.grace)),
        "user": settings.user,
        "image": settings.image,
        "arguments": [*work.command([], f"/job/{work.spec.name}"), "--runs", settings.runs],
        "leader": f"{name}-0.{name}",
        "port": str(DEFAULT_PORT),
        "limits": limits | ({settings.gpu_resource: str(work.per_node)} if work.gpus else {}),
        "shm": _format_bytes(work.job.limits.shm or "256m"),
        **_list_volumes(settings),
    }


def _list_volumes(settings: KubernetesSite) -> dict[str, object]:
    """The claims, the variables from keys of secrets, and keys that are mounted since their variables name files."""
    numbered = list(enumerate(settings.claims))
    claims = [{"name": f"claim-{n}", "persistentVolumeClaim": {"claimName": claim.claim}} for n, claim in numbered]
    mounts: list[object] = [{"name": f"claim-{n}", "mountPath": claim.at} for n, claim in numbered]
    variables: list[object] = []
    files: list[object] = []
    for name, secret in settings.secrets.items():
        if name not in store_variables.FILES:
            reference = {"secretKeyRef": {"name": secret.name, "key": secret.key}}
            variables.append({"name": name, "valueFrom": reference})
            continue
        volume = name.lower().replace("_", "-")
        source = {"secretName": secret.name, "items": [{"key": secret.key, "path": "file"}]}
        files.append({"name": volume, "secret": source})
        mounts.append({"name": volume, "mountPath": f"{CREDENTIALS}/{volume}", "readOnly": True})
        variables.append({"name": name, "value": f"{CREDENTIALS}/{volume}/file"})
    return {"variables": variables, "mounts": mounts, "volumes": [*files, *claims]}


def _format_bytes(size: str) -> str:
    """A size as Kubernetes takes it."""
    return f"{math.ceil(parse_bytes(size) / 2**20)}Mi"


def follow(work: ClusterJob) -> str:
    """What shows the progress of the job."""
    return f"kubectl logs --follow --selector app.kubernetes.io/instance={format_name(work)} --prefix"
