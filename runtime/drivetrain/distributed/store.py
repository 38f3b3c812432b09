"""torch's key-value store through which the processes of a run find each other; rank 0 keeps it, or the starter."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

import torch

from drivetrain.distributed.placement import parse_meet
from drivetrain.distributed.world import MEETING, RANK, SOCKET
from drivetrain.errors import PeerError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

START_TIMEOUT = timedelta(minutes=10)
"""How long a process waits at the start until the others are there: a node may be pulling its image."""
ANSWER_TIMEOUT = timedelta(seconds=30)
"""How long the store may take to answer once the training has begun."""


def node_name() -> str:
    """The name of this node, as its scheduler knows it."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


@cache
def meeting_store() -> Store:
    """The store of this run's processes; kept by rank 0, unless the starter does.

    Raises:
        PeerError: if it cannot be reached.
    """
    descriptor = os.environ.get(SOCKET)
    return _connect(START_TIMEOUT, int(descriptor) if descriptor and os.environ[RANK] == "0" else None)


def watching_store(prefix: str = "") -> Store:
    """Another connection to the same store, for a thread: one connection serves one question at a time."""
    return torch.distributed.PrefixStore(prefix, _connect(ANSWER_TIMEOUT))  # type: ignore[attr-defined]


def _connect(timeout: timedelta, listens: int | None = None) -> Store:
    host, port = parse_meet(os.environ[MEETING], MEETING)
    try:
        keeps = listens is not None
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
            host, port, None, keeps, timeout, wait_for_workers=False, master_listen_fd=listens
        )
    except RuntimeError as error:
        raise PeerError(
            f"the meeting place {host}:{port} cannot be reached from {node_name()}: {str(error).splitlines()[0][:120]}",
            "the leader listening there, and a network that leads to it",
            "check that node 0 runs, the address and the firewall; run the same command again",
        ) from None
    # torchrun keeps one store for all of its restarts.
    prefix = f"drivetrain/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return torch.distributed.PrefixStore(prefix, store)  # type: ignore[attr-defined]
