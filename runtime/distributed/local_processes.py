"""Starts, watches and ends the processes that train beside the leader (rank 0) on this machine."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from runtime.distributed.world import RANK, STORE, WORLD_SIZE
from runtime.errors import PeerError, Stopped
from runtime.system.signals import CRASHES

LOOK_EVERY = 0.2
"""Seconds between two checks of the followers."""
LAST_WORDS = 10.0
"""Seconds that the leader has to end by itself after another process is lost."""
Start = Callable[[Path, dict[str, str], int], "subprocess.Popen[bytes]"]
"""Starts a process, given its folder, additional environment variables, and a file for its output."""


@contextlib.contextmanager
def start_followers(
    count: int, run: Path, start: Start
) -> Iterator[tuple[dict[str, str], list[subprocess.Popen[bytes]]]]:
    """Start all processes but the leader; end them with the block.

    Args:
        count: number of processes, leader included.
        run: the run folder; each follower has its own folder in it, with its log.
        start: starts a process.

    Returns:
        The leader's environment, and the followers.
    """
    if count == 1:
        yield {}, []
        return
    meeting = Path(tempfile.mkdtemp(prefix="drivetrain-"))
    common = {WORLD_SIZE: str(count), STORE: str(meeting / "store"), "GLOO_SOCKET_IFNAME": "lo"}
    others: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(1, count):
            folder = _folder(run, rank)
            with (folder / "log.txt").open("ab") as log:
                others.append(start(folder, common | {RANK: str(rank)}, log.fileno()))
        yield common | {RANK: "0"}, others
    finally:
        for process in others:
            process.kill()
        for process in others:
            process.wait()
        shutil.rmtree(meeting, ignore_errors=True)


def _folder(run: Path, rank: int) -> Path:
    """The folder for a follower's records; it reads plan, checkpoints and the rest from the leader's."""
    folder = run / "ranks" / str(rank)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("checkpoints", "hardware.json", "plan.json", "data.json", "preprocessing.json", "extension.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(Path("..", "..", name))
    return folder


def wait(leader: subprocess.Popen[bytes], others: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for the end of a run; returns the leader's return code, or a code for the loss of another process."""
    lost_at: float | None = None
    ended = False
    if not others:
        return leader.wait()
    while leader.poll() is None:
        lost = [process for process in others if process.poll() not in (None, 0)]
        if lost and lost_at is None:
            lost_at = time.monotonic()
        if lost_at is not None and time.monotonic() - lost_at > LAST_WORDS:
            leader.kill()
            ended = True
            break
        time.sleep(LOOK_EVERY)
    code = leader.wait()
    lost = [process for process in others if process.poll() not in (None, 0)]
    # If we killed a leader that waited for a lost process, its code does not tell the cause.
    ends = [*([] if ended else [code]), *(process.returncode for process in lost)]
    if -signal.SIGKILL not in ends and (crashed := [end for end in ends if 128 - end in CRASHES]):
        # All other failures only follow from this one.
        return crashed[0]
    if lost and code not in (0, Stopped.exit_code) and not 2 <= code <= 7:
        if any(process.returncode == Stopped.exit_code for process in lost):
            # They were stopped before they had connected; later all stop together.
            print(
                Stopped("a process was stopped before the first step finished", "", "run the same command again"),
                file=sys.stderr,
                flush=True,
            )
            return Stopped.exit_code
        told = PeerError(
            f"another process of this run died (exit {lost[0].returncode})",
            "all processes of the run",
            "run the same command again; it resumes from the last checkpoint; "
            "ranks/*/log.txt in the run folder says more",
        )
        print(told, file=sys.stderr, flush=True)
        return PeerError.exit_code
    return code
