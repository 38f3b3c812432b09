"""Starts the process that copies a run to its store, and ends it with the run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from runtime.errors import Busy, Stopped, StorageError
from runtime.storage.remote_address import RemoteAddress
from runtime.system import file_lock, signals
from runtime.system.console import say
from runtime.system.files import storage_error

REST = 120.0
"""Seconds in which nothing moves after which a copy of a finished run has failed."""
STOPPED_REST = 40.0
"""Seconds for the rest of a run that was stopped: containers of ours are given 60 s in all before they are killed."""
AT_ONCE_REST = 3.0
"""The same for one whose user does not want to wait."""
AFTERWARDS = 3.0
"""Seconds after that until the process is killed."""
LOCK = ".lock-copy"
"""Of the run folder: held by the process as long as it lives, which may be longer than the run does."""
PREVIOUS = 30.0
"""Seconds for the rest of a process whose run was killed."""


def wait_for_previous(run: Path) -> None:
    """Wait until no process of an earlier start copies this folder.

    Raises:
        Busy: if one still does after a while.
        StorageError: if the folder cannot be written.
    """
    os.close(_locked(run, PREVIOUS))


def _locked(run: Path, patience: float) -> int:
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
    """The process beside one run."""

    def __init__(self, run: Path, address: RemoteAddress, keep: int) -> None:
        self.run = run
        self.address = address
        lock = _locked(run, 0.0)
        # Its own process group: Ctrl-C reaches the run, and this process ends after it.
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "runtime.supervisor.remote_copy.copy_process",
                str(run),
                str(address),
                str(keep),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            process_group=0,
            pass_fds=(lock,),
        )
        os.close(lock)

    def cancel(self) -> None:
        """End it at once, for a run whose folder is removed."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def finish(self, code: int) -> int:
        """Let it send the rest, and wait for it; returns the exit code of the run.

        Args:
            code: of the run without its copy.
        """
        seconds = REST if code == 0 else AT_ONCE_REST if code in signals.AT_ONCE else STOPPED_REST
        pipe = self.process.stdin
        if pipe and not pipe.closed:
            with contextlib.suppress(OSError):  # it has ended
                pipe.write(f"{seconds}{' idle' * (code == 0)}\n".encode())
                pipe.close()
        try:
            ended = self.process.wait(None if code == 0 else seconds + AFTERWARDS)
        except subprocess.TimeoutExpired:
            self.cancel()
            ended = StorageError.exit_code
        return self._judged(code, ended)

    def _judged(self, code: int, ended: int) -> int:
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
