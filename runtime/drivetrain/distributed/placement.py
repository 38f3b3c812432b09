"""Where a supervisor stands among those that train together: which one of how many, and where they meet.

Whoever starts several supervisors says so: options of the command, or the environment variables of torchrun, Kubeflow,
SkyPilot, Slurm or an indexed Job of Kubernetes. The first of these counts.
"""

from __future__ import annotations

import re
import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from drivetrain.errors import SpecError
from drivetrain.job import Job

DEFAULT_PORT = 29500
"""torchrun's, where nothing names another one."""
Meet = tuple[str, int]


@dataclass(frozen=True)
class Options:
    """`--nodes`, `--node` and `--meet` of the command."""

    nodes: int | None = None
    node: int | None = None
    meet: str | None = None


ALONE = Options()
"""Without any of them."""


@dataclass(frozen=True)
class Placement:
    """The place of this supervisor."""

    source: str
    """Who said so, for the user."""
    supervisors: int
    """How many train together: one a node, or under torchrun one a process."""
    index: int
    """The number of this one; 0 leads."""
    meet: Meet
    """Host and port of the leader."""
    local_index: int = 0
    """The number of this one among those on this machine."""
    local_supervisors: int = 1
    """How many there are on this machine, which they share."""
    starter_hosts: bool = False
    """Whether the starter itself keeps the store at the meeting place, as torchrun's agent does."""

    @property
    def leads(self) -> bool:
        """Whether this supervisor writes the run folder."""
        return self.index == 0

    def words(self) -> str:
        """The line that a user reads."""
        kind = "process" if self.local_supervisors > 1 or self.source == TORCHRUN else "node"
        host, port = self.meet
        return f"{kind} {self.index} of {self.supervisors}, meeting at {host}:{port} ({self.source})"


TORCHRUN = "RANK and WORLD_SIZE, as torchrun sets them"


def parse_meet(text: str, source: str) -> Meet:
    """Host and port of `HOST:PORT`, `[IPv6]:PORT` or `HOST`.

    Raises:
        SpecError: if it is none of them.
    """
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\s:\[\]]+))(?::(\d{1,5}))?", text)
    port = int(match[3] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise SpecError(
            f"{source} {text!r}",
            "HOST:PORT with a port from 1 to 65535; an IPv6 address in brackets",
            f"give an address of node 0 that all nodes can reach, such as 10.0.0.5:{DEFAULT_PORT}",
        )
    return match[1] or match[2], port


PORTS = (20000, 30000)
"""Ports that are derived from the number of a job: two jobs on one machine never want the same one at once."""


def find_placement(
    options: Options, environ: Mapping[str, str], job: Job, hostname: str | None = None
) -> Placement | None:
    """The place of this process; None if it trains without others.

    Args:
        options: of the command.
        environ: the environment variables.
        job: `limits.nodes` says how many are expected.
        hostname: full name of this host; asked from the system if absent.

    Raises:
        SpecError: if what is given is incomplete, not possible, or contradicts itself.
    """
    # An indexed Job numbers its pods also where they have nothing to do with each other.
    indexed = job.limits.several_nodes
    placement: Placement | None = None
    if options != ALONE:
        placement = _from_options(options, environ)
    elif "RANK" in environ and "WORLD_SIZE" in environ:
        placement = _from_torchrun(environ)
    else:
        for key, read in _ENGINES.items():
            if key in environ and (key != "JOB_COMPLETION_INDEX" or indexed):
                placement = read(environ, job, hostname or socket.getfqdn())
                break
    _check(placement, job)
    return placement if placement and placement.supervisors > 1 else None


def _check(placement: Placement | None, job: Job) -> None:
    """Refuse what the job contradicts."""
    requested = job.limits.nodes
    nodes = placement.supervisors // placement.local_supervisors if placement else 1
    if placement and not 0 <= placement.index < placement.supervisors:
        raise SpecError(
            f"this is number {placement.index} of {placement.supervisors} ({placement.source})",
            f"numbers from 0 to {placement.supervisors - 1}",
            "start each node with its own number, counted from 0",
        )
    if not job.limits.allows(nodes):
        raise SpecError(
            [
                job.problem(
                    ("limits", "nodes"),
                    f"is {requested}, and {f'{placement.source} says {nodes}' if placement else 'nothing says which node this is'}",
                    "--nodes N --node I --meet HOST:PORT, or the variables of torchrun, Kubeflow, SkyPilot or Slurm",
                    f"start {requested} nodes so, or leave limits.nodes out",
                )
            ]
        )
    processes = job.limits.processes
    if placement and placement.source == TORCHRUN and processes not in (None, placement.local_supervisors):
        raise SpecError(
            [
                job.problem(
                    ("limits", "processes"),
                    f"is {processes}, and {TORCHRUN}, start {placement.local_supervisors} on this machine",
                    "one process for each that was started",
                    "leave it out, or start as many: torchrun --nproc-per-node",
                )
            ]
        )


def _from_options(options: Options, environ: Mapping[str, str]) -> Placement:
    if options.nodes is None or (options.nodes > 1 and None in (options.node, options.meet)):
        options_set = [f"--{name}" for name in ("nodes", "node", "meet") if getattr(options, name) is not None]
        raise SpecError(
            f"only {', '.join(options_set)} given",
            "--nodes N --node I --meet HOST:PORT, all three",
            "give the number of nodes, the number of this one from 0 on, and an address of node 0 that all can reach",
        )
    if environ.get("WORLD_SIZE", "1") != "1" and "RANK" in environ:
        raise SpecError(
            f"--nodes {options.nodes}, and RANK={environ['RANK']} WORLD_SIZE={environ['WORLD_SIZE']} in the environment",
            "one of the two",
            "leave out --nodes, --node and --meet under torchrun, or unset RANK and WORLD_SIZE",
        )
    if options.nodes < 1:
        raise SpecError(
            f"--nodes {options.nodes}", "1 or more nodes", "give the number of machines that train together"
        )
    meet = parse_meet(options.meet, "--meet") if options.meet else ("127.0.0.1", DEFAULT_PORT)
    return Placement("--nodes", options.nodes, options.node or 0, meet)


def _from_torchrun(environ: Mapping[str, str]) -> Placement:
    """torchrun, and what sets its variables: accelerate, Ray Train, PyTorchJob. One supervisor is one process."""
    size = _number(environ, "WORLD_SIZE")
    if size > 1:
        _need(environ, "MASTER_ADDR", "MASTER_PORT")
    return Placement(
        TORCHRUN,
        size,
        _number(environ, "RANK"),
        (environ.get("MASTER_ADDR", ""), _number(environ, "MASTER_PORT", DEFAULT_PORT)),
        _number(environ, "LOCAL_RANK", 0),
        _number(environ, "LOCAL_WORLD_SIZE", 1),
        environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _from_kubeflow(environ: Mapping[str, str], job: Job, hostname: str) -> Placement:
    nodes = _number(environ, "PET_NNODES")
    if nodes > 1:
        _need(environ, "PET_NODE_RANK", "PET_MASTER_ADDR")
    per_node, processes = environ.get("PET_NPROC_PER_NODE", ""), job.limits.processes
    if nodes > 1 and per_node.isdigit() and processes is not None and int(per_node) != processes:
        raise SpecError(
            [
                job.problem(
                    ("limits", "processes"),
                    f"is {processes}, and PET_NPROC_PER_NODE is {per_node}",
                    "the same number of processes on each node",
                    f"set numProcPerNode: {processes} in the TrainJob, or limits.processes: {per_node}",
                )
            ]
        )
    meet = environ.get("PET_MASTER_ADDR", ""), _number(environ, "PET_MASTER_PORT", DEFAULT_PORT)
    return Placement("PET_* of Kubeflow", nodes, _number(environ, "PET_NODE_RANK", 0), meet)


def _from_skypilot(environ: Mapping[str, str], job: Job, hostname: str) -> Placement:
    nodes = _number(environ, "SKYPILOT_NUM_NODES")
    if nodes > 1:
        _need(environ, "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")
    first = next(iter(environ.get("SKYPILOT_NODE_IPS", "").split()), "")
    port = _derive_port(environ.get("SKYPILOT_TASK_ID", ""))
    return Placement("SKYPILOT_* variables", nodes, _number(environ, "SKYPILOT_NODE_RANK", 0), (first, port))


def _from_slurm(environ: Mapping[str, str], job: Job, hostname: str) -> Placement:
    """A step that srun has started: one task on each node."""
    nodes = (
        _number(environ, "SLURM_STEP_NUM_NODES")
        if "SLURM_STEP_NUM_NODES" in environ
        else _number(environ, "SLURM_NNODES", 1)
    )
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS", nodes)
    if tasks != nodes:
        raise SpecError(
            f"Slurm starts {tasks} tasks on {nodes} node{'s' * (nodes != 1)}",
            "one task on each node; it starts a process for each GPU itself",
            "srun --ntasks-per-node=1",
        )
    if nodes > 1:
        _need(environ, "SLURM_NODEID", "SLURM_JOB_ID")
    names = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    first = environ.get("MASTER_ADDR") or first_host(names)
    unique = f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}"
    port = _number(environ, "MASTER_PORT", _derive_port(unique))
    return Placement("SLURM_* variables", nodes, _number(environ, "SLURM_NODEID", 0), (first, port))


def _from_indexed_job(environ: Mapping[str, str], job: Job, hostname: str) -> Placement:
    """An indexed Job with a headless service: its pods are called JOB-INDEX.SERVICE..."""
    index = _number(environ, "JOB_COMPLETION_INDEX")
    pod, dot, service = hostname.partition(".")
    name, dash, number = pod.rpartition("-")
    first = environ.get("MASTER_ADDR") or (f"{name}-0{dot}{service}" if dash and number == str(index) else "")
    if not first:
        raise SpecError(
            f"JOB_COMPLETION_INDEX is {index}, and this host is called {hostname}",
            f"a pod called JOB-{index}, with a headless service as its subdomain, or MASTER_ADDR",
            "set subdomain in the pod template to the name of a headless service, or MASTER_ADDR to pod 0",
        )
    if not isinstance(job.limits.nodes, int):
        raise SpecError(
            [
                job.problem(
                    ("limits", "nodes"),
                    f"is {job.limits.nodes}, and JOB_COMPLETION_INDEX says not how many pods there are",
                    "a number: that of the pods of an indexed Job is fixed",
                    "add --set limits.nodes=N with the completions of the Job",
                )
            ]
        )
    meet = first, _number(environ, "MASTER_PORT", DEFAULT_PORT)
    return Placement("JOB_COMPLETION_INDEX of Kubernetes", job.limits.nodes, index, meet)


_ENGINES: dict[str, Callable[[Mapping[str, str], Job, str], Placement]] = {
    "PET_NNODES": _from_kubeflow,
    "SKYPILOT_NUM_NODES": _from_skypilot,
    # Set for the tasks of srun only, not in a batch script or a shell of salloc, where one process stands alone.
    "SLURM_STEP_ID": _from_slurm,
    "JOB_COMPLETION_INDEX": _from_indexed_job,
}
"""By the variable that shows that the engine is there."""


def first_host(names: str) -> str:
    """The first host of a list as Slurm writes it: `gpu[03-07,12],login1` begins with gpu03."""
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", names).split(",")[0]


def _derive_port(job: str) -> int:
    """A port that depends on the job's name; the usual one if it has none."""
    low, high = PORTS
    return low + zlib.crc32(job.encode()) % (high - low) if job else DEFAULT_PORT


def _number(environ: Mapping[str, str], key: str, default: int | None = None) -> int:
    text = environ.get(key)
    if text is None and default is not None:
        return default
    if text is None or not text.isdigit():
        elastic = (
            f"; {key}={text} is elastic, and the number of nodes is fixed within an attempt"
            if ":" in (text or "")
            else ""
        )
        raise SpecError(
            f"{key}={text!r} in the environment{elastic}",
            "a whole number",
            f"start every node with the same number, or unset {key}",
        )
    return int(text)


def _need(environ: Mapping[str, str], *keys: str) -> None:
    """Refuse an environment that lacks one of these."""
    missing = [key for key in keys if not environ.get(key)]
    if missing:
        present = next(key for key in (*_ENGINES, "WORLD_SIZE") if key in environ)
        raise SpecError(
            f"{present} is {environ[present]} in the environment, and {missing[0]} is missing",
            f"{' and '.join(keys)} as well",
            f"set {missing[0]}, or give --nodes, --node and --meet",
        )
