"""Brings a run from a store to this disk: its newest checkpoint that verifies, the best one, all other files."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from runtime.storage.object_store import ObjectStore
from runtime.supervisor.remote_copy.run_copy import best_of, step_of
from runtime.supervisor.remote_copy.run_files import CHECKPOINTS, is_portable
from runtime.supervisor.remote_copy.writer_lock import FILE as LOCK_FILE
from runtime.system.files import make_folder, storage_error, sync_folder
from runtime.system.units import format_bytes
from runtime.training.checkpoints.manifest import MANIFEST, all_damaged, passed_over, verify


def fetch_run(store: ObjectStore, final: Path, tell: Callable[[str], None]) -> None:
    """Download a run into a folder, which is replaced if it is there.

    Args:
        store: opened at the run.
        final: the run folder.
        tell: is told what was found.

    Raises:
        RemoteError: if the store gives no answer.
        StorageError: if the disk does not take it.
        CheckpointError: if there are checkpoints and none verifies.
    """
    place = final.with_name(f".tmp-fetched-{final.name}")
    make_folder(final.parent)
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        names = [each.name for each in store.objects()]
        size = sum(download(store, name, place) for name in names if is_small(name))
        found, more = _checkpoints(store, names, place / CHECKPOINTS, tell)
        _put(place, final)
    except OSError as error:
        raise storage_error(final, error) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    tell(f"{store.address}: {found or 'no checkpoint yet'}, {format_bytes(size + more)} downloaded to {final}")


def committed(names: Iterable[str]) -> list[str]:
    """The checkpoints of a run that have a manifest, oldest first."""
    found = re.compile(rf"{CHECKPOINTS}/(step-\d+)/{re.escape(MANIFEST)}")
    return sorted((match[1] for name in names if (match := found.fullmatch(name))), key=step_of)


def _checkpoints(
    store: ObjectStore, names: list[str], place: Path, tell: Callable[[str], None]
) -> tuple[str | None, int]:
    """Download the newest checkpoint that verifies, and the best one that it names; returns its name and the bytes."""
    size, passed = 0, list[str]()
    for name in reversed(committed(names)):
        size += _checkpoint(store, names, name, place)
        wrong = verify(place / name)
        if wrong is None:
            best = best_of(place / name)
            if best and f"{CHECKPOINTS}/{best}/{MANIFEST}" in names:
                size += _checkpoint(store, names, best, place)
                if wrong := verify(place / best):
                    tell(f"{store.address}: checkpoint {best} is damaged: {wrong}; it is not used")
                    shutil.rmtree(place / best)
            return name, size
        shutil.rmtree(place / name)
        passed.append(passed_over(name, wrong))
        tell(f"{store.address}: {passed[-1]}")
    if passed:
        raise all_damaged(store.address, passed)
    return None, size


def _checkpoint(store: ObjectStore, names: list[str], name: str, place: Path) -> int:
    parts = [each for each in names if each.startswith(f"{CHECKPOINTS}/{name}/") and is_portable(each)]
    return sum(download(store, part, place.parent) for part in parts)


def download(store: ObjectStore, name: str, place: Path, *, whole: bool = False) -> int:
    """Write one object to the same name below a folder; returns its bytes.

    Args:
        store: opened at the run.
        name: of the object.
        place: the folder.
        whole: whether a file of this name must be replaced at once, since others may read it.

    Raises:
        RemoteError: if the store does not give it.
        OSError: if it cannot be written.
    """
    path = place / name
    beside = path.with_name(f".tmp-{path.name}") if whole else path
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with beside.open("wb") as file:
        for piece in store.stream(name):
            size += file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    if whole:
        beside.replace(path)
    return size


def is_small(name: str) -> bool:
    """Whether an object is a file of the run folder itself, and no checkpoint."""
    return is_portable(name) and name != LOCK_FILE and not name.startswith(f"{CHECKPOINTS}/")


def _put(place: Path, final: Path) -> None:
    old = final.with_name(f".tmp-old-{final.name}")
    shutil.rmtree(old, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        final.rename(old)
    place.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)
