"""Kubernetes: an Indexed Job with a headless service, a network policy, and the job file in a ConfigMap."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from drivetrain.distributed.placement import DEFAULT_PORT
from drivetrain.errors import SpecError
from drivetrain.job.values import parse_duration
from drivetrain.launch.clusters import grace_period, mounted_files, store_access
from drivetrain.launch.clusters.cluster_job import ClusterJob
from drivetrain.launch.clusters.plain_yaml import dump
from drivetrain.launch.clusters.site import KubernetesSite, SecretKey
from drivetrain.storage import store_variables
from drivetrain.system.units import parse_bytes

FINAL = [1, 2, 3, 4, 5, 6, 7, 9, 11]
"""Exit codes after which another attempt would end in the same way."""
STOPPED = 75
MAX_LOST_PODS = 6
"""How many lost pods end the Job; those of a drained node and those that stopped early do not count."""
SCRATCH = {"tmp": "/tmp", "cache": "/cache"}
"""Folders of a pod that it may write, beside the claims; the image's own file system is read-only."""
SPEC = "/job"
SECRETS = "/credentials"
"""Where keys of secrets are mounted whose variables name files."""
CONTAINER = "train"


def check(work: ClusterJob, settings: KubernetesSite, named: str) -> list[str]:
    """Refuse what would fail on the cluster; returns lines for the user.

    Raises:
        SpecError: if the job cannot train there.
    """
    mounted_files.check(work, settings.runs, [claim.at for claim in settings.claims], f"{named}: k8s.claims")
    if missing := [name for name in work.job.environment if name not in settings.secrets]:
        raise SpecError(
            [
                work.job.problem(
                    ("environment",),
                    f"{missing[0]} is in no secret of {named}",
                    "one secret for each of them",
                    f"add `{missing[0]}: {{name: SECRET, key: KEY}}` under k8s.secrets",
                )
            ]
        )
    lines = [
        f"k8s.secrets names no {store_variables.PREFIXES[scheme]}... variable: for {scheme}:// the pods need a role, by "
        "k8s.pod.serviceAccountName or of their node"
        for scheme in store_access.lacking(work, settings.secrets)
    ]
    lines += [grace_period.check(work.job, work.folder / "runs", settings.grace, f"{named}: k8s")]
    if label(work) != work.job.name:
        lines.append(f"Kubernetes takes no name like {work.job.name}: its objects are called {label(work)}")
    return lines


def label(work: ClusterJob) -> str:
    """The job's name as Kubernetes takes it: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", work.job.name.lower()).strip("-")[:52] or "job"


def manifest(work: ClusterJob, settings: KubernetesSite) -> str:
    """All objects as YAML."""
    head = (
        f"# Trains {work.job.name} on {work.nodes} node{'s' * (work.nodes > 1)}; written by `drivetrain launch --on k8s`.\n"
        "# Exit codes of training decide: 0 done; 75 stopped early, started again; 8 and kills, started again and counted;\n"
        "# 2 to 7 and 9 would end in the same way. The Job is done when its pod 0 is, which writes the run.\n"
    )
    return head + dump(objects(work, settings))


def objects(work: ClusterJob, settings: KubernetesSite) -> list[dict[str, Any]]:
    """Job file, service, network policy and Job."""
    name, mine = label(work), {"app.kubernetes.io/name": "drivetrain", "app.kubernetes.io/instance": label(work)}
    about = {"name": name, "labels": mine} | ({"namespace": settings.namespace} if settings.namespace else {})
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {work.spec.name: work.content}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": about,
            # Without an address of its own; the pods have to find pod 0 before they are ready.
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": mine},
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": about,
            # What the processes exchange is neither encrypted nor behind a password.
            "spec": {
                "podSelector": {"matchLabels": mine},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": mine}}]}],
            },
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": about | {"labels": mine | settings.labels},
            "spec": {
                "completionMode": "Indexed",
                "completions": work.nodes,
                "parallelism": work.nodes,
                "backoffLimit": MAX_LOST_PODS * work.nodes,
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {"rules": _rules()},
                "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
                "template": {"metadata": {"labels": mine | settings.labels}, "spec": _pod(work, settings)},
            },
        },
    ]


def _rules() -> list[dict[str, Any]]:
    """What the Job does by the exit code; the first rule that fits counts."""
    of = {"containerName": CONTAINER, "operator": "In"}
    return [
        {"action": "FailJob", "onExitCodes": of | {"values": FINAL}},
        {"action": "Ignore", "onExitCodes": of | {"values": [STOPPED]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def _pod(work: ClusterJob, settings: KubernetesSite) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "job", "configMap": {"name": label(work)}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _bytes(work.job.limits.shm or "256m")}},
        *({"name": name, "emptyDir": {}} for name in SCRATCH),
        *(
            {
                "name": volume(name),
                "secret": {"secretName": secret.name, "items": [{"key": secret.key, "path": "file"}]},
            }
            for name, secret in settings.secrets.items()
            if name in store_variables.FILES
        ),
        *(
            {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim.claim}}
            for number, claim in enumerate(settings.claims)
        ),
    ]
    return settings.pod | {
        "restartPolicy": "Never",
        "subdomain": label(work),
        "terminationGracePeriodSeconds": math.ceil(parse_duration(settings.grace)),
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user,
            "runAsGroup": settings.user,
            "fsGroup": settings.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(work, settings)],
        "volumes": volumes,
    }


def _container(work: ClusterJob, settings: KubernetesSite) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [
        {"name": "job", "mountPath": SPEC, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        *({"name": name, "mountPath": path} for name, path in SCRATCH.items()),
        *({"name": f"claim-{number}", "mountPath": claim.at} for number, claim in enumerate(settings.claims)),
        *(
            {"name": volume(name), "mountPath": f"{SECRETS}/{volume(name)}", "readOnly": True}
            for name in settings.secrets
            if name in store_variables.FILES
        ),
    ]
    limits = {"cpu": f"{work.job.limits.cpus or 2:g}", "memory": _bytes(work.job.limits.memory or "4g")}
    if work.gpus:
        limits[settings.gpu_resource] = str(work.per_node)
    return {
        "name": CONTAINER,
        "image": settings.image,
        # Of the image: python -m drivetrain.
        "args": [*work.command([], f"{SPEC}/{work.spec.name}"), "--runs", settings.runs],
        "env": [
            {"name": "MASTER_ADDR", "value": f"{label(work)}-0.{label(work)}"},
            {"name": "MASTER_PORT", "value": str(DEFAULT_PORT)},
            *(_variable(name, secret) for name, secret in settings.secrets.items()),
        ],
        "resources": {"limits": limits, "requests": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def volume(name: str) -> str:
    """The name of the volume with the file that a variable names."""
    return name.lower().replace("_", "-")


def _variable(name: str, secret: SecretKey) -> dict[str, Any]:
    """A variable from a key of a secret: its value, or the path at which the key is mounted as a file."""
    if name in store_variables.FILES:
        return {"name": name, "value": f"{SECRETS}/{volume(name)}/file"}
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}


def _bytes(size: str) -> str:
    """A size as Kubernetes takes it."""
    return f"{math.ceil(parse_bytes(size) / 2**20)}Mi"


def submit(work: ClusterJob, path: Path) -> list[str]:
    """The command that submits the manifest."""
    return ["kubectl", "create", "-f", str(path)]


def follow(work: ClusterJob) -> str:
    """What shows the progress of the job."""
    return f"kubectl logs --follow --selector app.kubernetes.io/instance={label(work)} --prefix"
