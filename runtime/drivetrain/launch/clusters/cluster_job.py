"""A job that trains on a cluster: how many nodes and processes, and whether their time to stop suffices."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from drivetrain.distributed import world
from drivetrain.errors import CheckpointError, SpecError
from drivetrain.job import Job
from drivetrain.job.limits import NodeRange
from drivetrain.job.values import parse_duration, parse_interval
from drivetrain.job_spec import load_job as spec
from drivetrain.job_spec.load_job import read_content
from drivetrain.launch.container import LaunchRequest
from drivetrain.report.record import read, summarize
from drivetrain.supervisor.remote_copy.run_copy import STOPPED_SECONDS
from drivetrain.supervisor.run_folder import list_numbered
from drivetrain.supervisor.supervisor import STOPPED_REPORT
from drivetrain.system.console import say

FIXED = {
    "k8s": "an indexed Job of Kubernetes starts each of its pods again",
    "skypilot": "SkyPilot starts all nodes of a task, or none",
}
"""Engines whose number of nodes cannot change between attempts, and why."""


@dataclass(frozen=True)
class ClusterJob:
    """What is to run, whatever the engine; on `nodes` machines, with `least` of them if there are no more.

    `spec` is the absolute path of the job file, and `content` its text. The run is below runs/ of the working folder.
    """

    job: Job
    spec: Path
    content: str
    nodes: int
    least: int
    per_node: int
    """Processes on each node, one for each GPU."""
    gpus: bool
    options: list[str]
    """What follows `drivetrain train JOB`."""


def resolve(request: LaunchRequest) -> ClusterJob:
    """The job with its number of nodes and processes; raises DrivetrainError if it is invalid, or contradicts the options."""
    content = read_content(request.spec)
    # The nodes of Slurm see the same data; that of the others is not looked at here.
    load = spec.load if request.engine == "slurm" else spec.load_unseen
    job = load(request.spec, request.assignments, content=content)
    nodes, least = _count_nodes(job, request)
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
    assignments = [f"limits.{key}={value}" for key, value in sizes.items()]
    options = request.list_options(request.extend and request.extend.resolve(), assignments)
    size, processes = job.train.batch_size, nodes * per_node
    if isinstance(size, int) and processes > size:  # some would have nothing to train on
        fault = f"is {size}, and {nodes} nodes with {per_node} processes each are {processes} processes"
        possible = f"at most {size} processes: each takes its share of every batch"
        action = "take fewer nodes or processes, or a larger batch"
        raise job.spec_error(("train", "batch_size"), fault, possible, action)
    world.check_parts(job, processes)
    return ClusterJob(job, request.spec.resolve(), content.decode(), nodes, least, per_node, gpus, options)


def _count_nodes(job: Job, request: LaunchRequest) -> tuple[int, int]:
    """How many nodes are asked for, and with how many the run goes on."""
    bounds = job.limits.nodes
    if not isinstance(bounds, NodeRange):
        number = _agree(job, "nodes", "--nodes", request.nodes) or 1
        return number, number
    count = request.nodes or bounds.most
    if count is not None and job.limits.allows(count):
        if why := FIXED.get(request.engine):
            advice = "to go on with another number, launch again with --nodes N"
            say(f"limits.nodes is {bounds}: {count} in each attempt, since {why}; {advice}")
        return count, count if why else bounds.least
    fault = f"is {bounds}, and {f'--nodes is {request.nodes}' if count else 'nothing says how many to ask for'}"
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


def check_grace(work: ClusterJob, grace: str, section: str) -> None:
    """Print whether the time after a signal suffices; raises SpecError if an earlier run needed longer."""
    runs, name = Path.cwd() / "runs", work.job.name
    comparison = f"not compared with a step and a save, since no earlier run of {name} is in {runs}"
    for run in reversed(list_numbered(runs, name) if runs.is_dir() else []):
        if seconds := _estimate_stop_seconds(work.job, run):
            comparison = f"a step and a save took about {seconds:.0f} s in {run.name}"
            if seconds > parse_duration(grace):
                possible = (
                    f"more than {seconds:.0f} s; what has happened since the last checkpoint would be lost each time"
                )
                fault, action = f"{section}: grace is {grace}, and {comparison}", f"set grace: {2 * seconds:.0f}s"
                raise SpecError(fault, possible, action)
            break
    copy_note = f"; and up to {STOPPED_SECONDS:.0f} s for checkpoint.copy_to" if work.job.checkpoint.copy_to else ""
    say(f"grace period {grace}: {comparison}{copy_note}")


def _estimate_stop_seconds(job: Job, run: Path) -> float | None:
    """Seconds of a step, a save and the report, all on average; None if the run does not say."""
    with contextlib.suppress(CheckpointError):
        result = summarize(read(run))
        if result.steps and result.seconds and "checkpoint" in result.phases:
            kind, every = parse_interval(job.checkpoint.every)
            lasted = {"seconds": result.seconds, "steps": result.steps, "epoch": result.epochs or 1}[kind]
            training_seconds = sum(
                result.phases.get(phase, 0.0) for phase in ("train", "input", "forward", "optimizer")
            )
            save_seconds = result.phases["checkpoint"] / (1 + lasted // every)
            return training_seconds / result.steps + save_seconds + STOPPED_REPORT
    return None
