"""Starts, watches and ends the processes of one supervisor beside its first one, which leads or follows another node."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from runtime.distributed import network, world
from runtime.distributed.placement import Placement
from runtime.errors import PeerError, RestartSmaller, Stopped
from runtime.system.console import say_error
from runtime.system.signals import CRASHES

LOOK_EVERY = 0.2
"""Seconds between two checks of the followers."""
LAST_WORDS = 15.0
"""Seconds that the leader has to end by itself after another process is lost."""
FROZEN = 50.0
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
    interface: str = network.LOOPBACK
    listener: socket.socket | None = None
    """Where rank 0 keeps the store, if it is one of these."""

    def environment(self, number: int) -> dict[str, str]:
        """The variables of one of them, by its number among these."""
        if self.total == 1:
            return {}
        made = {
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
            made["NCCL_CUMEM_HOST_ENABLE"] = os.environ.get("NCCL_CUMEM_HOST_ENABLE", "0")
        if self.supervisors > 1:
            made[world.NODES] = str(self.supervisors)
        if self.listener and self.first + number == 0:
            made[world.SOCKET] = str(self.listener.fileno())
        return made

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
    interface, listener, meeting = network.LOOPBACK, None, ""
    if placement is None:
        listener = network.listening()
        meeting = f"127.0.0.1:{listener.getsockname()[1]}"
    else:
        host, port = placement.meet
        address = host
        if placement.supervisors > placement.local_supervisors:
            address = network.own_address(placement.meet, leads=placement.leads)
            interface = network.interface(address)
        if placement.leads and not placement.starter_hosts:
            listener = network.listening(address, port)
            host = address
        meeting = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    first, several = (placement.index * count, placement.supervisors) if placement else (0, 1)
    try:
        yield Local(count, first, count * several, several, meeting, interface, listener)
    finally:
        if listener:
            listener.close()


@contextlib.contextmanager
def start_others(here: Local, run: Path, start: Start) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start all processes of this supervisor but the first; end them with the block.

    Args:
        here: the processes.
        run: the run folder; each has its own folder in it, with its log.
        start: starts a process.

    Returns:
        The processes.
    """
    others: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(1, here.count):
            folder = _folder(run, here.first + number)
            with (folder / "log.txt").open("ab") as log:
                others.append(start(folder, here.environment(number), log.fileno()))
        yield others
    finally:
        for process in others:
            process.kill()
        for process in others:
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


def wait(leader: subprocess.Popen[bytes], others: Sequence[subprocess.Popen[bytes]], *, together: bool = False) -> int:
    """Wait for the end of a run; returns the leader's return code, or a code for the loss of another process.

    Args:
        leader: the first process of this supervisor.
        others: the rest of them.
        together: whether there are other supervisors, which do not wait for a process that is stopped.
    """
    lost_at: float | None = None
    still: float | None = None
    ended = False
    if not others and not together:
        return leader.wait()
    while leader.poll() is None:
        lost = [process for process in others if process.poll() not in (None, 0)]
        if lost and lost_at is None:
            lost_at = time.monotonic()
        still = (still or time.monotonic()) if together and _is_stopped([leader, *others]) else None
        if still is not None and time.monotonic() - still > FROZEN:
            leader.kill()
            leader.wait()
            told = PeerError(
                f"a process of this machine has been stopped for {FROZEN:.0f} s, and the other machines have given up",
                "all processes of the run",
                "find out who sent SIGSTOP; run the same command again; it resumes from the last checkpoint",
            )
            say_error(told)
            return PeerError.exit_code
        if lost_at is not None and time.monotonic() - lost_at > LAST_WORDS:
            leader.kill()
            ended = True
            break
        time.sleep(LOOK_EVERY)
    return _code(leader, others, killed=ended)


def _code(leader: subprocess.Popen[bytes], others: Sequence[subprocess.Popen[bytes]], *, killed: bool) -> int:
    """The return code of a run whose leader has ended, or was killed here because it waited for a lost process."""
    code = leader.wait()
    lost = [process for process in others if process.poll() not in (None, 0)]
    # If we killed a leader that waited for a lost process, its code does not tell the cause.
    ends = [*([] if killed else [code]), *(process.returncode for process in lost)]
    if RestartSmaller.exit_code in ends:
        return RestartSmaller.exit_code
    if -signal.SIGKILL not in ends and (crashed := [end for end in ends if 128 - end in CRASHES]):
        # All other failures only follow from this one.
        return crashed[0]
    if lost and code not in (0, Stopped.exit_code) and not 2 <= code <= 7:
        if any(process.returncode == Stopped.exit_code for process in lost):
            # They were stopped before they had connected; later all stop together.
            say_error(Stopped("a process was stopped before the first step finished", "", "run the same command again"))
            return Stopped.exit_code
        told = PeerError(
            f"another process of this run died (exit {lost[0].returncode})",
            "all processes of the run",
            "run the same command again; it resumes from the last checkpoint; "
            "ranks/*/log.txt in the run folder says more",
        )
        say_error(told)
        return PeerError.exit_code
    return code
