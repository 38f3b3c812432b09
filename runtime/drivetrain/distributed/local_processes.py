"""Starts, watches and ends the training processes of one supervisor: its first process leads, the others follow.

The supervisor itself starts the leader. With several nodes this module also chooses the network between them: the
interface that leads to the meeting host, where rank 0 keeps torch's store.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from drivetrain.distributed import world
from drivetrain.distributed.placement import Placement
from drivetrain.errors import PeerError, RestartSmaller, SpecError, Stopped
from drivetrain.system import child_process, signals
from drivetrain.system.console import say_error
from drivetrain.system.run_files import HARDWARE_FILE, PLAN_FILE
from drivetrain.system.signals import CRASH_EXIT_CODES

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
RESOLVE_TIMEOUT = 60.0
"""Seconds for looking up the host of the store again: the name of a pod is unknown at first."""
CHECK_INTERVAL = 0.2
"""Seconds between two checks of the processes."""
LAST_WAIT = 5.0
"""Seconds to wait for the end of other processes after the leader has lost one of them."""
EXIT_TIMEOUT = 15.0
"""Seconds to wait for the end of the leader after another process is lost."""
Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class LocalProcesses:
    """The training processes that one supervisor starts, and their connection to the others."""

    count: int
    """Number of these processes."""
    first_rank: int = 0
    """Rank of the first of these processes."""
    total: int = 1
    """Number of processes of all supervisors."""
    supervisors: int = 1
    """Number of supervisors."""
    meet: tuple[str, int] = ("", 0)
    """Host and port of rank 0's store."""
    interface: str = LOOPBACK
    """Name of the network interface."""
    listener: socket.socket | None = None
    """Socket of the store of rank 0; None if rank 0 is not one of these processes or the starter keeps the store."""

    def environment(self, number: int) -> dict[str, str]:
        """Return the environment variables of one of these processes by its number, from 0."""
        if self.total == 1:
            return {}
        variables = {
            world.RANK: str(self.first_rank + number),
            world.LOCAL_RANK: str(number),
            world.WORLD_SIZE: str(self.total),
            "MASTER_ADDR": self.meet[0],
            "MASTER_PORT": str(self.meet[1]),
            # Names of torchrun for the user's code: an iterable yields the samples of its process.
            "RANK": str(self.first_rank + number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": str(self.total),
            "GLOO_SOCKET_IFNAME": self.interface,
            "NCCL_SOCKET_IFNAME": self.interface,
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # torch warns of each host whose address has no name
        }
        if self.supervisors == 1:
            # Before 2.26.3 NCCL fails or hangs if Docker forbids the NUMA calls of this memory (NVIDIA/nccl#2190).
            variables["NCCL_CUMEM_HOST_ENABLE"] = os.environ.get("NCCL_CUMEM_HOST_ENABLE", "0")
        if self.supervisors > 1:
            variables[world.NODES] = str(self.supervisors)
        if self.listener and self.first_rank + number == 0:
            variables[world.SOCKET] = str(self.listener.fileno())
        return variables

    def open_files(self) -> list[int]:
        """Return the descriptors that the first process inherits."""
        return [self.listener.fileno()] if self.listener else []


@contextlib.contextmanager
def open_meeting(count: int, placement: Placement | None) -> Iterator[LocalProcesses]:
    """Describe the processes of this supervisor, and keep the socket of rank 0 open within the block.

    Args:
        count: number of processes that this supervisor starts.
        placement: place of this supervisor among several; None if it is the only one.

    Raises:
        PeerError: if the meeting place cannot be reached, or rank 0 cannot listen there.
        SpecError: if the address of the meeting host is ambiguous.
    """
    if placement is None and count == 1:
        yield LocalProcesses(1)
        return
    if placement is None:
        with open_listener() as listener:
            yield LocalProcesses(count, total=count, meet=listener.getsockname(), listener=listener)
        return
    (host, port), interface = placement.meet, LOOPBACK
    own_address = host
    if placement.supervisors > placement.local_supervisors:
        own_address = find_own_address(host, port, leads=placement.leads)
        interface = list_addresses().get(own_address, LOOPBACK)
    first_rank, total = placement.index * count, placement.supervisors * count
    processes = LocalProcesses(count, first_rank, total, placement.supervisors, (host, port), interface)
    if not placement.leads or placement.starter_keeps_store:
        yield processes
        return
    with open_listener(own_address, port) as listener:
        yield replace(processes, meet=(own_address, port), listener=listener)


@contextlib.contextmanager
def start_followers(
    processes: LocalProcesses, run: Path, command: Callable[[Path], Sequence[str]], environment: Mapping[str, str]
) -> Iterator[list[Process]]:
    """Start all processes of this supervisor except the first, and kill them at the end of the block.

    Args:
        processes: processes of this supervisor, including the first.
        run: run folder; each process has its own folder in it, with its log.
        command: function that returns the command line of a process for its folder.
        environment: variables of the plan for all processes.
    """
    followers: list[Process] = []
    try:
        for number in range(1, processes.count):
            folder = _make_rank_folder(run, processes.first_rank + number)
            variables = child_process.build_environment({**environment, **processes.environment(number)})
            with (folder / "log.txt").open("ab") as log, signals.block_signals():
                followers.append(child_process.start_child(command(folder), variables, output=log.fileno()))
        yield followers
    finally:
        for process in followers:
            process.kill()
        for process in followers:
            process.wait()


def _make_rank_folder(run: Path, rank: int) -> Path:
    """Make the folder for the records of a process, with copies of the files that it reads."""
    folder = run / "ranks" / str(rank)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (HARDWARE_FILE, PLAN_FILE):
        shutil.copyfile(run / name, folder / name)
    return folder


def wait_for_end(leader: Process, followers: Sequence[Process]) -> int:
    """Wait for the end of a run; returns the leader's return code, or a code for the loss of another process."""
    lost_at: float | None = None
    killed_leader = False
    if not followers:
        return leader.wait()
    while leader.poll() is None:
        dead = [process for process in followers if process.poll() not in (None, 0)]
        if dead and lost_at is None:
            lost_at = time.monotonic()
        if lost_at is not None and time.monotonic() - lost_at > EXIT_TIMEOUT:
            leader.kill()
            killed_leader = True
            break
        time.sleep(CHECK_INTERVAL)
    return _choose_return_code(leader, followers, killed_leader=killed_leader)


def _choose_return_code(leader: Process, followers: Sequence[Process], *, killed_leader: bool) -> int:
    """Choose the return code of a run whose leader has ended, or was killed while it waited for a lost process."""
    code = leader.wait()
    if code == PeerError.exit_code:
        # The lost process may be about to end, and its code shows the cause.
        end = time.monotonic() + LAST_WAIT
        for process in followers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
    dead = [process for process in followers if process.poll() not in (None, 0)]
    # The code of a leader that was killed here does not show the cause.
    codes = [process.returncode for process in dead]
    if not killed_leader:
        codes.insert(0, code)
    if RestartSmaller.exit_code in codes:
        return RestartSmaller.exit_code
    crash_codes = [crash_code for crash_code in codes if 128 - crash_code in CRASH_EXIT_CODES]
    if crash_codes and -signal.SIGKILL not in codes:
        return crash_codes[0]  # the other processes failed because this one crashed
    # Codes from 2 to 7 are errors that the leader has already explained.
    if dead and code not in (0, Stopped.exit_code) and not 2 <= code <= 7:
        if any(process.returncode == Stopped.exit_code for process in dead):
            # They were stopped before they were connected; connected processes stop together.
            say_error(Stopped("a process was stopped before the first step finished", "", "run the same command again"))
            return Stopped.exit_code
        lost = PeerError(
            f"another process of this run died (exit {dead[0].returncode})",
            "all processes of the run",
            "run the same command again; it resumes from the last checkpoint; see ranks/*/log.txt in the run folder",
        )
        say_error(lost)
        return PeerError.exit_code
    return code


def open_listener(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Open a socket that listens on one address only; port 0 means any free port.

    Raises:
        PeerError: if the address or the port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise PeerError(
            f"the leader cannot listen on {host}:{port}: {error.strerror or error}",
            "a port that no other process uses, on an address of this machine",
            "end the other run, or set another MASTER_PORT for all",
        ) from None


def find_own_address(
    host: str, port: int, *, leads: bool, resolve: Callable[[str, int], list[str]] | None = None
) -> str:
    """Find the address of this node in the network that leads to rank 0's store.

    Args:
        host: host of the store.
        port: its port.
        leads: whether this node is that host.
        resolve: function that looks up the addresses of a host and port; None for the system's function.

    Raises:
        PeerError: if the host stays unknown, or if no network leads to it.
        SpecError: if its name means a follower itself, or if the leader has several possible addresses.
    """
    host_addresses = (resolve or _resolve_host)(host, port)
    for address in host_addresses:
        if not ipaddress.ip_address(address).is_loopback:
            return _find_source_address(address, port)
    if leads:
        # Debian maps a node's own name to 127.0.1.1.
        return _choose_only_address(host, host_addresses)
    raise SpecError(
        f"the meeting host {host} is {host_addresses[0]} on this node, which is the node itself",
        "an address of node 0 that this node can reach",
        "set MASTER_ADDR to the address of node 0 instead of its name",
    )


def list_addresses() -> dict[str, str]:
    """List the network interfaces of all addresses of this machine, by address."""
    interfaces = {}
    for name, rows in psutil.net_if_addrs().items():
        for row in rows:
            if row.family in (socket.AF_INET, socket.AF_INET6):
                interfaces[row.address.partition("%")[0]] = name
    return interfaces


def _resolve_host(host: str, port: int) -> list[str]:
    """Resolve the addresses of a host; wait for a name that is not known yet."""
    end = time.monotonic() + RESOLVE_TIMEOUT
    while True:
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            if time.monotonic() < end:
                time.sleep(1)
                continue
            raise PeerError(
                f"the meeting host {host} is not known on this node: {error.strerror or error}",
                "a name that all nodes can look up, or an address",
                "set MASTER_ADDR to the address of node 0",
            ) from None
        return list(dict.fromkeys(str(row[4][0]) for row in rows))


def _find_source_address(target: str, port: int) -> str:
    """Find the address of this node that would send packets to the target, without sending any."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, port))
        except OSError as error:
            raise PeerError(
                f"no network leads from this node to {target}: {error.strerror or error}",
                "an address of node 0 that this node can reach",
                "check the network between the nodes, and the address in MASTER_ADDR",
            ) from None
        return str(probe.getsockname()[0])


def _choose_only_address(host: str, resolved: list[str]) -> str:
    """Choose the leader's only IPv4 address, or else its only address, for an ambiguous name."""
    candidates = []
    for address in list_addresses():
        parsed = ipaddress.ip_address(address)
        if not (parsed.is_loopback or parsed.is_link_local):
            candidates.append(address)
    candidates = [address for address in candidates if ":" not in address] or candidates
    if len(candidates) == 1:
        return candidates[0]
    raise SpecError(
        f"the meeting host {host} is {', '.join(resolved)} here, which does not show the network that leads to the other nodes",
        f"one of this node's addresses: {', '.join(candidates) or 'there is none'}",
        "set MASTER_ADDR to the address that all nodes can reach",
    )
