"""Where a supervisor stands among those that train together: which one of how many, and where they meet."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runtime.errors import SpecError

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
