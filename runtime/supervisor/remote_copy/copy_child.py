"""Starts the process that copies a run to its store, and ends it with the run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from runtime.errors import Busy, Stopped, StorageError
from runtime.storage.remote_address import RemoteAddress
from runtime.system import signals
from runtime.system.console import say

REST = 120.0
"""Seconds in which nothing moves after which a copy of a finished run has failed."""
STOPPED_REST = 40.0
"""Seconds for the rest of a run that was stopped: containers of ours are given 60 s in all before they are killed."""
AT_ONCE_REST = 3.0
"""The same for one whose user does not want to wait."""
AFTERWARDS = 3.0
"""Seconds after that until the process is killed."""


class CopyChild:
    """The process beside one run."""

    def __init__(self, run: Path, address: RemoteAddress, keep: int) -> None:
        self.run = run
        self.address = address
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
        )

    def cancel(self) -> None:
        """End it at once, for a run whose folder is removed."""
        self.process.kill()
        self.process.wait()

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
