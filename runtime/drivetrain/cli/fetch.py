"""`drivetrain fetch`: downloads a job's files on the Hugging Face hub, in stores and on the web, before its network is closed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from drivetrain.job import Job
from drivetrain.pretrained import convert, hub_name
from drivetrain.system.console import say
from drivetrain.system.units import format_bytes

if TYPE_CHECKING:
    from drivetrain.pretrained.hub import Fetched
    from drivetrain.storage.stored_copy import StoredCopy

MAX_LISTED_FILES = 30
"""Largest number of files that are listed."""


def fetch(options: argparse.Namespace) -> int:
    """Fill the cache, and print the fetched files.

    Raises:
        SpecError: if the job is invalid, or its network or data cannot be downloaded or used.
        StorageError: if the cache cannot be written.
    """
    from drivetrain.job_spec import load_job as job_spec
    from drivetrain.job_spec import located_data

    fetched_data: list[Fetched] = []
    copies: list[StoredCopy] = []

    def locate(job: Job) -> Job:
        job, data = located_data.locate_on_hub(job, say, update=options.update)
        fetched_data.extend(data)
        job, stored = located_data.fetch_copies(job, say)
        copies.extend(stored)
        return job

    job = job_spec.load(options.job, options.set, locate=locate)
    for data in fetched_data:
        _print_files(data, f"commit {data.commit}")
    for copy in copies:
        _print_copy(copy)
    for _, path in job.model_paths():
        convert.convert_local(job.resolve(path))
    if (name := hub_name.find_hub_weights(job)) is not None:
        from drivetrain.pretrained import folder

        network = folder.fetch(job, name, update=options.update)
        _print_files(network, f"revision {network.revision}: commit {network.commit}")
    elif not fetched_data and not copies:
        say(f"{options.job}: the job needs nothing from the Hugging Face hub, a store or the web")
    return 0


def _print_copy(copy: StoredCopy) -> None:
    state = copy.note or ("downloaded" if copy.downloaded else "everything is there, and has not changed")
    say(f"{copy.address}: {copy.files:,} file{'s' * (copy.files != 1)}, {format_bytes(copy.bytes)}: {state}")
    say(f"in {copy.path}")


def _print_files(fetched: Fetched, commit: str) -> None:
    """Print the files of a network or a dataset, and `commit`, its description."""
    files = sorted(fetched.files, key=lambda file: file.name)
    size = f"{len(files)} files, {sum(file.size for file in files) / 1e6:,.1f} MB"
    if fetched.downloaded:
        say(f"{fetched.name}: fetched {size}, each compared with its hash")
    else:
        state = fetched.note or "each was compared with its hash when it was fetched"
        say(f"{fetched.name}: everything is there, {size}; {state}")
    for file in files[:MAX_LISTED_FILES]:
        is_converted = fetched.converted_from and file.name == "model.safetensors"
        say(f"  {file.name}  {format_bytes(file.size)}{f', made of {fetched.converted_from}' if is_converted else ''}")
    if len(files) > MAX_LISTED_FILES:
        say(f"  and {len(files) - MAX_LISTED_FILES:,} more")
    say(commit)
    say(f"in {fetched.folder}")
