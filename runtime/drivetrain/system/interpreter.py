"""Starts and ends a process of ours without work for Python's garbage collector.

Half a second of CPU time at the end of every process that has imported torch, and a tenth of the import itself, is the
collector's walk over modules that live as long as the process.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import stat
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

FLUSH_FAILED_EXIT_CODE = 120
"""Python's own exit code if buffered output cannot be written at the end."""


@contextlib.contextmanager
def freeze_imports() -> Iterator[None]:
    """Collect no garbage in a block of imports, and exempt the created objects from collections afterwards."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def exit_process(code: int) -> NoReturn:
    """End this process as `sys.exit` does, but let the kernel free its memory.

    Threads that are not daemons are waited for, exit handlers run, and output and open files are flushed.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            code = code or FLUSH_FAILED_EXIT_CODE
    _flush_files()
    os._exit(code)


def _flush_files() -> None:
    """Write the buffers of files that nobody closed, such as a log that a job's own code keeps open."""
    for candidate in gc.get_objects():
        if type(candidate) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):  # closed, or the disk is full
                if stat.S_ISREG(os.fstat(candidate.fileno()).st_mode):  # writing to a pipe could block for ever
                    candidate.flush()
