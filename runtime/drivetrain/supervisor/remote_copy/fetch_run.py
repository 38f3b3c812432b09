"""Brings a run from a store to this disk: its newest checkpoint that verifies, the best one, all other files."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from drivetrain.storage.object_store import ObjectStore
from drivetrain.supervisor.remote_copy.owner_file import OwnerFile, list_steps, write_record
from drivetrain.supervisor.remote_copy.run_copy import is_small
from drivetrain.system.console import say
from drivetrain.system.files import USER_RWX, blame_storage, make_folder, parse_row, sync_folder
from drivetrain.system.run_files import CHECKPOINTS, parse_suffix
from drivetrain.system.units import format_bytes
from drivetrain.training.checkpoints.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    all_damaged_error,
    describe_damaged,
    parse_files,
    verify,
)


def fetch_run(file: OwnerFile, final: Path, local_step: int = -1) -> list[str]:
    """Download a run into a folder, which is replaced if the store has a better checkpoint; returns the lines it printed.

    Args:
        file: of the copy, taken by this process.
        local_step: the step of the newest good checkpoint of the folder; older ones in the store are not used.

    Raises:
        RemoteError: if the store gives no answer.
        StorageError: if the disk does not take it.
        CheckpointError: if there are checkpoints and none verifies.
    """
    store, lines = file.store, list[str]()
    temporary, old = final.with_name(f".tmp-fetched-{final.name}"), final.with_name(f".tmp-old-{final.name}")

    def report(line: str) -> None:
        say(f"copy: {line}")
        lines.append(line)

    make_folder(final.parent)
    try:
        with blame_storage(final):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(USER_RWX)
            sizes = {entry.name: entry.bytes for entry in store.objects()}
            name = _download_newest(file, sizes, temporary / CHECKPOINTS, report, local_step)
            if name is None and local_step >= 0:
                report(f"{store.address}: using step-{local_step}, which is on this disk")
                return lines
            for each in filter(is_small, sizes):
                store.get_file(each, temporary / each, atomic=False)
            size = sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file())
            write_record(temporary, file.owner.run, [file.writer])
            shutil.rmtree(old, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                final.rename(old)
            temporary.rename(final)
            sync_folder(final.parent)
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    report(f"{store.address}: {name or 'no checkpoint yet'}, {format_bytes(size)} downloaded to {final}")
    return lines


def _download_newest(
    file: OwnerFile, sizes: Mapping[str, int], folder: Path, report: Callable[[str], None], local_step: int
) -> str | None:
    """Download the newest checkpoint that verifies, and the best one that it names; returns its name."""
    store, checkpoints, damaged = file.store, file.owner.checkpoints, list[str]()

    def download(name: str) -> str | None:
        mismatch = _download_checkpoint(store, sizes, f"{CHECKPOINTS}/{checkpoints[name].folder}", folder / name)
        if mismatch:
            shutil.rmtree(folder / name, ignore_errors=True)
        return mismatch

    for name in reversed(list_steps(checkpoints)):
        if parse_suffix(name) <= local_step:
            return None
        if mismatch := download(name):
            damaged.append(describe_damaged(name, mismatch))
            report(f"{store.address}: {damaged[-1]}")
            continue
        best = checkpoints[name].best
        if best and best in checkpoints and (mismatch := download(best)):
            report(f"{store.address}: checkpoint {best} is damaged: {mismatch}; it is not used")
        return name
    if damaged and local_step < 0:
        raise all_damaged_error(store.address, damaged)
    return None


def _download_checkpoint(store: ObjectStore, sizes: Mapping[str, int], prefix: str, folder: Path) -> str | None:
    """Download a checkpoint; returns what is wrong with it, from its manifest and sizes before anything large comes."""
    manifest = f"{prefix}/{MANIFEST}"
    try:
        is_readable = sizes.get(manifest, MAX_MANIFEST_BYTES + 1) <= MAX_MANIFEST_BYTES
        files = parse_files(parse_row(store.get(manifest)) if is_readable else None)
    except ValueError as wrong:
        return str(wrong)
    for part, entry in files.items():
        if (size := sizes.get(f"{prefix}/{part}")) != entry["bytes"]:
            return f"{part} is missing" if size is None else f"{part} has {size} bytes, expected {entry['bytes']}"
    for part in (*files, MANIFEST):
        store.get_file(f"{prefix}/{part}", folder / part, atomic=False)
    return verify(folder)
