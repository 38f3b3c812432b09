"""`drivetrain fetch`: downloads what a job names on the Hugging Face hub, in stores and on the web, before its network is closed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtime.errors import DeviceError
from runtime.job import Job
from runtime.launch import run_in_image
from runtime.pretrained import hub_name
from runtime.system.console import say
from runtime.system.units import format_bytes

if TYPE_CHECKING:
    from runtime.pretrained.hub_dataset import HubData
    from runtime.pretrained.hub_download import HubFile
    from runtime.storage.stored_copy import StoredCopy

SHOWN = 30
"""Largest number of files that are listed."""


def fetch(given: argparse.Namespace) -> int:
    """Fill the cache, and print what was fetched.

    Raises:
        SpecError: if the job is invalid, or its network or data cannot be downloaded or used.
        StorageError: if the cache cannot be written.
        DeviceError: if the volume of containers is asked for and no engine answers.
    """
    if given.container and "DRIVETRAIN_IMAGE" not in os.environ:
        return _contained(given)
    from runtime.job_spec import hub_data, stored_data
    from runtime.job_spec import load as job_spec

    found: list[HubData] = []
    copies: list[StoredCopy] = []

    def located(job: Job) -> Job:
        job, data = hub_data.locate(job, say, update=given.update)
        found.extend(data)
        job, stored = stored_data.locate(job, say)
        copies.extend(stored)
        return job

    job = job_spec.load(given.job, given.set, locate=located)
    for data in found:
        _tell_data(data)
    for copy in copies:
        _tell_copy(copy)
    if (name := hub_name.of_hub(job)) is not None:
        _network(job, name, update=given.update)
    elif not found and not copies:
        say(f"{given.job}: the job needs nothing from the Hugging Face hub, a store or the web")
    return 0


def _tell_copy(copy: StoredCopy) -> None:
    state = copy.note or ("downloaded" if copy.downloaded else "everything is there, and has not changed")
    say(f"{copy.address}: {copy.files:,} file{'s' * (copy.files != 1)}, {format_bytes(copy.bytes)}: {state}")
    say(f"in {copy.path}")


def _tell_data(data: HubData) -> None:
    _tell(data.name, [(file, "") for file in data.files], new=bool(data.new), note=data.note)
    say(f"commit {data.commit}")
    say(f"in {data.folder}")


def _network(job: Job, name: str, *, update: bool) -> None:
    from runtime.pretrained import folder

    found = folder.fetched(job, name, update=update)
    snapshot = found.snapshot
    made = f", made of {snapshot.converted}" if snapshot.converted else ""
    files = [(file, made if file.name == "model.safetensors" else "") for file in snapshot.files]
    _tell(name, files, new=bool(found.new), note=found.note)
    say(f"revision {found.revision}: commit {snapshot.commit}")
    say(f"in {snapshot.folder}")


def _tell(name: str, files: Sequence[tuple[HubFile, str]], *, new: bool, note: str) -> None:
    size = f"{len(files)} files, {sum(file.size for file, _ in files) / 1e6:,.1f} MB"
    if new:
        say(f"{name}: fetched {size}, each compared with its hash")
    else:
        say(f"{name}: everything is there, {size}; {note or 'each was compared with its hash when it was fetched'}")
    for file, more in sorted(files, key=lambda row: row[0].name)[:SHOWN]:
        say(f"  {file.name}  {format_bytes(file.size)}{more}")
    if len(files) > SHOWN:
        say(f"  and {len(files) - SHOWN:,} more")


def _contained(given: argparse.Namespace) -> int:
    from runtime.launch import docker_engine

    client = docker_engine.connect()
    if isinstance(client, docker_engine.EngineMissing):
        raise DeviceError(
            f"--container: no Docker engine answers: {client.why}",
            "an engine, or the cache of this user",
            f"{client.cure}, or leave out --container",
        )
    assignments = [word for assignment in given.set for word in ("--set", assignment)]
    update = ["--update"] if given.update else []
    return run_in_image.run(given, [given.command, str(given.job), *assignments, *update])
