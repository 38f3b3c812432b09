"""The place of a supervisor among those that train together: its number, their count, and where they meet.

It is read from the first of these that is present: options of the command, or the environment variables of torchrun,
Kubeflow, SkyPilot, Slurm or an indexed Job of Kubernetes.
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
"""Port of the meeting place unless another one is named; that of torchrun."""
Meet = tuple[str, int]
"""Host and port at which the processes meet."""


@dataclass(frozen=True)
class Options:
    """The options `--nodes`, `--node` and `--meet` of the command."""

    nodes: int | None = None
    node: int | None = None
    meet: str | None = None


NO_OPTIONS = Options()
"""A command without these options."""


@dataclass(frozen=True)
class Placement:
    """The place of this supervisor."""

    source: str
    """Where this was read, in words for the user."""
    supervisors: int
    """Number of supervisors that train together: one for each node, or under torchrun one for each process."""
    index: int
    """Number of this supervisor, from 0, which leads."""
    meet: Meet
    """Host and port of the leader."""
    local_index: int = 0
    """Number of this supervisor among those on this machine."""
    local_supervisors: int = 1
    """Number of supervisors on this machine."""
    starter_keeps_store: bool = False
    """Whether the starter itself keeps the store at the meeting place, as torchrun's agent does."""

    @property
    def leads(self) -> bool:
        """Whether this supervisor writes the run folder."""
        return self.index == 0

    def describe(self) -> str:
        """A description for the user."""
        kind = "process" if self.local_supervisors > 1 or self.source == TORCHRUN else "node"
        host, port = self.meet
        return f"{kind} {self.index} of {self.supervisors}, meeting at {host}:{port} ({self.source})"


TORCHRUN = "RANK and WORLD_SIZE, as torchrun sets them"


def parse_meet(text: str, source: str) -> Meet:
    """Host and port of `HOST:PORT`, `[IPv6]:PORT` or `HOST`; raises SpecError if it is none of them."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\s:\[\]]+))(?::(\d{1,5}))?", text)
    port = int(match[3] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise SpecError(
            f"{source} {text!r}",
            "HOST:PORT with a port from 1 to 65535; an IPv6 address in brackets",
            f"give an address of node 0 that all nodes can reach, such as 10.0.0.5:{DEFAULT_PORT}",
        )
    return match[1] or match[2], port


DERIVED_PORTS = (20000, 30000)
"""Range of ports that are derived from the name of a job, so that jobs on one machine use different ones."""


def find_placement(
    options: Options, environ: Mapping[str, str], job: Job, hostname: str | None = None
) -> Placement | None:
    """The place of this supervisor; None if it trains without others.

    Args:
        options: options of the command.
        environ: the environment variables.
        job: its `limits.nodes` is the expected number of nodes.
        hostname: full name of this host; that of the system if absent.

    Raises:
        SpecError: if options or variables are incomplete, impossible, or contradict each other or the job.
    """
    placement: Placement | None = None
    if options != NO_OPTIONS:
        placement = _read_options(options, environ)
    elif "RANK" in environ and "WORLD_SIZE" in environ:
        placement = _read_torchrun(environ)
    else:
        for key, read in _READERS.items():
            # An indexed Job numbers its pods even if they do not train together.
            if key in environ and (key != "JOB_COMPLETION_INDEX" or job.limits.several_nodes):
                placement = read(environ, job, hostname or socket.getfqdn())
                break
    _check_against_job(placement, job)
    return placement if placement and placement.supervisors > 1 else None


def _check_against_job(placement: Placement | None, job: Job) -> None:
    """Refuse a placement that is impossible, or that contradicts the job's limits."""
    requested = job.limits.nodes
    nodes = placement.supervisors // placement.local_supervisors if placement else 1
    if placement and not 0 <= placement.index < placement.supervisors:
        raise SpecError(
            f"this is number {placement.index} of {placement.supervisors} ({placement.source})",
            f"numbers from 0 to {placement.supervisors - 1}",
            "start each node with its own number, counted from 0",
        )
    if not job.limits.allows(nodes):
        raise job.spec_error(
            ("limits", "nodes"),
            f"is {requested}, and {f'{placement.source} says {nodes}' if placement else 'nothing says which node this is'}",
            "--nodes N --node I --meet HOST:PORT, or the variables of torchrun, Kubeflow, SkyPilot or Slurm",
            f"start {requested} nodes so, or leave limits.nodes out",
        )
    processes = job.limits.processes
    if placement and placement.source == TORCHRUN and processes not in (None, placement.local_supervisors):
        raise job.spec_error(
            ("limits", "processes"),
            f"is {processes}, and {TORCHRUN}, start {placement.local_supervisors} on this machine",
            "one process for each that was started",
            "leave it out, or start as many: torchrun --nproc-per-node",
        )


def _read_options(options: Options, environ: Mapping[str, str]) -> Placement:
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


def _read_torchrun(environ: Mapping[str, str]) -> Placement:
    """Read the variables of torchrun, also set by accelerate, Ray Train and PyTorchJob; each supervisor is one process."""
    size = _read_number(environ, "WORLD_SIZE")
    if size > 1:
        _require_variables(environ, "MASTER_ADDR", "MASTER_PORT")
    return Placement(
        TORCHRUN,
        size,
        _read_number(environ, "RANK"),
        (environ.get("MASTER_ADDR", ""), _read_number(environ, "MASTER_PORT", DEFAULT_PORT)),
        _read_number(environ, "LOCAL_RANK", 0),
        _read_number(environ, "LOCAL_WORLD_SIZE", 1),
        environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _read_kubeflow(environ: Mapping[str, str], job: Job, hostname: str) -> Placement:
    nodes = _read_number(environ, "PET_NNODES")
    if nodes > 1:
        _require_variables(environ, "PET_NODE_RANK", "PET_MASTER_ADDR")
    per_node, processes = environ.get("PET_NPROC_PER_NODE", ""), job.limits.processes
    if nodes > 1 and per_node.isdigit() and processes is not None and int(per_node) != processes:
        raise job.spec_error(
            ("limits", "processes"),
            f"is {processes}, and PET_NPROC_PER_NODE is {per_node}",
            "the same number of processes on each node",
            f"set numProcPerNode: {processes} in the TrainJob, or limits.processes: {per_node}",
        )
    meet = environ.get("PET_MASTER_ADDR", ""), _read_number(environ, "PET_MASTER_PORT", DEFAULT_PORT)
    return Placement("PET_* of Kubeflow", nodes, _read_number(environ, "PET_NODE_RANK", 0), meet)


def _read_skypilot(environ: Mapping[str, str], job: Job, hostname: str) -> Placement:
    nodes = _read_number(environ, "SKYPILOT_NUM_NODES")
    if nodes > 1:
        _require_variables(environ, "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")
    first = next(iter(environ.get("SKYPILOT_NODE_IPS", "").split()), "")
    port = _derive_port(environ.get("SKYPILOT_TASK_ID", ""))
    return Placement("SKYPILOT_* variables", nodes, _read_number(environ, "SKYPILOT_NODE_RANK", 0), (first, port))


def _read_slurm(environ: Mapping[str, str], job: Job, hostname: str) -> Placement:
    """Read the variables of a step that srun has started, with one task on each node."""
    if "SLURM_STEP_NUM_NODES" in environ:
        nodes = _read_number(environ, "SLURM_STEP_NUM_NODES")
    else:
        nodes = _read_number(environ, "SLURM_NNODES", 1)
    tasks = _read_number(environ, "SLURM_STEP_NUM_TASKS", nodes)
    if tasks != nodes:
        raise SpecError(
            f"Slurm starts {tasks} tasks on {nodes} node{'s' * (nodes != 1)}",
            "one task on each node; it starts a process for each GPU itself",
            "srun --ntasks-per-node=1",
        )
    if nodes > 1:
        _require_variables(environ, "SLURM_NODEID", "SLURM_JOB_ID")
    names = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    first = environ.get("MASTER_ADDR") or parse_first_host(names)
    unique = f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}"
    port = _read_number(environ, "MASTER_PORT", _derive_port(unique))
    return Placement("SLURM_* variables", nodes, _read_number(environ, "SLURM_NODEID", 0), (first, port))


def _read_indexed_job(environ: Mapping[str, str], job: Job, hostname: str) -> Placement:
    """Read those of an indexed Job with a headless service, whose pods are called JOB-INDEX.SERVICE..."""
    index = _read_number(environ, "JOB_COMPLETION_INDEX")
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
        raise job.spec_error(
            ("limits", "nodes"),
            f"is {job.limits.nodes}, and JOB_COMPLETION_INDEX says not how many pods there are",
            "a number: that of the pods of an indexed Job is fixed",
            "add --set limits.nodes=N with the completions of the Job",
        )
    meet = first, _read_number(environ, "MASTER_PORT", DEFAULT_PORT)
    return Placement("JOB_COMPLETION_INDEX of Kubernetes", job.limits.nodes, index, meet)


_READERS: dict[str, Callable[[Mapping[str, str], Job, str], Placement]] = {
    "PET_NNODES": _read_kubeflow,
    "SKYPILOT_NUM_NODES": _read_skypilot,
    # Set for the tasks of srun only, and not in a batch script or a shell of salloc, where one process trains alone.
    "SLURM_STEP_ID": _read_slurm,
    "JOB_COMPLETION_INDEX": _read_indexed_job,
}
"""By the variable that shows which engine has started the supervisors: the function that reads its variables."""


def parse_first_host(names: str) -> str:
    """The first host of a list of Slurm: gpu03 of `gpu[03-07,12],login1`."""
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", names).split(",")[0]


def _derive_port(job: str) -> int:
    """A port that depends on the job's name; the default port if it has none."""
    low, high = DERIVED_PORTS
    return low + zlib.crc32(job.encode()) % (high - low) if job else DEFAULT_PORT


def _read_number(environ: Mapping[str, str], key: str, default: int | None = None) -> int:
    """The whole number in a variable; an absent one without a default is refused."""
    text = environ.get(key)
    if text is None and default is not None:
        return default
    if text is None or not text.isdigit():
        elastic = ""
        if ":" in (text or ""):
            elastic = f"; {key}={text} is elastic, and the number of nodes is fixed within an attempt"
        raise SpecError(
            f"{key}={text!r} in the environment{elastic}",
            "a whole number",
            f"start every node with the same number, or unset {key}",
        )
    return int(text)


def _require_variables(environ: Mapping[str, str], *keys: str) -> None:
    """Refuse an environment that lacks one of these variables."""
    missing = [key for key in keys if not environ.get(key)]
    if missing:
        present = next(key for key in (*_READERS, "WORLD_SIZE") if key in environ)
        raise SpecError(
            f"{present} is {environ[present]} in the environment, and {missing[0]} is missing",
            f"{' and '.join(keys)} as well",
            f"set {missing[0]}, or give --nodes, --node and --meet",
        )
