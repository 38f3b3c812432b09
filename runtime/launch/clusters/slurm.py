"""Slurm: a batch script that sbatch takes, trains on all nodes of its allocation and queues itself again if it should."""

from __future__ import annotations

import base64
import math
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

from runtime.errors import SpecError
from runtime.job.values import duration_seconds
from runtime.job_spec.spec_source import COPY_VARIABLE
from runtime.launch.clusters import grace_period, shared_folders, store_access
from runtime.launch.clusters.cluster_job import ClusterJob
from runtime.launch.clusters.lost_nodes import SILENCE
from runtime.launch.clusters.site import SlurmSite, flag
from runtime.launch.clusters.slurm_script import BODY
from runtime.storage import store_variables
from runtime.system.units import parse_bytes

CPUS = ("cpus-per-task", "exclusive", "cpus-per-gpu")
MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu", "exclusive")
GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")


def check(work: ClusterJob, here: SlurmSite, named: str) -> list[str]:
    """Refuse what would fail on the cluster; returns lines for the user.

    Raises:
        SpecError: if the job cannot train there.
    """
    if here.time and duration_seconds(here.grace) >= duration_seconds(here.time):
        raise SpecError(
            f"{named}: slurm.grace is {here.grace}, and slurm.time is {here.time}",
            "a grace period shorter than the time limit",
            "raise time, or lower grace",
        )
    for word in (*here.srun, *(here.command or ())):
        _check_image(word, named)
    shared_folders.check(work, here.shared, named, own_python=here.command is None)
    lines = [*_stores(work, here), *_unlimited(work, here)]
    return [grace_period.check(work.job, work.folder / "runs", here.grace, f"{named}: slurm"), *lines]


def _stores(work: ClusterJob, here: SlurmSite) -> Iterator[str]:
    """How the job gets at its stores: sbatch hands on the environment of its caller, unless the site says otherwise."""
    found = store_access.names(work)
    exported = str(here.given.get("export", "ALL"))
    if found and "ALL" in exported.split(","):
        yield f"submit it from where {', '.join(found)} is set: sbatch hands it to the job"
    elif found:
        yield f"slurm.options.export is {exported}: {', '.join(found)} reaches the job only if it lists the names"
    for scheme in store_access.lacking(work, found):
        prefix = store_variables.PREFIXES[scheme]
        yield f"no {prefix}... variable is set here: for {scheme}:// export it where the job is submitted, or the nodes need a role"


def _check_image(word: str, named: str) -> None:
    """Refuse an image that a registry can exchange while the job waits."""
    image = word.partition("=")[2] if word.startswith("--container-image=") else word
    remote = "://" in image or (image != word and not image.startswith(("/", ".")))
    if remote and "@sha256:" not in image:
        raise SpecError(
            f"{named}: slurm: the image {image} is named by a tag",
            "an image file, or an image by its digest: NAME@sha256:...",
            "every attempt then trains with the same code; `docker images --digests` shows digests",
        )


def _unlimited(work: ClusterJob, here: SlurmSite) -> Iterator[str]:
    for key, asked, names in (
        ("cpus", work.job.limits.cpus, CPUS),
        ("memory", work.job.limits.memory, MEMORY),
    ):
        if asked is None and not any(name in here.given for name in names):
            yield f"limits.{key} is not in the job: each node gets the cluster's default"


def script(work: ClusterJob, here: SlurmSite) -> str:
    """The batch script."""
    lines = [
        "#!/bin/bash",
        f"# Trains {work.job.name} on {work.node_words()}; written by `drivetrain launch --on slurm`.",
        "# Exit codes of training decide: 0 done; 75 stopped early, queued again; 8 and kills, three attempts in this allocation;",
        "# 2 to 7 and 9 would end in the same way.",
        *(f"#SBATCH {shlex.quote(flag(name, value))}" for name, value in _options(work, here).items()),
        "",
        *here.setup,
        f"train=({shlex.join(work.command(here.command))})",
        *_carried_files(work),
        f"srun_options=({shlex.join(here.srun)})",
        f"least={work.least}  # nodes with which training goes on if one is gone",
        SILENCE,
        "patience=10  # seconds that a node gets to answer, when training on the others has ended",
    ]
    return "\n".join(lines) + "\n" + BODY


def _carried_files(work: ClusterJob) -> Iterator[str]:
    """Lines that write the job file and the user's code as they are now: they may be edited while the job waits."""
    yield 'copy="$PWD/runs/.job-$SLURM_JOB_ID"'
    yield 'rm -rf "$copy"'
    for name, content in work.files().items():
        # Encoded, since a byte more or less would be another file.
        text = "".join(f"\n{line}" for line in textwrap.wrap(base64.b64encode(content).decode(), 120))
        path = f'"$copy"/{shlex.quote(name)}'
        yield f'mkdir -p "$(dirname {path})" && base64 -d > {path} << END{text}\nEND'
    yield f'train=(env "{COPY_VARIABLE}=$copy" "${{train[@]}}")'


def _options(work: ClusterJob, here: SlurmSite) -> dict[str, str | int | bool]:
    """The options of sbatch, by their long names."""
    limits, seconds = work.job.limits, duration_seconds(here.grace)
    made: dict[str, str | int | bool] = {
        "job-name": work.job.name,
        "chdir": str(work.folder),
        "output": str(work.folder / log(work)),
        "open-mode": "append",
        "nodes": f"{work.least}-{work.nodes}" if work.least < work.nodes else work.nodes,
        # With a range, Slurm would take it for the number of nodes: the least.
        **({"ntasks-per-node": 1} if work.least == work.nodes else {}),
        "signal": f"TERM@{math.ceil(seconds)}",
        "requeue": True,
        "no-kill": True,
    }
    if here.time:
        made["time"] = max(1, math.ceil(duration_seconds(here.time) / 60))
    if limits.cpus and not any(name in here.given for name in CPUS):
        made["cpus-per-task"] = math.ceil(limits.cpus)
    if limits.memory and not any(name in here.given for name in MEMORY):
        made["mem"] = f"{math.ceil(parse_bytes(limits.memory) / 2**20)}M"
    if work.gpus and not any(name in here.given for name in GPUS):
        made["gpus-per-node"] = work.per_node
    return made | here.given


def log(work: ClusterJob) -> str:
    """The name of the log below the working folder; %j is the number of the Slurm job."""
    return f"{work.job.name}-%j.log"


def submit(work: ClusterJob, path: Path) -> list[str]:
    """The command that submits the script."""
    return ["sbatch", str(path)]
