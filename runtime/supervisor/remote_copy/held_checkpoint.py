"""Keeps the files of a checkpoint while it is copied, whatever the trainer removes meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(path: Path, run: Path) -> Iterator[Path | None]:
    """A folder with the same files, which stays while the trainer removes older checkpoints; None if it is gone.

    The names are links, so it takes no space; where there are none, it is the folder itself.
    """
    place = run / f".tmp-copy-{path.name}"
    shutil.rmtree(place, ignore_errors=True)
    try:
        try:
            place.mkdir()
            for part in path.iterdir():
                os.link(part, place / part.name)
        except FileNotFoundError:
            yield None
            return
        except OSError:
            yield path if path.exists() else None
            return
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
