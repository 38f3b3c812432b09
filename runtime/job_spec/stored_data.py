"""Finds what a job reads whole from a store or a web server: in the cache of this machine, or by downloading it.

What is streamed is not looked at: its shards are fetched while the job trains.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from runtime.data.formats import shards
from runtime.data.streaming.shard import TAR
from runtime.errors import DataError, DrivetrainError
from runtime.hardware.disk_space import fetched_folder
from runtime.job import Job, dotted
from runtime.job.images import MANIFESTS, ImageJob
from runtime.job.model import EarlierRun
from runtime.job.remote_data import whole_paths
from runtime.storage import stored_copy
from runtime.storage.remote_address import RemoteAddress, parse
from runtime.storage.stored_copy import StoredCopy
from runtime.system.units import format_bytes

Key = tuple[str, ...]
Say = Callable[[str], None]


def locate(job: Job, say: Say | None = None) -> tuple[Job, list[StoredCopy]]:
    """The job with its copies, and what they are.

    Args:
        job: as written.
        say: takes lines about a download; None: no store is asked, and what the cache lacks stays as it is.

    Raises:
        DrivetrainError: of the store, of the cache, or of the data, with the place of the key.
    """
    found: list[StoredCopy] = []
    for key, text in whole_paths(job):
        address, cache = parse(text), fetched_folder(os.environ)
        try:
            _check_alone(job, key, address)
            one = (
                stored_copy.fetch(address, cache, say, wanted(job, key)) if say else stored_copy.cached(address, cache)
            )
        except DrivetrainError as error:
            raise placed(job, key, error) from None
        if one is None:
            continue
        found.append(one)
        if say and one.note:
            say(f"{dotted(key)}: {one.note}")
        job = job.model_copy()
        job._copies = {**job._copies, text.rstrip("/"): one.path}
        told = f"{dotted(key)}: {text}, fetched at {one.fetched}, {format_bytes(one.bytes)}"
        job._notes = (*job.notes, told)
    return job, found


def _check_alone(job: Job, key: Key, address: RemoteAddress) -> None:
    """Refuse a file that is nothing without others, which are not fetched with it.

    Raises:
        DataError: for a part of a table, or a table that names images.
    """
    part = shards.SHARD.fullmatch(address.name)
    names_images = key[0] == "data" and isinstance(job, ImageJob) and address.name.lower().endswith(MANIFESTS)
    if names_images or (part and int(part["count"]) > 1):
        what = "names images, which are other files" if names_images else "is a part of a table"
        raise DataError(f"{address} {what}", "the folder that holds all of them", f"name it: {address.parent}")


def wanted(job: Job, key: Key) -> Callable[[str], bool]:
    """Which files of a folder are needed: of a run its model, not its checkpoints.

    Tar shards are refused before they are downloaded: only streaming reads them.
    """
    is_run = key[0] == "model" and isinstance(getattr(job, "model", None), EarlierRun)

    def needed(name: str) -> bool:
        if key[0] == "data" and name.endswith(TAR):
            streams = hasattr(job.data, "stream") and key[-1] != "test"
            raise DataError(
                f"{dict(whole_paths(job))[key]} has tar shards, such as {name}",
                "`stream: true`, which reads shards while it trains" if streams else "images in folders, or a table",
                "add `stream: true` to data" if streams else "name other data",
            )
        return not (is_run and name.startswith("checkpoints/"))

    return needed


def placed(job: Job, key: Key, error: DrivetrainError) -> DrivetrainError:
    """The same error with the place in the spec before it."""
    given = error.given.removeprefix(f"{dotted(key)}: ")
    error.given = f"{job.document.place(key)}: {dotted(key)}: {given}"
    error.args = ("\n".join(error.lines()),)
    return error
