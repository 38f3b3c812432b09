"""Brings a run from a store to this disk: its newest checkpoint that verifies, the best one, all other files."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from runtime.storage.object_store import ObjectStore
from runtime.supervisor.remote_copy.run_copy import best_of, step_of
from runtime.supervisor.remote_copy.run_files import CHECKPOINTS, is_portable
from runtime.supervisor.remote_copy.writer_lock import FILE as LOCK_FILE
from runtime.system.files import PRIVATE, make_folder, parse_json, storage_error, sync_folder
from runtime.system.units import format_bytes
from runtime.training.checkpoints.manifest import MANIFEST, MOST_BYTES, all_damaged, listed_in, passed_over, verify


def fetch_run(store: ObjectStore, final: Path, tell: Callable[[str], None], above: int = -1) -> None:
    """Download a run into a folder, which is replaced if the store has a better checkpoint.

    Args:
        store: opened at the run.
        final: the run folder.
        tell: is told what was found.
        above: the step of the newest good checkpoint of the folder; older ones in the store are not used.

    Raises:
        RemoteError: if the store gives no answer.
        StorageError: if the disk does not take it.
        CheckpointError: if there are checkpoints and none verifies.
    """
    place = final.with_name(f".tmp-fetched-{final.name}")
    make_folder(final.parent)
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(PRIVATE)
        sizes = {each.name: each.bytes for each in store.objects()}
        found, more = _checkpoints(store, sizes, place / CHECKPOINTS, tell, above)
        if found is None and above >= 0:
            tell(f"{store.address}: using step-{above}, which is on this disk")
            return
        size = sum(store.get_file(name, place / name, whole=False) for name in sizes if is_small(name))
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
    store: ObjectStore, sizes: Mapping[str, int], place: Path, tell: Callable[[str], None], above: int
) -> tuple[str | None, int]:
    """Download the newest checkpoint that verifies, and the best one that it names; returns its name and the bytes."""
    size, passed = 0, list[str]()
    for name in reversed(committed(sizes)):
        if step_of(name) <= above:
            return None, size
        wrong = _wrong_there(store, sizes, name)
        if wrong is None:
            size += _checkpoint(store, sizes, name, place)
            wrong = verify(place / name)
        if wrong is None:
            best = best_of(place / name)
            if best and f"{CHECKPOINTS}/{best}/{MANIFEST}" in sizes:
                size += _checkpoint(store, sizes, best, place)
                if wrong := verify(place / best):
                    tell(f"{store.address}: checkpoint {best} is damaged: {wrong}; it is not used")
                    shutil.rmtree(place / best)
            return name, size
        shutil.rmtree(place / name, ignore_errors=True)
        passed.append(passed_over(name, wrong))
        tell(f"{store.address}: {passed[-1]}")
    if passed and above < 0:
        raise all_damaged(store.address, passed)
    return None, size


def _wrong_there(store: ObjectStore, sizes: Mapping[str, int], name: str) -> str | None:
    """What is wrong with a checkpoint by its manifest and the sizes in the store, before anything large is downloaded."""
    place = f"{CHECKPOINTS}/{name}"
    manifest = None
    if sizes[f"{place}/{MANIFEST}"] <= MOST_BYTES:
        with contextlib.suppress(ValueError):
            manifest = parse_json(store.get(f"{place}/{MANIFEST}"))
    try:
        files = listed_in(manifest)
    except ValueError as wrong:
        return str(wrong)
    for part, entry in files.items():
        if (found := sizes.get(f"{place}/{part}")) is None:
            return f"{part} is missing"
        if found != entry["bytes"]:
            return f"{part} has {found} bytes, expected {entry['bytes']}"
    return None


def _checkpoint(store: ObjectStore, sizes: Mapping[str, int], name: str, place: Path) -> int:
    parts = [each for each in sizes if each.startswith(f"{CHECKPOINTS}/{name}/") and is_portable(each)]
    return sum(store.get_file(part, place.parent / part, whole=False) for part in parts)


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
