"""Connects to torch's key-value store, which lets the processes of a run find each other.

The store is kept by rank 0, or by the program that started the processes.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

import torch

from drivetrain.distributed.world import RANK, SOCKET
from drivetrain.errors import PeerError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

START_TIMEOUT = timedelta(minutes=10)
"""Longest time that a process waits for the others at the start, since a node may still be pulling its image."""


def find_node_name() -> str:
    """Find the name of this node in its scheduler, or else its host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


@cache
def connect() -> Store:
    """Connect once to the store of this run's processes; in rank 0 also open it, unless the starter keeps it.

    Raises:
        PeerError: if the store cannot be reached.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    descriptor = int(os.environ[SOCKET]) if SOCKET in os.environ and os.environ[RANK] == "0" else None
    keeps_store = descriptor is not None
    try:
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
            host, port, None, keeps_store, START_TIMEOUT, wait_for_workers=False, master_listen_fd=descriptor
        )
    except RuntimeError as error:
        raise PeerError(
            f"the meeting place {host}:{port} cannot be reached from {find_node_name()}: {str(error).splitlines()[0][:120]}",
            "a leader that listens there, and a network that leads to it",
            "check that node 0 is running, the address and the firewall; then run the same command again",
        ) from None
    # torchrun keeps one store for all of its restarts.
    prefix = f"drivetrain/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return torch.distributed.PrefixStore(prefix, store)  # type: ignore[attr-defined]
