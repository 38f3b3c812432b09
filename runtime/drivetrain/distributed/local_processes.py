"""Starts, watches and ends the processes of one supervisor beside its first one, which leads or follows another node.

With several nodes it also chooses the network between them: the interface that leads to the meeting place, and the
socket to listen on.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from drivetrain.distributed import world
from drivetrain.distributed.placement import Meet, Placement
from drivetrain.errors import PeerError, RestartSmaller, SpecError, Stopped
from drivetrain.system.console import say_error
from drivetrain.system.signals import CRASHES

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
RESOLVE_TIMEOUT = 60.0
"""Seconds until the name of the meeting host must be known: that of a pod is not, in its first moments."""
CHECK_INTERVAL = 0.2
"""Seconds between two checks of the followers."""
EXIT_TIMEOUT = 15.0
"""Seconds that the leader has to end by itself after another process is lost."""
MAX_PAUSE = 50.0
"""Seconds for which a process may be stopped by a signal while other machines wait for it; they end a bit earlier."""
Start = Callable[[Path, dict[str, str], int], "subprocess.Popen[bytes]"]
"""Starts a process, given its folder, additional environment variables, and a file for its output."""


@dataclass(frozen=True)
class Local:
    """The processes that one supervisor starts."""

    count: int
    first: int = 0
    """Rank of the first of them."""
    total: int = 1
    """Of all supervisors."""
    supervisors: int = 1
    meeting: str = ""
    """host:port of the store."""
    interface: str = LOOPBACK
    listener: socket.socket | None = None
    """Where rank 0 keeps the store, if it is one of these."""

    def environment(self, number: int) -> dict[str, str]:
        """The variables of one of them, by its number among these."""
        if self.total == 1:
            return {}
        variables = {
            world.RANK: str(self.first + number),
            world.LOCAL_RANK: str(number),
            world.WORLD_SIZE: str(self.total),
            world.MEETING: self.meeting,
            "GLOO_SOCKET_IFNAME": self.interface,
            "NCCL_SOCKET_IFNAME": self.interface,
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # torch warns of each host whose address has no name
        }
        if self.supervisors == 1:
            # Before 2.26.3 NCCL fails or hangs where Docker forbids the NUMA calls that this memory needs (NVIDIA/nccl#2190).
            variables["NCCL_CUMEM_HOST_ENABLE"] = os.environ.get("NCCL_CUMEM_HOST_ENABLE", "0")
        if self.supervisors > 1:
            variables[world.NODES] = str(self.supervisors)
        if self.listener and self.first + number == 0:
            variables[world.SOCKET] = str(self.listener.fileno())
        return variables

    def open_files(self) -> list[int]:
        """What the first of them inherits."""
        return [self.listener.fileno()] if self.listener else []


@contextlib.contextmanager
def local(count: int, placement: Placement | None) -> Iterator[Local]:
    """The processes of this supervisor, with the socket at which rank 0 meets the others.

    Args:
        count: how many this supervisor starts.
        placement: its place among several; None if it is the only one.

    Raises:
        PeerError: if the meeting place cannot be reached or listened on.
        SpecError: if the name of the meeting host says not where that is.
    """
    if placement is None and count == 1:
        yield Local(1)
        return
    interface, listener, meeting = LOOPBACK, None, ""
    if placement is None:
        listener = open_listener()
        meeting = f"127.0.0.1:{listener.getsockname()[1]}"
    else:
        host, port = placement.meet
        address = host
        if placement.supervisors > placement.local_supervisors:
            address = find_own_address(placement.meet, leads=placement.leads)
            interface = find_interface(address)
        if placement.leads and not placement.starter_hosts:
            listener = open_listener(address, port)
            host = address
        meeting = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    first, several = (placement.index * count, placement.supervisors) if placement else (0, 1)
    try:
        yield Local(count, first, count * several, several, meeting, interface, listener)
    finally:
        if listener:
            listener.close()


@contextlib.contextmanager
def start_others(local: Local, run: Path, start: Start) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start all processes of this supervisor but the first; end them with the block.

    Args:
        local: the processes.
        run: the run folder; each has its own folder in it, with its log.
        start: starts a process.

    Returns:
        The processes.
    """
    followers: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(1, local.count):
            folder = _folder(run, local.first + number)
            with (folder / "log.txt").open("ab") as log:
                followers.append(start(folder, local.environment(number), log.fileno()))
        yield followers
    finally:
        for process in followers:
            process.kill()
        for process in followers:
            process.wait()


def _folder(run: Path, rank: int) -> Path:
    """The folder for the records of a process; it gets plan, checkpoints and the rest from rank 0."""
    folder = run / "ranks" / str(rank)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("hardware.json", "plan.json"):
        shutil.copyfile(run / name, folder / name)
    return folder


def _is_stopped(processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Whether one of them is stopped by a signal; all of a machine's are when its terminal or container is paused."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                return True
    return False


def wait(
    leader: subprocess.Popen[bytes], followers: Sequence[subprocess.Popen[bytes]], *, together: bool = False
) -> int:
    """Wait for the end of a run; returns the leader's return code, or a code for the loss of another process.

    Args:
        leader: the first process of this supervisor.
        followers: the rest of them.
        together: whether there are other supervisors, which do not wait for a process that is stopped.
    """
    lost_at: float | None = None
    still: float | None = None
    ended = False
    if not followers and not together:
        return leader.wait()
    while leader.poll() is None:
        dead = [process for process in followers if process.poll() not in (None, 0)]
        if dead and lost_at is None:
            lost_at = time.monotonic()
        still = (still or time.monotonic()) if together and _is_stopped([leader, *followers]) else None
        if still is not None and time.monotonic() - still > MAX_PAUSE:
            leader.kill()
            leader.wait()
            error = PeerError(
                f"a process of this machine has been stopped for {MAX_PAUSE:.0f} s, and the other machines have given up",
                "all processes of the run",
                "find out who sent SIGSTOP; run the same command again; it resumes from the last checkpoint",
            )
            say_error(error)
            return PeerError.exit_code
        if lost_at is not None and time.monotonic() - lost_at > EXIT_TIMEOUT:
            leader.kill()
            ended = True
            break
        time.sleep(CHECK_INTERVAL)
    return _code(leader, followers, killed=ended)


def _code(leader: subprocess.Popen[bytes], followers: Sequence[subprocess.Popen[bytes]], *, killed: bool) -> int:
    """The return code of a run whose leader has ended, or was killed here because it waited for a lost process."""
    code = leader.wait()
    dead = [process for process in followers if process.poll() not in (None, 0)]
    # If we killed a leader that waited for a lost process, its code does not tell the cause.
    ends = [*([] if killed else [code]), *(process.returncode for process in dead)]
    if RestartSmaller.exit_code in ends:
        return RestartSmaller.exit_code
    if -signal.SIGKILL not in ends and (crashed := [end for end in ends if 128 - end in CRASHES]):
        # All other failures only follow from this one.
        return crashed[0]
    if dead and code not in (0, Stopped.exit_code) and not 2 <= code <= 7:
        if any(process.returncode == Stopped.exit_code for process in dead):
            # They were stopped before they had connected; later all stop together.
            say_error(Stopped("a process was stopped before the first step finished", "", "run the same command again"))
            return Stopped.exit_code
        error = PeerError(
            f"another process of this run died (exit {dead[0].returncode})",
            "all processes of the run",
            "run the same command again; it resumes from the last checkpoint; "
            "ranks/*/log.txt in the run folder says more",
        )
        say_error(error)
        return PeerError.exit_code
    return code


def open_listener(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A socket that listens on one address only.

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
            "end the other run, or give another port: --meet HOST:PORT, or MASTER_PORT",
        ) from None


def find_own_address(meet: Meet, *, leads: bool, resolve: Callable[[str, int], list[str]] | None = None) -> str:
    """The address of this node in the network that leads to the meeting place.

    Debian writes the name of a host as 127.0.1.1 into its /etc/hosts; the leader then takes its only other address.

    Raises:
        PeerError: if the host stays unknown, or no network leads to it.
        SpecError: if its name stands for this node itself, or the leader has several addresses to choose from.
    """
    host, port = meet
    host_addresses = (resolve or _resolve)(host, port)
    reachable = [address for address in host_addresses if not ipaddress.ip_address(address).is_loopback]
    if leads:
        # The name of the meeting host is that of this node, so one of its addresses tells the network to use.
        local_addresses = list_addresses()
        shared = [address for address in reachable if address in local_addresses]
        return shared[0] if shared else _only(host, host_addresses, local_addresses)
    if not reachable:
        raise SpecError(
            f"the meeting host {host} is {host_addresses[0]} on this node, which is the node itself",
            "an address of node 0 that this node can reach",
            "give the address of node 0 in place of its name: --meet ADDRESS:PORT, or MASTER_ADDR",
        )
    return _source(reachable[0], port)


def find_interface(address: str) -> str:
    """The name of the network interface with this address."""
    return list_addresses().get(address, LOOPBACK)


def list_addresses() -> dict[str, str]:
    """The interface of each address of this machine."""
    return {
        row.address.partition("%")[0]: name
        for name, rows in psutil.net_if_addrs().items()
        for row in rows
        if row.family in (socket.AF_INET, socket.AF_INET6)
    }


def _resolve(host: str, port: int) -> list[str]:
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
                "give the address of node 0: --meet ADDRESS:PORT, or MASTER_ADDR",
            ) from None
        return list(dict.fromkeys(str(row[4][0]) for row in rows))


def _source(target: str, port: int) -> str:
    """The own address from which packets to a target are sent; nothing is sent."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, port))
        except OSError as error:
            raise PeerError(
                f"no network leads from this node to {target}: {error.strerror or error}",
                "an address of node 0 that this node can reach",
                "check the network between the nodes, and the address in --meet or MASTER_ADDR",
            ) from None
        return str(probe.getsockname()[0])


def _only(host: str, resolved: list[str], interfaces: dict[str, str]) -> str:
    """The leader's address if the name does not tell it: that of the default route, or the only one."""
    candidates = [
        a for a in interfaces if not (ipaddress.ip_address(a).is_loopback or ipaddress.ip_address(a).is_link_local)
    ]
    candidates = [address for address in candidates if ":" not in address] or candidates
    if len(candidates) == 1:
        return candidates[0]
    raise SpecError(
        f"the meeting host {host} is {', '.join(resolved)} here, which says not which network leads to the other nodes",
        f"one of this node's addresses: {', '.join(candidates) or 'there is none'}",
        "give the one that all nodes can reach: --meet ADDRESS:PORT, or MASTER_ADDR",
    )
