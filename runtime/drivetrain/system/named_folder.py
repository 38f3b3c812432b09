"""A folder that keeps its name while it is used: processes find its files by its path."""

from __future__ import annotations

import fcntl
import os
import sys
import weakref
from pathlib import Path

from drivetrain.errors import StorageError
from drivetrain.system.file_lock import is_at


class NamedFolder:
    """An existing folder, held open so that it is found under any name."""

    MESSAGE = "{} is called {} again: a run that trains finds its files by that name; rename it when it has ended"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.handle)

    def restore(self) -> str:
        """Give the folder its name again if somebody has renamed it; returns its other name, or an empty text.

        Raises:
            StorageError: if it is gone, or another one has its name.
        """
        if is_at(self.handle, self.path):
            return ""
        new_path = self._current()
        try:
            os.rename(new_path, self.path)  # never over a folder that has files
        except OSError as error:
            advice = "run the same command again"
            change, cure = f"moved to {new_path}", f"move it back to {self.path}, and {advice}; what was saved is in it"
            if not is_at(self.handle, new_path):
                change, cure = "deleted", f"{advice}; it starts anew, or from the run's copy in a store"
            raise StorageError(
                f"{self.path}: the folder was {change} while the run trains: {error.strerror}",
                "a run folder that keeps its name until the run has ended",
                cure,
            ) from None
        return new_path

    def _current(self) -> str:
        if sys.platform == "darwin":
            return os.fsdecode(fcntl.fcntl(self.handle, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
        return os.readlink(f"/proc/self/fd/{self.handle}")
