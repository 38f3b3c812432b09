"""Other Docker engines, by their contexts: a script that runs one container on each and waits for all of them."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path

from runtime.distributed.placement import parse_meet
from runtime.errors import SpecError
from runtime.job import dotted
from runtime.job.remote_data import remote_paths
from runtime.job.values import duration_seconds
from runtime.launch import run_secrets
from runtime.launch.clusters import grace_period, mounted_files, store_access
from runtime.launch.clusters.cluster_job import ClusterJob
from runtime.launch.clusters.docker_nodes_script import BODY
from runtime.launch.clusters.lost_nodes import SILENCE
from runtime.launch.clusters.site import NodesSite
from runtime.pretrained import hub_name
from runtime.storage import store_variables
from runtime.system import secrets
from runtime.system.units import parse_bytes

SPEC = "/tmp/job"
"""The folder of a container where it writes the job file; in memory, since the image's file system is read-only."""
READY = ".all"
"""The file that says to a container that it has all variables."""
WAIT = (
    f"for i in $(seq 600); do [ -e {secrets.FOLDER}/{READY} ] && break; sleep 0.1; done; "
    f"[ -e {secrets.FOLDER}/{READY} ] || {{ echo 'the starter handed over no variables within a minute'; exit 8; }}"
)
"""A container begins when it has the variables: `docker run` could give them only where `docker inspect` shows them."""
CACHE = "/cache/compile"
"""What a job fetches and compiles, in a container."""
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
    parse_meet(here.meet, f"{named}: nodes.meet")
    mounted_files.check(work, here.runs, list(here.mounts), f"{named}: nodes.mounts")
    given = _variables(work)
    lines = store_access.missing(work, given)
    if given:
        lines.append(
            f"environment: {', '.join(given)} (handed to each container, into its memory; the script takes the values "
            "from the environment in which it is started)"
        )
    lines += [
        f"{dotted(key)}: {text} is fetched into memory, below limits.memory, unless nodes.mounts has a folder for {CACHE}"
        for key, text in remote_paths(work.job)
        if CACHE not in here.mounts
    ]
    return [*lines, grace_period.check(work.job, work.folder / "runs", here.grace, f"{named}: nodes")]


def _variables(work: ClusterJob) -> list[str]:
    """The variables that the containers get: those the job names, and those of its stores and of the hub that are set here."""
    hub = hub_name.of_hub(work.job) is not None or bool(hub_name.data_of_hub(work.job))
    tokens = [name for name in run_secrets.HUB if hub and os.environ.get(name)]
    return list(dict.fromkeys([*work.job.environment, *store_access.names(work), *tokens]))


def script(work: ClusterJob, here: NodesSite) -> str:
    """The script; it holds names of variables, never their values."""
    given = _variables(work)
    spec = f"{SPEC}/{work.spec.name}"
    command = [*work.command(["python", "-m", "runtime"], spec), "--runs", here.runs]
    # The job file travels as a variable: nothing has to be copied to the nodes first.
    write = f'mkdir -p {SPEC} && printf %s "$DRIVETRAIN_JOB" > {shlex.quote(spec)} && exec "$@"'
    if given:
        write = f"{WAIT} && {write}"
    lines = [
        "#!/bin/bash",
        f"# Trains {work.job.name} on {work.nodes} Docker engines; written by `drivetrain launch --on nodes`.",
        "# Exit codes of training decide: 0 done; 75 stopped early, start this script again; 8 and kills, up to three attempts;",
        "# 2 to 7 and 9 would end in the same way.",
        f"contexts=({shlex.join(here.contexts)})  # the first leads, and writes the run",
        f"least={work.least}  # nodes with which training begins or goes on if others do not answer",
        "patience=20  # seconds that an engine gets to answer",
        f"name={shlex.quote(f'drivetrain-{work.job.name}')}",
        f"job={shlex.quote(work.content)}",
        f"options=({shlex.join(_options(work, here))})",
        f"image={shlex.quote(here.image)}",
        f"variables=({shlex.join(given)})  # handed over from the environment of this script",
        f"secrets={secrets.FOLDER} content={secrets.CONTENT} ready={READY}",
        f"files=({shlex.join(name for name in given if name in store_variables.FILES)})  # those that name a file",
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
        "--ulimit=core=0",
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
    if _variables(work):
        made.append(f"--tmpfs={secrets.FOLDER}:mode=0700,uid={here.user},gid={here.user}")
    if work.gpus:
        made.append(f"--gpus={work.per_node}")
    return [*made, *here.options]


def submit(work: ClusterJob, path: Path) -> list[str]:
    """The command that runs the script."""
    return ["bash", str(path)]


def follow(work: ClusterJob) -> str:
    """What shows the progress of the job."""
    return "the script prints what node 0 says"
