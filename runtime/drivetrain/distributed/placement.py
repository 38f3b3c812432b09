"""Reads the place of this process among the processes that train together from the variables of torchrun.

srun, Kubernetes and others also start `drivetrain train` once for each process with these variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from drivetrain.errors import SpecError
from drivetrain.job import Job

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
DEFAULT_PORT = 29500
"""Default port of rank 0's store, the same as torchrun's."""
SOURCE = "RANK and WORLD_SIZE, as torchrun sets them"


@dataclass(frozen=True)
class Placement:
    """Place of this supervisor, which starts one of the processes."""

    supervisors: int
    """Number of supervisors that train together."""
    index: int
    """Number of this supervisor, from 0; number 0 leads."""
    meet: tuple[str, int]
    """Host and port of rank 0's store, by which the processes meet."""
    local_index: int = 0
    """Number of this supervisor among the supervisors on this machine."""
    local_supervisors: int = 1
    """Number of supervisors on this machine."""
    starter_keeps_store: bool = False
    """Whether the starter itself keeps the store at the meeting place, as torchrun's agent does."""

    @property
    def leads(self) -> bool:
        """Whether this supervisor writes the run folder."""
        return self.index == 0

    def describe(self) -> str:
        """Describe the placement for the user."""
        host, port = self.meet
        return f"process {self.index} of {self.supervisors}, meeting at {host}:{port} ({SOURCE})"


def find_placement(environ: Mapping[str, str], job: Job) -> Placement | None:
    """Find the place of this supervisor; None if it trains without others.

    Raises:
        SpecError: if variables are missing or impossible, or if they contradict each other or the job.
    """
    placement = _read_variables(environ) if "RANK" in environ and "WORLD_SIZE" in environ else None
    nodes = placement.supervisors // placement.local_supervisors if placement else 1
    if not job.limits.allows(nodes):
        started = f"WORLD_SIZE / LOCAL_WORLD_SIZE is {nodes}" if placement else "RANK and WORLD_SIZE are not set"
        raise job.spec_error(
            ("limits", "nodes"),
            f"is {job.limits.nodes}, and {started}",
            f"one command for each process, each with {', '.join(VARIABLES)}",
            f"start {job.limits.nodes} nodes this way, for example with torchrun, or remove limits.nodes",
        )
    processes = job.limits.processes
    if placement and processes not in (None, placement.local_supervisors):
        raise job.spec_error(
            ("limits", "processes"),
            f"is {processes}, and {SOURCE}, start {placement.local_supervisors} on this machine",
            "as many processes as were started",
            "remove it, or start as many: torchrun --nproc-per-node",
        )
    return placement if placement and placement.supervisors > 1 else None


def _read_variables(environ: Mapping[str, str]) -> Placement:
    size, index = _read_number(environ, "WORLD_SIZE"), _read_number(environ, "RANK")
    if index >= size:
        raise SpecError(
            f"RANK is {index}, and WORLD_SIZE is {size}",
            f"numbers from 0 to {size - 1}",
            "start each process with its own number, counted from 0",
        )
    if size > 1 and not environ.get("MASTER_ADDR"):
        raise SpecError(
            f"WORLD_SIZE is {size}, and MASTER_ADDR is not set",
            "an address of the machine of rank 0 that all can reach",
            "set MASTER_ADDR, or unset RANK and WORLD_SIZE to train in one process",
        )
    return Placement(
        size,
        index,
        (environ.get("MASTER_ADDR", ""), _read_number(environ, "MASTER_PORT", DEFAULT_PORT)),
        _read_number(environ, "LOCAL_RANK", 0),
        _read_number(environ, "LOCAL_WORLD_SIZE", 1),
        environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _read_number(environ: Mapping[str, str], key: str, default: int | None = None) -> int:
    """Read the whole number in a variable; refuse a missing variable without a default."""
    text = environ.get(key)
    if text is None and default is not None:
        return default
    if text is None or not text.isdigit():
        raise SpecError(
            f"{key}={text!r} in the environment", "a whole number", f"set {key} to a whole number, or unset it"
        )
    return int(text)
