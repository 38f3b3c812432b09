"""Other Docker engines, by their contexts: a script that runs one container on each and waits for all of them."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from runtime.distributed.placement import parse_meet
from runtime.errors import SpecError
from runtime.job.values import duration_seconds
from runtime.launch.clusters import grace_period, mounted_files, store_access
from runtime.launch.clusters.cluster_job import ClusterJob
from runtime.launch.clusters.docker_nodes_script import BODY
from runtime.launch.clusters.lost_nodes import SILENCE
from runtime.launch.clusters.site import NodesSite
from runtime.system.units import parse_bytes

SPEC = "/tmp/job"
"""The folder of a container where it writes the job file; in memory, since the image's file system is read-only."""
PIDS = 512
"""Largest number of processes and threads of a container."""


def check(work: ClusterJob, here: NodesSite, named: str) -> list[str]:
    """Refuse what would fail on the nodes; returns lines for the user.

    Raises:
        SpecError: if the job cannot train there.
    """
    if len(here.contexts) != work.nodes:
        raise SpecError(
            f"{named}: nodes.contexts has {len(here.contexts)}, and --nodes is {work.nodes}",
            "one context of Docker for each node",
            "`docker context ls` lists those that there are",
        )
    if work.job.environment:
        raise SpecError(
            [
                work.job.problem(
                    ("environment",),
                    "has names, and their values would be seen in `docker inspect`",
                    "with --on nodes none",
                    "remove it, and have ready what it fetches: `drivetrain fetch JOB` on each node",
                )
            ]
        )
    parse_meet(here.meet, f"{named}: nodes.meet")
    mounted_files.check(work, here.runs, list(here.mounts), f"{named}: nodes.mounts")
    lines = [
        f"credentials for {scheme}:// are not handed over, since `docker inspect` would show them: each node needs a role"
        for scheme in store_access.lacking(work, ())
    ]
    return [*lines, grace_period.check(work.job, work.folder / "runs", here.grace, f"{named}: nodes")]


def script(work: ClusterJob, here: NodesSite) -> str:
    """The script."""
    spec = f"{SPEC}/{work.spec.name}"
    command = [*work.command(["python", "-m", "runtime"], spec), "--runs", here.runs, "--nodes", str(work.nodes)]
    # The job file travels as a variable: nothing has to be copied to the nodes first.
    write = f'mkdir -p {SPEC} && printf %s "$DRIVETRAIN_JOB" > {shlex.quote(spec)} && exec "$@"'
    lines = [
        "#!/bin/bash",
        f"# Trains {work.job.name} on {work.nodes} Docker engines; written by `drivetrain launch --on nodes`.",
        "# Exit codes of training decide: 0 done; 75 stopped early, start this script again; 8 and kills, up to three attempts;",
        "# 2 to 7 and 9 would end in the same way.",
        f"contexts=({shlex.join(here.contexts)})  # the first leads, and writes the run",
        f"name={shlex.quote(f'drivetrain-{work.job.name}')}",
        f"job={shlex.quote(work.spec.read_text(encoding='utf-8'))}",
        f"options=({shlex.join(_options(work, here))})",
        f"image={shlex.quote(here.image)}",
        f"train=(-c {shlex.quote(write)} sh {shlex.join(command)} --meet {shlex.quote(here.meet)})",
        f"grace={math.ceil(duration_seconds(here.grace))}  # seconds between the signal and the end of a container",
        SILENCE,
    ]
    return "\n".join(lines) + "\n" + BODY


def _options(work: ClusterJob, here: NodesSite) -> list[str]:
    """The options of docker run: limits, and the hardening that every container of training has."""
    limits = work.job.limits
    memory = f"{math.ceil(parse_bytes(limits.memory or '4g') / 2**20)}m"
    made = [
        *("--init", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges:true", f"--pids-limit={PIDS}"),
        f"--user={here.user}:{here.user}",
        # The processes choose ports of their own, and other nodes have to reach them.
        "--network=host",
        f"--cpus={limits.cpus or 2:g}",
        f"--memory={memory}",
        f"--memory-swap={memory}",
        f"--shm-size={math.ceil(parse_bytes(limits.shm or '256m') / 2**20)}m",
        "--tmpfs=/tmp:exec,mode=1777",
        "--tmpfs=/cache:exec,mode=1777",
        *(f"--volume={there}:{at}" for at, there in here.mounts.items()),
    ]
    if work.gpus:
        made.append(f"--gpus={work.per_node}")
    return [*made, *here.options]


def submit(path: Path) -> list[str]:
    """The command that runs the script."""
    return ["bash", str(path)]


def follow(work: ClusterJob) -> str:
    """What shows the progress of the job."""
    return "the script prints what node 0 says"
