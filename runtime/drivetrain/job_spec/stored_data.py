"""Finds the files that a job reads from a store or a web server: in the cache of this machine, or by downloading them.

Streamed data is left out: its shards are fetched while the job trains.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from drivetrain.data.formats import shards
from drivetrain.data.streaming.shard import TAR
from drivetrain.errors import DataError, DrivetrainError
from drivetrain.hardware.disk_space import FETCHED_FOLDER, find_cache_folder
from drivetrain.job import Job, dot_key
from drivetrain.job.images import MANIFESTS, ImageJob
from drivetrain.job.model import EarlierRun
from drivetrain.job.remote_data import list_whole_paths
from drivetrain.storage import stored_copy
from drivetrain.storage.remote_address import RemoteAddress, parse
from drivetrain.storage.stored_copy import StoredCopy
from drivetrain.system.units import format_bytes

Key = tuple[str, ...]


def fetch_copies(job: Job, report: Callable[[str], None]) -> tuple[Job, list[StoredCopy]]:
    """The job with copies of what it names, downloaded unless the cache has the present content; and these copies.

    Args:
        report: takes lines about a download.

    Raises:
        DrivetrainError: of the store, of the cache, or of the data, with the place of the key.
    """

    def fetch(key: Key, address: RemoteAddress, cache: Path) -> StoredCopy:
        copy = stored_copy.fetch(address, cache, report, needed_files(job, key))
        if copy.note:
            report(f"{dot_key(key)}: {copy.note}")
        return copy

    return _locate(job, fetch)


def use_cached_copies(job: Job) -> Job:
    """The job with the copies that the cache has of what it names; no store is asked, and the rest stays as it is.

    Raises:
        DrivetrainError: of the cache, or of the data, with the place of the key.
    """
    return _locate(job, lambda key, address, cache: stored_copy.find_cached(address, cache))[0]


def _locate(job: Job, find: Callable[[Key, RemoteAddress, Path], StoredCopy | None]) -> tuple[Job, list[StoredCopy]]:
    """The job that reads addresses from the copies that are found, and says so in its notes; and these copies."""
    copies: dict[str, StoredCopy] = {}
    notes = []
    for key, text in list_whole_paths(job):
        address = parse(text)
        try:
            _check_alone(job, key, address)
            copy = find(key, address, find_cache_folder() / FETCHED_FOLDER)
        except DrivetrainError as error:
            raise add_location(job, key, error) from None
        if copy is not None:
            copies[text.rstrip("/")] = copy
            notes.append(f"{dot_key(key)}: {text}, fetched at {copy.fetched}, {format_bytes(copy.bytes)}")
    located = job.model_copy()
    located._copies = {**job._copies, **{address: copy.path for address, copy in copies.items()}}
    located._notes = (*job.notes, *notes)
    return located, list(copies.values())


def _check_alone(job: Job, key: Key, address: RemoteAddress) -> None:
    """Refuse a file that needs others, which are not fetched with it.

    Raises:
        DataError: for a part of a table, or a table that names images.
    """
    part = shards.SHARD.fullmatch(address.name)
    names_images = key[0] == "data" and isinstance(job, ImageJob) and address.name.lower().endswith(MANIFESTS)
    if names_images or (part and int(part["count"]) > 1):
        description = "names images, which are other files" if names_images else "is a part of a table"
        raise DataError(f"{address} {description}", "the folder that holds all of them", f"name it: {address.parent}")


def needed_files(job: Job, key: Key) -> Callable[[str], bool]:
    """A function that says which files of a folder are needed: of a run all but its checkpoints.

    Tar shards are refused before they are downloaded: only streaming reads them.
    """
    is_run = key[0] == "model" and isinstance(getattr(job, "model", None), EarlierRun)

    def is_needed(name: str) -> bool:
        if key[0] == "data" and name.endswith(TAR):
            streams = hasattr(job.data, "stream") and key[-1] != "test"
            raise DataError(
                f"{dict(list_whole_paths(job))[key]} has tar shards, such as {name}",
                "`stream: true`, which reads shards while it trains" if streams else "images in folders, or a table",
                "add `stream: true` to data" if streams else "name other data",
            )
        return not (is_run and name.startswith("checkpoints/"))

    return is_needed


def add_location(job: Job, key: Key, error: DrivetrainError) -> DrivetrainError:
    """Add the position of a key in the spec to the error, which is returned."""
    description = error.given.removeprefix(f"{dot_key(key)}: ")
    error.given = f"{job.locate_key(key)}: {description}"
    error.args = ("\n".join(error.lines()),)
    return error
