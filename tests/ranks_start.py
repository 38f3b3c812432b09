"""Starts the processes of a run without a supervisor, as it would: with a store that rank 0 keeps on the loopback."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from drivetrain.distributed.local_processes import LocalProcesses, open_listener
from tests.paths import ROOT

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""torch asks MKL first."""


def run_ranks(command: Sequence[str], count: int, seconds: float = 300) -> list[str]:
    """What each of so many processes printed; all must end with 0.

    The command ends by `interpreter.exit_process`, as the processes of a run do: a worker thread of gloo that still holds a
    tensor while Python takes itself down aborts the process.
    """
    codes, said = wait_for_ranks(command, count, seconds)
    assert codes == [0] * count, "\n".join(said)
    return said


def wait_for_ranks(command: Sequence[str], count: int, seconds: float = 300) -> tuple[list[int], list[str]]:
    """How each of so many processes ended, and what it printed."""
    with open_listener() as listener:
        local_processes = LocalProcesses(count, total=count, meet=listener.getsockname(), listener=listener)
        processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD, "DRIVETRAIN_RANK": "0", "DRIVETRAIN_RANKS": "1"}
                | local_processes.environment(rank),
                pass_fds=local_processes.open_files() if rank == 0 else (),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(count)
        ]
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return [process.returncode for process in processes], outputs
