"""A job that trains on a cluster: how many nodes and processes, and the command that each node runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drivetrain.distributed import world
from drivetrain.errors import SpecError
from drivetrain.job import Job
from drivetrain.job.limits import NodeRange
from drivetrain.job_spec import load_job as spec
from drivetrain.job_spec.spec_file import read_content

FIXED = {
    "k8s": "an indexed Job of Kubernetes starts each of its pods again",
    "skypilot": "SkyPilot starts all nodes of a task, or none",
}
"""Engines whose number of nodes cannot change between attempts, and why."""


@dataclass(frozen=True)
class ClusterRequest:
    """The options of `drivetrain launch --on ENGINE`."""

    engine: str
    spec: Path
    assignments: Sequence[str] = ()
    device: str = "cpu"
    flags: Sequence[str] = ()
    """Options that are passed on to `train`."""
    extend: Path | None = None
    nodes: int | None = None
    per_node: int | None = None
    site: Path | None = None
    output: Path | None = None
    submit: bool = False


@dataclass(frozen=True)
class ClusterJob:
    """What is to run, whatever the engine; on `nodes` machines, with `least` of them if there are no more.

    `spec` is the absolute path of the job file, `content` its text, and `folder` the working folder, whose runs/ gets the run.
    """

    job: Job
    spec: Path
    content: str
    folder: Path
    nodes: int
    least: int
    per_node: int
    """Processes on each node, one for each GPU."""
    gpus: bool
    options: tuple[str, ...]
    """What follows `drivetrain train JOB`."""

    def describe_nodes(self) -> str:
        """The number of nodes, for the user."""
        count = f"{self.least} to {self.nodes}" if self.least < self.nodes else f"{self.nodes}"
        return f"{count} node{'s' * (self.nodes > 1)}"

    def list_values(self) -> dict[str, object]:
        """The values that every template has."""
        return {"job_name": self.job.name, "node_count": self.describe_nodes(), "nodes": self.nodes}

    def build_command(self, start: Sequence[str] | None = None, spec: str | None = None) -> list[str]:
        """The command of each node: `start` (this Python environment if None) and the job file, at another path if given."""
        program = [sys.executable, "-m", "drivetrain"] if start is None else list(start)
        return [*program, "train", spec or str(self.spec), *self.options]


@dataclass(frozen=True)
class ClusterFile:
    """The file that an engine takes: a template, its values, and what the user is told."""

    template: str
    suffix: str
    values: dict[str, object]
    notes: list[str]
    submit: list[str]
    """The command that takes the file, whose path follows."""
    progress: str
    """What shows the progress of the job."""


def resolve(request: ClusterRequest) -> ClusterJob:
    """The job with its number of nodes and processes; raises DrivetrainError if it is invalid, or contradicts the options."""
    content = read_content(request.spec)
    # The nodes of Slurm see the same data; that of the others is not looked at here.
    load = spec.load if request.engine == "slurm" else spec.load_unseen
    job = load(request.spec, request.assignments, content=content)
    nodes, least = _count_nodes(job, request.nodes)
    least = nodes if request.engine in FIXED else least
    gpus = request.device == "gpu"
    if gpus and job.limits.gpus == "none":
        raise SpecError("--device gpu, and limits.gpus is none in the job", "one of them", "remove one")
    listed_gpus = len(job.limits.gpus) if gpus and isinstance(job.limits.gpus, list) else 1
    per_node = _agree(job, "processes", "--per-node", request.per_node) or listed_gpus
    # A range stays one: each attempt may have another number.
    sizes = {"nodes": str(nodes)} if least == nodes else {}
    if not gpus:
        sizes |= {"processes": str(per_node), "gpus": "none"}
    elif job.limits.gpus == "auto":
        sizes["gpus"] = "all"  # the engine hands out as many as it is asked for
    assignments = [*request.assignments, *(f"limits.{key}={value}" for key, value in sizes.items())]
    options = [word for assignment in assignments for word in ("--set", assignment)]
    options += [*request.flags, *(["--extend", str(request.extend.resolve())] if request.extend else [])]
    _check_batch(job, nodes, per_node)
    world.check_parts(job, nodes * per_node)
    return ClusterJob(
        job, request.spec.resolve(), content.decode(), Path.cwd(), nodes, least, per_node, gpus, tuple(options)
    )


def _count_nodes(job: Job, requested: int | None) -> tuple[int, int]:
    """How many nodes are asked for, and with how many the run goes on."""
    bounds = job.limits.nodes
    if not isinstance(bounds, NodeRange):
        number = _agree(job, "nodes", "--nodes", requested) or 1
        return number, number
    count = requested or bounds.most
    if count is not None and job.limits.allows(count):
        return count, bounds.least
    fault = f"is {bounds}, and {f'--nodes is {requested}' if count else 'nothing says how many to ask for'}"
    possible = f"--nodes {bounds.least} or more" if bounds.most is None else f"--nodes from {bounds}"
    action = "give --nodes N" if count else "give --nodes N, or write limits.nodes.most"
    raise job.spec_error(("limits", "nodes"), fault, possible, action)


def _agree(job: Job, key: str, option: str, requested: int | None) -> int | None:
    """The number that the job or the option gives."""
    in_job: int | None = getattr(job.limits, key)
    if requested is not None and requested < 1:
        raise SpecError(f"{option} {requested}", "1 or more", "give a number from 1 on")
    if None not in (requested, in_job) and requested != in_job:
        fault = f"is {in_job}, and {option} is {requested}"
        raise job.spec_error(("limits", key), fault, "the same number", f"leave out {option}")
    return requested or in_job


def _check_batch(job: Job, nodes: int, per_node: int) -> None:
    """Refuse more processes than a batch has samples: some would have nothing to train on."""
    size, ranks = job.train.batch_size, nodes * per_node
    if isinstance(size, int) and ranks > size:
        fault = f"is {size}, and {nodes} nodes with {per_node} processes each are {ranks} processes"
        possible = f"at most {size} processes: each takes its share of every batch"
        action = "take fewer nodes or processes, or a larger batch"
        raise job.spec_error(("train", "batch_size"), fault, possible, action)
