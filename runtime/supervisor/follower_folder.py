"""The folder of a supervisor that does not lead: `runs/followers/<name>-<index>/`, with its logs and its state.

It stands beside the run folders, which the leader alone numbers and writes: the machines may share a file system or
not.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from runtime.job import Job
from runtime.supervisor.run_folder import LOCK, RunFolder, lock_folder
from runtime.supervisor.spec_difference import spec_text
from runtime.system.files import PRIVATE, make_folder, storage_error
from runtime.system.run_files import RunFiles

FOLDER = "followers"


def opened(runs: Path, job: Job, index: int) -> RunFolder:
    """The folder of supervisor `index`, locked and without what an earlier attempt left.

    Raises:
        StorageError: if it cannot be written.
        Busy: if another process has it.
    """
    path = runs / FOLDER / f"{job.name}-{index}"
    make_folder(path, PRIVATE)
    lock = lock_folder(path)
    try:
        for rest in path.iterdir():
            if rest.is_dir() and not rest.is_symlink():
                shutil.rmtree(rest)
            elif rest.name != LOCK:
                rest.unlink()
        RunFiles(path).write_text("job.yaml", spec_text(job))
    except OSError as error:
        raise storage_error(path, error) from None
    return RunFolder(path, False, lock)
