"""Starts the process that copies a run to its store, and ends it with the run."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

from drivetrain.errors import Busy, Stopped, StorageError
from drivetrain.storage.remote_address import RemoteAddress
from drivetrain.system import file_lock, signals
from drivetrain.system.console import say
from drivetrain.system.files import storage_error
from drivetrain.tracking.event_log import EventLog

STALL_SECONDS = 120.0
"""Seconds in which nothing moves after which a copy of a finished run has failed."""
STOPPED_SECONDS = 40.0
"""Seconds for the rest of a run that was stopped: containers of ours are given 60 s in all before they are killed."""
AT_ONCE_SECONDS = 3.0
"""The same for one whose user does not want to wait."""
KILL_DELAY = 3.0
"""Seconds after that until the process is killed."""
SILENT_SECONDS = 60.0
"""Seconds without a sign of life after the end of the run, after which the process is killed: it is stopped, or hangs."""
LONGEST_PAUSE = 60.0
"""Seconds between two starts of a process that dies again and again."""
LOCK = ".lock-copy"
"""Of the run folder: held by the process as long as it lives, which may be longer than the run does."""
PREVIOUS_SECONDS = 30.0
"""Seconds for the rest of a process whose run was killed."""


def wait_for_previous(run: Path) -> None:
    """Wait until no process of an earlier start copies this folder.

    Raises:
        Busy: if one still does after a while.
        StorageError: if the folder cannot be written.
    """
    os.close(_lock(run, PREVIOUS_SECONDS))


def _lock(run: Path, patience: float) -> int:
    try:
        handle = file_lock.acquire(run / LOCK, patience)
    except OSError as error:
        raise storage_error(run, error) from None
    if handle is None:
        raise Busy(
            f"{run}: the copy of its last start is still being sent", "one copy at a time", "wait for it, and try again"
        )
    return handle


class CopyChild:
    """The process beside one run; one that is killed, for example for want of memory, is started again."""

    def __init__(self, run: Path, address: RemoteAddress, keep: int) -> None:
        self.run = run
        self.address = address
        self.keep = keep
        self._over = threading.Event()
        """Whether the run has ended, so that the process is no longer replaced."""
        self._turn = threading.Lock()
        self.process, self._alive = self._start()
        threading.Thread(target=self._replace, name="copy", daemon=True).start()

    def _start(self) -> tuple[subprocess.Popen[bytes], int]:
        """A new process, and the descriptor on which it shows that it is well."""
        lock = _lock(self.run, 0.0)
        read_end, alive = os.pipe()
        # Its own process group: Ctrl-C reaches the run, and this process ends after it.
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "drivetrain.supervisor.remote_copy.copy_process",
                str(self.run),
                str(self.address),
                str(self.keep),
                str(alive),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            process_group=0,
            pass_fds=(lock, alive),
        )
        os.close(lock)
        os.close(alive)
        return process, read_end

    def _replace(self) -> None:
        """Start another process whenever one dies before the run has ended."""
        pause = 1.0
        while self.process.wait() != Busy.exit_code and not self._over.wait(pause):
            pause = min(2 * pause, LONGEST_PAUSE)
            with self._turn:
                if not self._over.is_set():
                    self._again()

    def _again(self) -> None:
        """Start another process if the present one has died; one that lost its lock has ended rightly."""
        code = self.process.poll()
        if code in (None, Busy.exit_code):
            return
        with contextlib.suppress(OSError, Busy, StorageError):
            restarted = self._start()
            self._close()
            self.process, self._alive = restarted
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            EventLog(self.run).add("copy", f"the process that copies has ended ({how}); another one goes on")

    def _close(self) -> None:
        os.close(self._alive)
        if self.process.stdin:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def _leave(self) -> None:
        """From now on, replace the process no more."""
        with self._turn:
            self._over.set()

    def cancel(self) -> None:
        """End it at once, for a run whose folder is removed."""
        self._leave()
        self.process.kill()
        self.process.wait()
        self._close()

    def finish(self, code: int) -> int:
        """Let it send the rest, and wait for it; returns the exit code of the run.

        Args:
            code: of the run without its copy.
        """
        self._leave()
        self._again()
        seconds = STALL_SECONDS if code == 0 else AT_ONCE_SECONDS if code in signals.ABORTED_CODES else STOPPED_SECONDS
        pipe = self.process.stdin
        if pipe and not pipe.closed:
            with contextlib.suppress(OSError):  # it has ended
                pipe.write(f"{seconds}{' idle' * (code == 0)}\n".encode())
                pipe.close()
        try:
            if code == 0:
                self._wait_while_alive()
            ended = self.process.wait(seconds + KILL_DELAY)
            self._close()
        except subprocess.TimeoutExpired:
            self.cancel()
            ended = StorageError.exit_code
        return self._judge_end(code, ended)

    def _wait_while_alive(self) -> None:
        """Wait as long as it takes: the process limits itself, unless it is stopped or hangs.

        Raises:
            TimeoutExpired: if it shows no life.
        """
        while select.select([self._alive], [], [], SILENT_SECONDS)[0]:
            if not os.read(self._alive, 1 << 16):
                return
        raise subprocess.TimeoutExpired(self.process.args, SILENT_SECONDS)

    def _judge_end(self, code: int, ended: int) -> int:
        if code not in (0, Stopped.exit_code) or ended == 0:
            return code
        if ended == Busy.exit_code:
            say(f"{self.address} belongs to another process now: the run goes on there")
            return Busy.exit_code
        if code == ended == Stopped.exit_code:  # the last checkpoint is there
            return code
        local = "the run is complete" if code == 0 else "the last checkpoint is complete"
        say(
            f"copy: incomplete, exit {StorageError.exit_code}; {local} in {self.run}, and the same command sends the rest"
        )
        return StorageError.exit_code
