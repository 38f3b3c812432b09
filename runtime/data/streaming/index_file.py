"""The file in the cache that keeps the index of one shard."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.system.files import storage_error, sync_file

if TYPE_CHECKING:
    import pyarrow


def stored(path: Path) -> pyarrow.Table | None:
    """The index of a shard; None if it is not there, or damaged."""
    from pyarrow import ArrowException, OSFile, ipc

    with contextlib.suppress(ArrowException, OSError), OSFile(str(path)) as file:
        os.utime(path)
        return ipc.open_file(file).read_all()
    return None


def store_table(path: Path, table: pyarrow.Table) -> None:
    """Write the index of a shard.

    Raises:
        StorageError: if it cannot be written.
    """
    from pyarrow import OSFile, ipc

    new = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with OSFile(str(new), "wb") as file, ipc.new_file(file, table.schema) as out:
            out.write_table(table)
        sync_file(new)
        os.replace(new, path)
    except OSError as error:
        raise storage_error(path.parent, error) from None
    finally:
        new.unlink(missing_ok=True)
