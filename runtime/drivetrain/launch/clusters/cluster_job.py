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
    """What is to run, whatever the engine."""

    job: Job
    spec: Path
    """The job file, absolute."""
    content: str
    """What the job file says."""
    folder: Path
    """The working folder, whose runs/ gets the run."""
    nodes: int
    """How many are asked for."""
    least: int
    """With how many it goes on if there are no more; the same number unless the job says otherwise."""
    per_node: int
    """Processes on each node, one for each GPU."""
    gpus: bool
    options: tuple[str, ...]
    """What follows `drivetrain train JOB`."""

    def describe_nodes(self) -> str:
        """The number of nodes, for the user."""
        count = f"{self.least} to {self.nodes}" if self.least < self.nodes else f"{self.nodes}"
        return f"{count} node{'s' * (self.nodes > 1)}"

    def command(self, start: Sequence[str] | None = None, spec: str | None = None) -> list[str]:
        """The command of each node.

        Args:
            start: the words that start drivetrain; this Python environment if None.
            spec: the path of the job file there, if it is another one.
        """
        program = [sys.executable, "-m", "drivetrain"] if start is None else list(start)
        return [*program, "train", spec or str(self.spec), *self.options]


def resolve(request: ClusterRequest, *, unseen: bool = False, shrinks: bool = False) -> ClusterJob:
    """The job with its number of nodes and processes.

    Args:
        request: the options.
        unseen: whether its data is on other machines alone.
        shrinks: whether the engine can go on with fewer nodes.

    Raises:
        DrivetrainError: if the job is invalid, or contradicts the options.
    """
    content = read_content(request.spec)
    load = spec.load_unseen if unseen else spec.load
    job = load(request.spec, request.assignments, content=content)
    nodes, least = _nodes(job, request.nodes)
    least = least if shrinks else nodes
    processes = _agree(job, "processes", request.per_node)
    gpus = request.device == "gpu"
    if gpus and job.limits.gpus == "none":
        raise SpecError("--device gpu, and limits.gpus is none in the job", "one of them", "remove one")
    per_node = processes or (len(job.limits.gpus) if gpus and isinstance(job.limits.gpus, list) else 1)
    # A range stays one: each attempt may have another number.
    sizes = {"nodes": str(nodes)} if least == nodes else {}
    if not gpus:
        sizes |= {"processes": str(per_node), "gpus": "none"}
    elif job.limits.gpus == "auto":
        sizes["gpus"] = "all"  # the engine hands out as many as it is asked for
    arguments = [word for assignment in request.assignments for word in ("--set", assignment)]
    arguments += [word for key, value in sizes.items() for word in ("--set", f"limits.{key}={value}")]
    arguments += [*request.flags, *(["--extend", str(request.extend.resolve())] if request.extend else [])]
    _check_batch(job, nodes, per_node)
    world.check_parts(job, nodes * per_node)
    return ClusterJob(
        job, request.spec.resolve(), content.decode(), Path.cwd(), nodes, least, per_node, gpus, tuple(arguments)
    )


def _nodes(job: Job, requested: int | None) -> tuple[int, int]:
    """How many nodes are asked for, and with how many the run goes on."""
    bounds = job.limits.nodes
    if not isinstance(bounds, NodeRange):
        number = _agree(job, "nodes", requested) or 1
        return number, number
    count = requested or bounds.most
    if count is None or not job.limits.allows(count):
        raise SpecError(
            [
                job.problem(
                    ("limits", "nodes"),
                    f"is {bounds}, and {f'--nodes is {requested}' if count else 'nothing says how many to ask for'}",
                    f"--nodes {bounds.least} or more" if bounds.most is None else f"--nodes from {bounds}",
                    "give --nodes N" if count else "give --nodes N, or write limits.nodes.most",
                )
            ]
        )
    return count, bounds.least


def _agree(job: Job, key: str, requested: int | None) -> int | None:
    """The number that the job or the option gives."""
    option = {"nodes": "--nodes", "processes": "--per-node"}[key]
    written: int | None = getattr(job.limits, key)
    if requested is not None and requested < 1:
        raise SpecError(f"{option} {requested}", "1 or more", "give a number from 1 on")
    if None not in (requested, written) and requested != written:
        raise SpecError(
            [
                job.problem(
                    ("limits", key),
                    f"is {written}, and {option} is {requested}",
                    "the same number",
                    f"leave out {option}",
                )
            ]
        )
    return requested or written


def _check_batch(job: Job, nodes: int, per_node: int) -> None:
    """Refuse more processes than a batch has samples: some would have nothing to train on."""
    size, ranks = job.train.batch_size, nodes * per_node
    if isinstance(size, int) and ranks > size:
        raise SpecError(
            [
                job.problem(
                    ("train", "batch_size"),
                    f"is {size}, and {nodes} nodes with {per_node} processes each are {ranks} processes",
                    f"at most {size} processes: each takes its share of every batch",
                    "take fewer nodes or processes, or a larger batch",
                )
            ]
        )
