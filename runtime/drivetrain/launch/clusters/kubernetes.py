"""Kubernetes: an Indexed Job with a headless service, a network policy, and the job file in a ConfigMap."""

from __future__ import annotations

import math
import re

from drivetrain.distributed.placement import DEFAULT_PORT
from drivetrain.job.values import parse_duration
from drivetrain.launch.clusters import preflight
from drivetrain.launch.clusters.cluster_job import ClusterFile, ClusterJob
from drivetrain.launch.clusters.site import KubernetesSite
from drivetrain.storage import store_variables
from drivetrain.system.units import parse_bytes

MAX_LOST_PODS = 6
"""How many lost pods of each node end the Job."""
CREDENTIALS = "/credentials"
"""Where keys of secrets are mounted whose variables name files."""


def prepare(work: ClusterJob, settings: KubernetesSite, site: str) -> ClusterFile:
    """The manifest; raises SpecError if the job cannot train there."""
    preflight.check_volumes(work, settings.runs, [claim.at for claim in settings.claims], f"{site}: k8s.claims")
    if missing := [name for name in work.job.environment if name not in settings.secrets]:
        fault = f"{missing[0]} is in no secret of {site}"
        action = f"add `{missing[0]}: {{name: SECRET, key: KEY}}` under k8s.secrets"
        raise work.job.spec_error(("environment",), fault, "one secret for each of them", action)
    notes = [
        f"k8s.secrets names no {prefix} variable: for {store} the pods need a role, by k8s.pod.serviceAccountName or of "
        "their node"
        for prefix, store in preflight.list_missing_credentials(work, settings.secrets)
    ]
    notes.append(preflight.check_grace(work, settings.grace, f"{site}: k8s"))
    # Kubernetes takes small letters, digits and dashes.
    name = re.sub(r"[^a-z0-9]+", "-", work.job.name.lower()).strip("-")[:52] or "job"
    if name != work.job.name:
        notes.append(f"Kubernetes takes no name like {work.job.name}: its objects are called {name}")
    values = _list_values(work, settings, name) | _list_volumes(settings)
    progress = f"kubectl logs --follow --selector app.kubernetes.io/instance={name} --prefix"
    return ClusterFile("kubernetes.yaml", ".k8s.yaml", values, notes, ["kubectl", "create", "-f"], progress)


def _list_values(work: ClusterJob, settings: KubernetesSite, name: str) -> dict[str, object]:
    """The values of the template but those of volumes."""
    limits = {"cpu": f"{work.job.limits.cpus or 2:g}", "memory": _format_bytes(work.job.limits.memory or "4g")}
    return {
        **work.list_values(),
        "name": name,
        "namespace": settings.namespace,
        "job_file": {work.spec.name: work.content},
        "labels": settings.labels,
        "lost_pods": MAX_LOST_PODS * work.nodes,
        "pod": settings.pod,
        "grace_seconds": math.ceil(parse_duration(settings.grace)),
        "user": settings.user,
        "image": settings.image,
        "arguments": [*work.build_command([], f"/job/{work.spec.name}"), "--runs", settings.runs],
        "leader": f"{name}-0.{name}",
        "port": str(DEFAULT_PORT),
        "limits": limits | ({settings.gpu_resource: str(work.per_node)} if work.gpus else {}),
        "shm": _format_bytes(work.job.limits.shm or "256m"),
    }


def _list_volumes(settings: KubernetesSite) -> dict[str, object]:
    """The claims, the variables from keys of secrets, and keys that are mounted since their variables name files."""
    claims = [(f"claim-{number}", claim) for number, claim in enumerate(settings.claims)]
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": claim.claim}} for name, claim in claims]
    mounts: list[object] = [{"name": name, "mountPath": claim.at} for name, claim in claims]
    variables: list[object] = []
    files: list[object] = []
    for name, secret in settings.secrets.items():
        if name not in store_variables.FILES:
            variables.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}})
            continue
        volume = name.lower().replace("_", "-")
        items = [{"key": secret.key, "path": "file"}]
        files.append({"name": volume, "secret": {"secretName": secret.name, "items": items}})
        mounts.append({"name": volume, "mountPath": f"{CREDENTIALS}/{volume}", "readOnly": True})
        variables.append({"name": name, "value": f"{CREDENTIALS}/{volume}/file"})
    return {"variables": variables, "mounts": mounts, "volumes": [*files, *volumes]}


def _format_bytes(size: str) -> str:
    """A size as Kubernetes takes it."""
    return f"{math.ceil(parse_bytes(size) / 2**20)}Mi"
