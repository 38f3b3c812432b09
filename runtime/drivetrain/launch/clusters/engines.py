"""The file that each engine takes: a batch script of Slurm, a manifest of Kubernetes, or a task of SkyPilot."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivetrain.distributed.placement import DEFAULT_PORT
from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.job.values import parse_duration
from drivetrain.job_spec.spec_source import SpecSource
from drivetrain.launch import mounts
from drivetrain.launch.clusters.cluster_job import ClusterJob, check_grace
from drivetrain.launch.clusters.site import KubernetesSite, SkyPilotSite, SlurmSite
from drivetrain.launch.run_secrets import list_store_variables
from drivetrain.storage import store_variables
from drivetrain.system.console import say, say_aside
from drivetrain.system.units import parse_bytes

SITE_OPTIONS = {
    "cpus": ("cpus-per-task", "exclusive", "cpus-per-gpu"),
    "memory": ("mem", "mem-per-cpu", "mem-per-gpu", "exclusive"),
    "gpus": ("gres", "gpus", "gpus-per-node", "gpus-per-task"),
}
"""Options of sbatch by which a site sets the CPUs, memory or GPUs itself; ours is then left out."""
MAX_SCRIPT_FILE_BYTES = 2 << 20
"""Bytes of files in a batch script: Slurm takes scripts of 4 MB."""
MAX_LOST_PODS = 6
"""How many lost pods of each node end the Job of Kubernetes."""
CREDENTIALS = "/credentials"
"""Where keys of secrets are mounted whose variables name files."""
JOB_FOLDER = "/tmp/drivetrain-job"
"""Where a node of SkyPilot writes the job file; the template makes it."""


@dataclass(frozen=True)
class ClusterFile:
    """The file that an engine takes: a template and its values."""

    template: str
    suffix: str
    values: Mapping[str, object]
    submit: list[str]
    """The command that takes the file, whose path follows."""
    progress: str
    """What shows the progress of the job."""


def prepare_slurm(work: ClusterJob, settings: SlurmSite, site: str) -> ClusterFile:
    """A batch script that trains on all nodes of its allocation; raises SpecError if the job cannot train there."""
    if settings.time and parse_duration(settings.grace) >= parse_duration(settings.time):
        fault = f"{site}: slurm.grace is {settings.grace}, and slurm.time is {settings.time}"
        raise SpecError(fault, "a grace period shorter than the time limit", "raise time, or lower grace")
    command = settings.command or [sys.executable, "-m", "drivetrain"]
    _check_images((*settings.srun, *command), site)
    files = {str(work.spec): str(work.spec), "runs": os.path.abspath("runs")}
    files |= {} if settings.command else {"python": sys.prefix}
    action = f"move it there, or list its folder under `shared:` in {site} if all nodes see it"
    mounts.refuse_outside(work.job, files, settings.shared, "is not in a shared folder", action, here=True)
    check_grace(work, settings.grace, f"{site}: slurm")
    note = "no {}... variable is set here: for {}:// export it where the job is submitted, or the nodes need a role"
    variables, exported = list_store_variables(work.job, os.environ, note), str(settings.options.get("export", "ALL"))
    if variables and "ALL" in exported.split(","):
        say(f"submit it from where {', '.join(variables)} is set: sbatch hands it to the job")
    elif variables:
        say(f"slurm.options.export is {exported}: {', '.join(variables)} reaches the job only if it lists the names")
    log, is_range = f"{work.job.name}-%j.log", work.least < work.nodes
    values = _list_sizes(work, settings) | {
        "folder": str(Path.cwd()),
        "log": str(Path.cwd() / log),
        "nodes": f"{work.least}-{work.nodes}" if is_range else work.nodes,
        "tasks_per_node": None if is_range else 1,
        "grace_seconds": math.ceil(parse_duration(settings.grace)),
        "minutes": max(1, math.ceil(parse_duration(settings.time) / 60)) if settings.time else None,
        "setup": "\n".join(settings.setup),
        "command": [*command, "train", str(work.spec), *work.options],
        "files": "\n".join(_write_carried_files(work)),
        "srun_options": settings.srun,
        "least": work.least,
    }
    return ClusterFile("slurm.sbatch", ".sbatch", values, ["sbatch"], f"squeue --me, and {log}")


def _check_images(words: Iterable[str], site: str) -> None:
    """Refuse an image that a registry can exchange while the job waits, in an option of srun or a word of the command."""
    for word in words:
        image = word.removeprefix("--container-image=")
        is_remote = "://" in image or (image != word and not image.startswith(("/", ".")))
        if is_remote and "@sha256:" not in image:
            possible = "an image file, or an image by its digest: NAME@sha256:..."
            action = "every attempt then trains with the same code; `docker images --digests` shows digests"
            raise SpecError(f"{site}: slurm: the image {image} is named by a tag", possible, action)


def _list_sizes(work: ClusterJob, settings: SlurmSite) -> dict[str, object]:
    """The CPUs, memory and GPUs of each node, and the options of the site, which can set these itself."""
    limits, options = work.job.limits, {name: value for name, value in settings.options.items() if value is not False}
    sizes: dict[str, object] = {
        "cpus": math.ceil(limits.cpus) if limits.cpus else None,
        "memory": _format_bytes(limits.memory, "M") if limits.memory else None,
        "gpus": work.per_node if work.gpus else None,
    }
    for key, names in SITE_OPTIONS.items():
        if not options.keys().isdisjoint(names):
            sizes[key] = None
        elif sizes[key] is None and key != "gpus":
            say(f"limits.{key} is not in the job: each node gets the cluster's default")
    flags = (f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items())
    return sizes | {"options": "\n".join(f"#SBATCH {shlex.quote(flag)}" for flag in flags)}


def _write_carried_files(work: ClusterJob) -> Iterator[str]:
    """Yield commands that write the job file and the user's code as they are now: they may be edited while the job waits."""
    files = SpecSource(work.spec, content=work.content.encode()).read_files(work.job)
    if sum(map(len, files.values())) > MAX_SCRIPT_FILE_BYTES:
        too_large = sorted(name for name in files if not name.endswith((".py", ".yaml")))
        say_aside(
            f"{len(too_large)} files that arguments name are too large for a batch script, so they are read when "
            f"the run starts, as they are then: {', '.join(too_large[:3])}"
        )
        files = {name: content for name, content in files.items() if name not in too_large}
    for name, content in files.items():
        # Encoded, since a byte more or less would be another file.
        path, text = f'"$copy"/{shlex.quote(name)}', base64.encodebytes(content).decode()
        yield f'mkdir -p "$(dirname {path})" && base64 -d > {path} << END\n{text}END'


def prepare_kubernetes(work: ClusterJob, settings: KubernetesSite, site: str) -> ClusterFile:
    """An Indexed Job with a service, and the job file in a ConfigMap; raises SpecError if the job cannot train there."""
    job, limits = work.job, work.job.limits
    _check_volumes(job, settings.runs, [claim.at for claim in settings.claims], f"{site}: k8s.claims")
    if missing := [name for name in job.environment if name not in settings.secrets]:
        fault = f"{missing[0]} is in no secret of {site}"
        action = f"add `{missing[0]}: {{name: SECRET, key: KEY}}` under k8s.secrets"
        raise job.spec_error(("environment",), fault, "one secret for each of them", action)
    role = "the pods need a role, by k8s.pod.serviceAccountName or of their node"
    names = dict.fromkeys(settings.secrets, "in a secret")
    list_store_variables(job, names, f"k8s.secrets names no {{}}... variable: for {{}}:// {role}")
    check_grace(work, settings.grace, f"{site}: k8s")
    # Kubernetes takes small letters, digits and dashes.
    name = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")[:52] or "job"
    if name != job.name:
        say(f"Kubernetes takes no name like {job.name}: its objects are called {name}")
    resources = {"cpu": f"{limits.cpus or 2:g}", "memory": _format_bytes(limits.memory or "4g", "Mi")}
    values = {
        **settings.model_dump(include={"namespace", "labels", "pod", "user", "image"}),
        **_list_volumes(settings),
        "name": name,
        "job_file": {work.spec.name: work.content},
        "lost_pods": MAX_LOST_PODS * work.nodes,
        "grace_seconds": math.ceil(parse_duration(settings.grace)),
        "arguments": ["train", f"/job/{work.spec.name}", *work.options, "--runs", settings.runs],
        "port": str(DEFAULT_PORT),
        "limits": resources | ({settings.gpu_resource: str(work.per_node)} if work.gpus else {}),
        "shm": _format_bytes(limits.shm or "256m", "Mi"),
    }
    progress = f"kubectl logs --follow --selector app.kubernetes.io/instance={name} --prefix"
    return ClusterFile("kubernetes.yaml", ".k8s.yaml", values, ["kubectl", "create", "-f"], progress)


def _list_volumes(settings: KubernetesSite) -> dict[str, object]:
    """The claims, the variables from keys of secrets, and keys that are mounted since their variables name files."""
    claims = [(f"claim-{number}", claim) for number, claim in enumerate(settings.claims)]
    volumes: list[object] = [
        {"name": name, "persistentVolumeClaim": {"claimName": claim.claim}} for name, claim in claims
    ]
    mounted: list[object] = [{"name": name, "mountPath": claim.at} for name, claim in claims]
    variables: list[object] = []
    for name, secret in settings.secrets.items():
        if name in store_variables.FILES:
            volume, items = name.lower().replace("_", "-"), [{"key": secret.key, "path": "file"}]
            volumes.append({"name": volume, "secret": {"secretName": secret.name, "items": items}})
            mounted.append({"name": volume, "mountPath": f"{CREDENTIALS}/{volume}", "readOnly": True})
            variables.append({"name": name, "value": f"{CREDENTIALS}/{volume}/file"})
        else:
            variables.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}})
    return {"variables": variables, "mounts": mounted, "volumes": volumes}


def prepare_skypilot(work: ClusterJob, settings: SkyPilotSite, site: str) -> ClusterFile:
    """A task whose every node runs one command in the image; raises SpecError if the job cannot train there."""
    _check_volumes(work.job, settings.runs, [*settings.volumes, *settings.file_mounts], f"{site}: skypilot.volumes")
    if not any(Path(settings.runs).is_relative_to(volume) for volume in settings.volumes):
        listed = ", ".join(settings.volumes)
        raise SpecError(
            f"{site}: skypilot.runs: {settings.runs} is below no volume",
            f"below {listed}" if listed else "below a volume; skypilot.volumes lists none",
            "add a volume: a bucket under file_mounts cannot rename folders, which every checkpoint needs",
        )
    resources = settings.resources | _choose_gpus(work, settings.resources.get("accelerators"), site)
    note = "no {}... variable is set here: for {}:// the nodes need a role"
    variables = list_store_variables(work.job, os.environ, note)
    if files := [name for name in variables if name in store_variables.FILES]:
        fault = f"{files[0]} names a file of this machine, which the nodes of SkyPilot do not have"
        action = f"unset {files[0]}, and export such variables or give the nodes a role"
        raise SpecError(fault, "variables that hold the credential itself, or the role of the nodes", action)
    if secrets := list(dict.fromkeys((*work.job.environment, *variables))):
        say(f"submit it from where {', '.join(secrets)} is set")
    limits, path = work.job.limits, f"{JOB_FOLDER}/{work.spec.name}"
    values = {
        "image": f"docker:{settings.image}",
        "cpus": None if "cpus" in resources else f"{math.ceil(limits.cpus or 2)}+",
        "memory": None if "memory" in resources else f"{math.ceil(parse_bytes(limits.memory or '4g') / 2**30)}+",
        "resources": resources,
        "volumes": settings.volumes or None,
        "file_mounts": settings.file_mounts or None,
        "secrets": dict.fromkeys(secrets) or None,
        "job_path": path,
        "end": f"JOB_{hashlib.sha256(work.content.encode()).hexdigest()[:12]}",
        # Without the breaks of lines that YAML would change.
        "job_file": "".join(f"{line}\n" for line in work.content.splitlines()),
        "command": [*settings.command, "train", path, *work.options, "--runs", settings.runs],
    }
    submit = ["sky", "jobs", "launch", *(word for name in secrets for word in ("--secret", name))]
    return ClusterFile("skypilot.yaml", ".sky.yaml", values, submit, f"sky jobs logs --name {work.job.name}")


def _choose_gpus(work: ClusterJob, accelerators: object, site: str) -> dict[str, str]:
    """The GPUs of each node, one for each process; refuses (SpecError) GPUs without a name, or another number of them."""
    key = f"{site}: skypilot.resources.accelerators"
    if work.gpus and not isinstance(accelerators, str):
        fault = f"{key} is missing" if accelerators is None else f"{key} is {accelerators!r}"
        raise SpecError(fault, "the name of a GPU, such as A100", "run `sky gpus list` to see what there is")
    if not work.gpus and accelerators:
        fault = f"{key} is {accelerators!r}, and --device is cpu"
        raise SpecError(fault, "the same in both", "add --device gpu, or remove it")
    name, _, count = str(accelerators).partition(":")
    if count and count != str(work.per_node):
        fault = f"{key} is {accelerators}, and there are {work.per_node} processes on each node"
        action = f"write accelerators: {name}, or set --per-node {count}"
        raise SpecError(fault, "one process for each GPU", action)
    return {"accelerators": f"{name}:{work.per_node}"} if work.gpus else {}


def _check_volumes(job: Job, runs: str, volumes: Sequence[str], key: str) -> None:
    """Refuse (SpecError) paths below none of the volumes of a container, which `key` of the site lists."""
    fault = "is below no volume that the container has"
    action = f"write its path in the container, below a volume of {key}"
    mounts.refuse_outside(job, {f"{key}: runs": runs}, volumes, fault, action, here=False)


def _format_bytes(size: str, unit: str) -> str:
    """A size in whole MiB, by the name that an engine has for it."""
    return f"{math.ceil(parse_bytes(size) / 2**20)}{unit}"


ENGINES: dict[str, Callable[[ClusterJob, Any, str], ClusterFile]] = {
    "slurm": prepare_slurm,
    "k8s": prepare_kubernetes,
    "skypilot": prepare_skypilot,
}
"""Each takes the job, the section of the site file, and the name of that file."""
